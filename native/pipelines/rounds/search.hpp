// Pipelines of least period, or of least latency, by the paper's equations. MACs and bytes are whole numbers, seconds
// double.
#pragma once

#include "pipelines/rounds/price.hpp"

namespace downset {

class RoundSearch {
public:
    using Found = std::pair<double, std::vector<PipelineStage>>;
    using Blocks = RoundPrice::Blocks;

    RoundSearch(const LoadProblem& problem, const RoundAims& aims, double seconds, std::int64_t state_limit)
        : problem_(problem), aims_(aims), work_(seconds, state_limit), sums_(problem, work_),
          price_(problem, aims, sums_), sets_(problem, price_, work_, aims.latency_limit),
          bound_states_(static_cast<std::int64_t>(kBoundStatesPerSecond * std::clamp(seconds, 0.0, 1e6))) {}

    // Finds the least period below `incumbent`. {period (infinity: none below), stages}; bound() holds for every plan
    // of one block a stage, or of several if asked for; finished() tells whether the search ended.
    Found run(double incumbent) {
        const double least = problem_.macs(0, problem_.chain.cuts) / problem_.sets.speed[problem_.sets.all];
        double low = least, high = incumbent;
        bound_ = least;
        Found best{kNever, {}};
        const bool twice = aims_.several_blocks && price_.summed();
        if (possible(high, false)) narrowed(low, high, best, false);  // quick, and a close limit for several blocks
        if (twice && !work_.stopped() && possible(high, true)) {
            low = least;
            for (double part : {0.9, 0.97, 0.99}) {
                if (high == kNever || part * high <= low) continue;
                Found plan = pass(part * high, true);
                if (work_.stopped() || plan.first < kNever) break;
                bound_ = low = part * high;
            }
            narrowed(low, high, best, true);
        }
        finished_ = !work_.stopped() && settled_;
        if (price_.summed() || (!aims_.several_blocks && !price_.limited()))
            bound_ = finished_ ? high : twice ? bound_ : low;
        else if (finished_ && !price_.limited())
            bound_ = aims_.several_blocks ? bounded(bound_, high, best) : high;
        return best;
    }

    // The plan of least latency, whatever its period.
    Found least_latency() {
        price_.take_latency(), sets_.count_latency();
        return pass(kNever, aims_.several_blocks);
    }

    double bound() const { return bound_; }
    bool finished() const { return finished_; }
    std::int64_t states() const { return work_.states(); }

private:
    // Stages of several blocks get so many states for each second of the limit, a pass of the search counted as so many
    // for each set: less time than that, and what they give does not depend on the clock.
    static constexpr double kBoundStatesPerSecond = 40'000;
    static constexpr std::int64_t kPassStates = 8;
    const LoadProblem& problem_;
    const RoundAims aims_;
    WorkLimit work_;
    BlockSums sums_;
    RoundPrice price_;
    SetSearch<RoundPrice> sets_;
    const std::int64_t bound_states_;
    double bound_ = 0;
    bool finished_ = false, settled_ = true;

    // Whether some plan is below the incumbent; asked only where a limit on latency may leave none.
    bool possible(double high, bool several) {
        return !price_.limited() || !stages_within(high * kBelow, several ? Blocks::several : Blocks::one).empty();
    }

    void narrowed(double& low, double& high, Found& best, bool several) {
        settled_ &= narrow(low, high, best, work_, [&](double limit) { return pass(limit, several); });
    }

    std::vector<SetStage> stages_within(double limit, Blocks blocks, std::int64_t last = INT64_MAX) {
        price_.take(blocks);
        return sets_.within(limit, last);
    }

    // A plan with every stage (and the medium) within the limit.
    Found pass(double limit, bool several) {
        return realised(stages_within(limit, several ? Blocks::several : Blocks::one), limit);
    }

    // Stages of several blocks where computing and sending are not summed: they are bounded, and worked out where the
    // bounds leave a plan. Betters the best; returns proof that no plan is below it, or a bound close to it.
    double bounded(double low, double& high, Found& best) {
        low = bounds(low, high, best);
        double least = low;  // no plan of the stages known by now is below it
        while (least < high * 0.999 && !work_.stopped()) {
            const double limit = (least + high) / 2;
            Found plan = realised(stages_within(limit, Blocks::existing), limit);
            if (plan.first < high * kBelow)
                high = plan.first, best = std::move(plan);
            else
                least = limit;
        }
        return std::min(low, high);
    }

    // Of such stages: the largest period that bounds leave no plan within, as far as the states go.
    double bounds(double low, double& high, Found& best) {
        std::int64_t last = work_.states() + bound_states_;
        double top = high;  // bounds leave a plan within it
        for (int round = 0; low < std::min(top, high) * 0.999; ++round) {
            top = std::min(top, high);
            const double limit = round == 0 ? 0.9 * high : top == high ? high * kBelow : (low + top) / 2;
            if (limit <= low) continue;
            bool none = false, learnt = true;
            while (learnt && !none) {
                const auto stages = stages_within(limit, Blocks::several, last);
                last -= kPassStates * problem_.sets.count;
                if (work_.stopped() || sets_.given_up()) return low;
                none = stages.empty(), learnt = false;
                for (const SetStage& stage : stages)
                    if (stage.several) learnt |= price_.learn(stage);
                Found plan = realised(stages, limit);
                if (plan.first < high * kBelow) high = plan.first, best = std::move(plan);
            }
            if (none && limit >= high * kBelow) return high;
            (none ? low : top) = limit;
        }
        return low;
    }

    struct StageTimes {
        double compute = kNever, transfer = 0;
    };

    // The plan of stages found within the limit, if each exists.
    Found realised(std::vector<SetStage> stages, double limit) {
        if (stages.empty()) return {kNever, {}};
        Found plan{0, {}};
        double medium = 0;
        for (SetStage& stage : stages) {
            StageTimes times;
            std::vector<LimitedBlock> parts;
            if (stage.several && !price_.summed() && !price_.limited()) {
                const StageTrades::Way* way = price_.way_of(stage);
                if (!way) return {kNever, {}};
                times = {way->compute, way->transfer};
                stage.leader = way->leader;
                parts = way->blocks;
            } else {
                times = timed(stage, limit);
            }
            if (work_.stopped() && times.compute == kNever) return {kNever, {}};
            medium += times.transfer + stage.before;
            plan.first =
                std::max(plan.first, problem_.network.overlap ? std::max(times.compute, times.transfer + stage.before)
                                                              : times.compute + times.transfer + stage.before);
            plan.second.push_back(rows_of(stage, std::move(parts)));
        }
        if (problem_.network.shared) plan.first = std::max(plan.first, medium);
        return plan;
    }

    // The stage as good as it can be within the limit: on links the least of its seconds, else the least it sends.
    StageTimes timed(SetStage& stage, double limit) {
        const double wait = stage.before;
        const auto ask = [&](double trial, StageTimes& times) {
            Division division;
            times.transfer = sums_.least_transfer(stage.start, stage.stop, stage.set, stage.leader, trial, &division);
            times.compute = division.longest;
            return times.transfer;
        };
        StageTimes times;
        if (price_.summed() || stage.several) {
            const double cutoff = (limit - wait) * (1 + 1e-11);
            const int leader = stage.leader;
            const auto one = sums_.least_sum(stage.start, stage.stop, stage.set, leader, cutoff);
            times.compute = one.value;
            stage.limit = one.limit;
            if (stage.several) {
                stage.limit = std::min(cutoff, one.value) * (1 + 1e-9);
                const double value =
                    sums_.several(stage.start, stage.stop, stage.set, stage.leader, stage.limit, nullptr);
                stage.several = value < one.value;
                times.compute = std::min(value, one.value);
                if (!stage.several) stage.leader = leader, stage.limit = one.limit;
            }
            return times;
        }
        ask(stage.limit, times);
        if (problem_.network.overlap && !problem_.network.shared && !price_.limited()) {
            const auto [low, high] =
                sums_.around_crossing(stage.start, stage.stop, stage.set, stage.leader, stage.limit, wait);
            StageTimes other;
            for (double end : {low, high})
                if (ask(end, other) < kNever &&
                    std::max(other.compute, other.transfer + wait) < std::max(times.compute, times.transfer + wait))
                    times = other, stage.limit = end;
        }
        return times;
    }

    // The stage with its devices and row boundaries; of the blocks given, if any.
    PipelineStage rows_of(const SetStage& stage, std::vector<LimitedBlock> parts) {
        PipelineStage result{0, {}, devices_of(problem_.sets, stage)};
        int leader = stage.leader;
        if (parts.empty() && stage.several) {
            std::vector<std::pair<int, int>> path;
            sums_.several(stage.start, stage.stop, stage.set, leader, stage.limit, &path);
            for (auto [start, stop] : path)
                parts.push_back({start, stop, sums_.least_sum(start, stop, stage.set, leader, kNever).limit});
        } else if (parts.empty()) {
            parts.push_back({stage.start, stage.stop, stage.limit});
        }
        for (const LimitedBlock& part : parts) {
            Division division;
            sums_.least_transfer(part.start, part.stop, stage.set, leader, part.limit, &division);
            result.blocks.emplace_back(part.start, part.stop, division.bounds);
            if (!stage.several) leader = division.leader;
        }
        result.leader = result.devices[leader];
        return result;
    }
};

}  // namespace downset
