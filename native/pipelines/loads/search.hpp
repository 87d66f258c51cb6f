// Pipelines of least period by the loads of their resources: every device, radio or port, and the medium.
// Work and bytes are whole numbers or sums of them, seconds are of type double.
#pragma once

#include "pipelines/loads/price.hpp"

namespace downset {

class LoadSearch {
public:
    using Found = std::pair<double, std::vector<PipelineStage>>;

    LoadSearch(const LoadProblem& problem, double seconds, std::int64_t state_limit)
        : problem_(problem), work_(seconds, state_limit), price_(problem, work_), sets_(problem, price_, work_) {}

    // Finds the least period below `incumbent`. {period (infinity: none below), stages}; bound() holds for every plan
    // of one block a stage; finished() tells whether the search ended.
    Found run(double incumbent) {
        const DeviceSets& sets = problem_.sets;
        double low = problem_.macs(0, problem_.chain.cuts) / sets.speed[sets.all], high = incumbent;
        Found best{kNever, {}};
        const bool settled = narrow(low, high, best, work_, [&](double limit) {
            return realised(sets_.within(limit), std::max(low, limit * 0.5), limit);
        });
        finished_ = !work_.stopped() && settled;
        bound_ = finished_ ? high : low;
        return best;
    }

    double bound() const { return bound_; }
    bool finished() const { return finished_; }
    std::int64_t states() const { return work_.states(); }

private:
    const LoadProblem& problem_;
    WorkLimit work_;
    LoadPrice price_;
    SetSearch<LoadPrice> sets_;
    double bound_ = 0;
    bool finished_ = false;

    // The plan of stages found within the limit, each at its own least period from `low` on where that is of use.
    Found realised(const std::vector<SetStage>& stages, double low, double limit) {
        if (stages.empty()) return {kNever, {}};
        Found plan{0, {}};
        double medium = 0;
        const int count = static_cast<int>(stages.size());
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

    double behind_of(const std::vector<SetStage>& stages, int place) const {
        return place + 1 < static_cast<int>(stages.size()) ? stages[place + 1].before : 0;
    }

    // The least period in [low, limit] at which the stage can be divided, and its division there. On a shared network
    // that of the limit: a shorter period asks more of the medium.
    std::pair<double, LoadDivision> least(const SetStage& stage, double behind, double low, double limit) {
        LoadDivision best = price_.division(stage, behind, limit);
        double high = load_of(stage, behind, best);
        if (problem_.network.shared || best.value == kNever) return {high, best};
        low = std::min(low, high);
        LoadDivision other = price_.division(stage, behind, low);
        if (other.value < kNever) return {load_of(stage, behind, other), other};
        for (int round = 0; round < 50 && low < high * (1 - 1e-10); ++round) {
            const double middle = (low + high) / 2;
            other = price_.division(stage, behind, middle);
            if (other.value == kNever)
                low = middle;
            else
                high = std::min(middle, load_of(stage, behind, other)), best = other;
        }
        return {load_of(stage, behind, best), best};
    }

    double load_of(const SetStage& stage, double behind, const LoadDivision& division) const {
        if (problem_.network.shared || division.value == kNever)
            return division.value == kNever ? kNever : division.tight;
        return std::max(division.tight, division.value + LoadPrice::joined(stage) + behind);
    }

    PipelineStage placed(const SetStage& stage, const LoadDivision& division) const {
        PipelineStage result{0, {{stage.start, stage.stop, division.bounds}}, devices_of(problem_.sets, stage)};
        result.leader = result.devices[division.leader];
        return result;
    }
};

}  // namespace downset
