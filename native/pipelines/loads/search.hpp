// Pipelines of least period by the loads of their resources: every device, radio or port, and the medium.
// Work and bytes are whole numbers or sums of
// them, seconds double.
#pragma once

#include "pipelines/loads/sets.hpp"

namespace downset {

class LoadSearch {
public:
    using Found = std::pair<double, std::vector<LoadStage>>;

    LoadSearch(const LoadProblem& problem, double seconds, std::int64_t state_limit)
        : problem_(problem), sets_(problem_, seconds, state_limit) {}

    // Finds the least period below `incumbent`. {period (infinity: none below), stages}; bound() holds for every plan
    // of one block a stage; finished() tells whether the search ended.
    Found run(double incumbent) {
        const DeviceSets& sets = problem_.sets;
        double low = problem_.macs(0, problem_.chain.cuts) / sets.speed[sets.all], high = incumbent, step = 0.01;
        Found best{kNever, {}};
        bool settled = true;
        while (low < high * kBelow && !sets_.stopped() && settled) {
            double limit = high * kBelow;
            if (best.first == kNever) {  // nothing found yet: from the bound upwards
                limit = std::min(limit, step > 1e12 ? kNever : std::max(low, 1e-9) * (1 + step));
                step *= 2;
            } else if (low < high * 0.999) {
                limit = (low + high) / 2;
            }
            auto stages = sets_.within(limit);
            if (sets_.stopped()) break;
            if (stages.empty()) {
                low = limit;
                if (limit == kNever) break;
                continue;
            }
            Found plan = realised(stages, std::max(low, limit * 0.5), limit);
            if (plan.first < high)
                high = plan.first, best = std::move(plan);
            else if (plan.first <= limit * kRounding)
                low = limit;
            else
                settled = false;  // only bounds of its loads are within the limit
        }
        finished_ = !sets_.stopped() && settled;
        bound_ = finished_ ? high : low;
        return best;
    }

    double bound() const { return bound_; }
    bool finished() const { return finished_; }
    std::int64_t states() const { return sets_.states(); }

private:
    static constexpr double kRounding = 1 + 1e-8;
    const LoadProblem& problem_;
    LoadSets sets_;
    double bound_ = 0;
    bool finished_ = false;

    // The plan of stages found within the limit, each at its own least period from `low` on where that is of use.
    Found realised(const std::vector<LoadSets::Stage>& stages, double low, double limit) {
        Found plan{0, {}};
        double medium = 0;
        const int count = static_cast<int>(stages.size());
        std::vector<LoadDivision> divisions;
        for (int place = 0; place < count; ++place) {
            const double behind = behind_of(stages, place);
            auto [period, division] = least(stages[place], behind, std::max(low, plan.first), limit);
            plan.first = std::max(plan.first, period);
            if (problem_.network.shared) medium += division.value + stages[place].before;
            plan.second.push_back(placed(stages[place], division));
        }
        if (problem_.network.shared) plan.first = std::max(plan.first, medium);
        return plan;
    }

    double behind_of(const std::vector<LoadSets::Stage>& stages, int place) const {
        return place + 1 < static_cast<int>(stages.size()) ? stages[place + 1].before : 0;
    }

    // The least period in [low, limit] at which the stage can be divided, and its division there. On a shared network
    // that of the limit: a shorter period asks more of the medium.
    std::pair<double, LoadDivision> least(const LoadSets::Stage& stage, double behind, double low, double limit) {
        LoadDivision best = sets_.division(stage, behind, limit);
        double high = load_of(stage, behind, best);
        if (problem_.network.shared || best.value == kNever) return {high, best};
        low = std::min(low, high);
        LoadDivision other = sets_.division(stage, behind, low);
        if (other.value < kNever) return {load_of(stage, behind, other), other};
        for (int round = 0; round < 50 && low < high * (1 - 1e-10); ++round) {
            const double middle = (low + high) / 2;
            other = sets_.division(stage, behind, middle);
            if (other.value == kNever)
                low = middle;
            else
                high = std::min(middle, load_of(stage, behind, other)), best = other;
        }
        return {load_of(stage, behind, best), best};
    }

    double load_of(const LoadSets::Stage& stage, double behind, const LoadDivision& division) const {
        if (problem_.network.shared || division.value == kNever)
            return division.value == kNever ? kNever : division.tight;
        return std::max(division.tight, division.value + LoadSets::joined(stage.full, stage.before) + behind);
    }

    LoadStage placed(const LoadSets::Stage& stage, const LoadDivision& division) const {
        const DeviceSets& sets = problem_.sets;
        LoadStage result{0, stage.start, stage.stop, {}, division.bounds};
        for (std::size_t type = 0; type < sets.have.size(); ++type)
            for (int k = 0; k < sets.counts[stage.set][type]; ++k)
                result.devices.push_back(sets.first[type] + sets.counts[stage.used][type] + k);
        result.leader = result.devices[division.leader];
        return result;
    }
};

}  // namespace downset
