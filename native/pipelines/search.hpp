// Pipelines of least period: a search over (cut, multiset of devices used), each stage split exactly into integer rows.
// MACs and bytes are whole numbers, seconds double.
#pragma once

#include <memory>

#include "pipelines/labels.hpp"
#include "pipelines/minimal_sets.hpp"
#include "pipelines/planned_stage.hpp"

namespace downset {

class PipelineSearch {
public:
    using Found = std::pair<double, std::vector<PipelineStage>>;

    PipelineSearch(const PipelineProblem& problem, double seconds, std::int64_t state_limit)
        : problem_(problem), sets_(problem), blocks_(problem_, sets_, seconds, state_limit),
          bound_states_(static_cast<std::int64_t>(kBoundStatesPerSecond * std::clamp(seconds, 0.0, 1e6))) {}

    // Finds the least period below `incumbent`. {period (infinity: none below), stages}; bound() holds for every plan
    // of one block a stage, or of several if asked for; finished() tells whether the search ended.
    Found run(double incumbent) {
        const double speed = sets_.speed[sets_.all];
        bound_ = speed > 0 ? problem_.macs(0, problem_.chain.cuts) / speed : kNever;
        const bool twice = problem_.several_blocks && problem_.summed();
        Found best{kNever, {}};
        double low = bound_, high = incumbent;
        narrow(low, high, best,
               false);  // one block a stage first: quick, and a close limit for the search with several
        if (twice && !blocks_.stopped()) {
            low = bound_;
            for (double part : {0.9, 0.97, 0.99}) {
                if (labelled() || high == kNever || part * high <= low) continue;
                Found plan = pass(part * high, true);
                if (blocks_.stopped() || plan.first < kNever) break;
                bound_ = low = part * high;
            }
            if (labelled() && high < kNever) low = high * (1 - 2e-9);  // at once: what is found is the least
            narrow(low, high, best, true);
        }
        finished_ = !blocks_.stopped();
        if (problem_.several_blocks && !twice)
            bound_ = finished_ && minimal_ ? bounded(bound_, high, best) : bound_;
        else
            bound_ = finished_ ? high : twice ? bound_ : low;
        return best;
    }

    // Stages of several blocks where computing and sending are not summed: they are bounded, and worked out where the
    // bounds leave a plan. Betters the best; returns proof that no plan is below it, or a bound close to it.
    double bounded(double low, double& high, Found& best) {
        low = bounds(low, high, best);
        double least = low;  // no plan of the stages known by now is below it
        while (least < high * 0.999 && !blocks_.stopped()) {
            const double limit = (least + high) / 2;
            Found plan = realised(minimal_->within(limit, MinimalSets::Blocks::existing), limit);
            if (plan.first < high * kBelow)
                high = plan.first, best = std::move(plan);
            else
                least = limit;
        }
        return std::min(low, high);
    }

    // Of such stages: the largest period that bounds leave no plan within, as far as the states go.
    double bounds(double low, double& high, Found& best) {
        std::int64_t last = blocks_.states() + bound_states_;
        double top = high;  // bounds leave a plan within it
        for (int round = 0; low < std::min(top, high) * 0.999; ++round) {
            top = std::min(top, high);
            const double limit = round == 0 ? 0.9 * high : top == high ? high * kBelow : (low + top) / 2;
            if (limit <= low) continue;
            bool none = false, learnt = true;
            while (learnt && !none) {
                const auto stages = minimal_->within(limit, MinimalSets::Blocks::several, last);
                last -= kPassStates * sets_.count;
                if (blocks_.stopped() || minimal_->given_up()) return low;
                none = stages.empty(), learnt = false;
                for (const PlannedStage& stage : stages)
                    if (stage.several) learnt |= minimal_->learn(stage, limit);
                Found plan = realised(stages, limit);
                if (plan.first < high * kBelow) high = plan.first, best = std::move(plan);
            }
            if (none && limit >= high * kBelow) return high;
            (none ? low : top) = limit;
        }
        return low;
    }

    // The plan of least latency, whatever its period.
    Found least_latency() {
        PipelineLabels labels(problem_, sets_, blocks_, true);
        return labels.pass(kNever, problem_.several_blocks);
    }

    double bound() const { return bound_; }
    bool finished() const { return finished_; }
    std::int64_t states() const { return blocks_.states(); }

private:
    // Stages of several blocks get so many states for each second of the limit, a pass of the search counted as so many
    // for each set: less time than that, and what they give does not depend on the clock.
    static constexpr double kBoundStatesPerSecond = 40'000;
    static constexpr std::int64_t kPassStates = 8;
    const PipelineProblem& problem_;
    const DeviceSets sets_;
    PipelineBlocks blocks_;
    const std::int64_t bound_states_;
    std::unique_ptr<MinimalSets> minimal_;
    double bound_ = 0;
    bool finished_ = false;

    // Whether a latency limit asks for labels instead of minimal sets.
    bool labelled() const { return problem_.latency_limit < kNever; }

    // Brings low, below which no plan is, and high, the period of the best, together.
    void narrow(double& low, double& high, Found& best, bool several) {
        double step = 0.01;
        while (low < high * kBelow && !blocks_.stopped()) {
            double limit;
            if (high == kNever || best.first == kNever) {  // nothing found yet: from the bound upwards
                limit = std::min(high * kBelow, step > 1e6 ? kNever : std::max(low, 1e-9) * (1 + step));
                step *= 2;
            } else {
                limit = low < high * 0.999 ? (low + high) / 2 : high * kBelow;
            }
            Found plan = pass(limit, several);
            if (blocks_.stopped() && plan.first == kNever) return;
            if (plan.first < kNever && plan.first <= limit * kAbout) {
                high = std::min(plan.first, high);
                best = std::move(plan);
                if (labelled() && !problem_.network.shared) return;  // no better one is within the limit
            } else {
                low = limit;
                if (limit == kNever) return;
            }
        }
    }

    // A plan with every stage (and the medium) within the limit; where no latency limits it, any such, else the best.
    Found pass(double limit, bool several) {
        if (labelled() || limit == kNever) {
            PipelineLabels labels(problem_, sets_, blocks_, false);
            return labels.pass(limit, several);
        }
        if (!minimal_) minimal_ = std::make_unique<MinimalSets>(problem_, sets_, blocks_);
        return realised(minimal_->within(limit, several ? MinimalSets::Blocks::several : MinimalSets::Blocks::one),
                        limit);
    }

    // The plan of stages found within the limit, if each exists.
    Found realised(std::vector<PlannedStage> stages, double limit) {
        if (stages.empty()) return {kNever, {}};
        Found plan{0, {}};
        double medium = 0;
        for (PlannedStage& stage : stages) {
            StageTimes times;
            std::vector<LimitedBlock> parts;
            if (stage.several && !problem_.summed()) {
                const StageTrades::Way* way = minimal_->way_of(stage, limit);
                if (!way) return {kNever, {}};
                times = {way->compute, way->transfer};
                stage.leader = way->leader;
                parts = way->blocks;
            } else {
                times = timed(stage, limit);
            }
            if (blocks_.stopped() && times.compute == kNever) return {kNever, {}};
            medium += times.transfer + stage.wait;
            plan.first =
                std::max(plan.first, problem_.network.overlap ? std::max(times.compute, times.transfer + stage.wait)
                                                              : times.compute + times.transfer + stage.wait);
            plan.second.push_back(rows_of(sets_, blocks_, stage, std::move(parts)));
        }
        if (problem_.network.shared) plan.first = std::max(plan.first, medium);
        return plan;
    }

    struct StageTimes {
        double compute = kNever, transfer = 0;
    };

    // The stage as good as it can be within the limit: on links the least of its seconds, else the least it sends.
    StageTimes timed(PlannedStage& stage, double limit) {
        const double wait = stage.wait;
        const auto ask = [&](double trial, StageTimes& times) {
            Division division;
            times.transfer = blocks_.least_transfer(stage.start, stage.stop, stage.set, stage.leader, trial, &division);
            times.compute = division.longest;
            return times.transfer;
        };
        StageTimes times;
        if (problem_.summed()) {
            const double cutoff = (limit - wait) * (1 + 1e-11);
            const int leader = stage.leader;
            const auto one = blocks_.least_sum(stage.start, stage.stop, stage.set, leader, cutoff);
            times.compute = one.value;
            stage.limit = one.limit;
            if (stage.several) {
                stage.limit = std::min(cutoff, one.value) * (1 + 1e-9);
                const double value =
                    blocks_.several(stage.start, stage.stop, stage.set, stage.leader, stage.limit, nullptr);
                stage.several = value < one.value;
                times.compute = std::min(value, one.value);
                if (!stage.several) stage.leader = leader, stage.limit = one.limit;
            }
            return times;
        }
        stage.limit = minimal_->limit_of(stage, limit);
        ask(stage.limit, times);
        if (problem_.network.overlap && !problem_.network.shared) {
            const auto [low, high] =
                blocks_.around_crossing(stage.start, stage.stop, stage.set, stage.leader, stage.limit, wait);
            StageTimes other;
            for (double end : {low, high})
                if (ask(end, other) < kNever &&
                    std::max(other.compute, other.transfer + wait) < std::max(times.compute, times.transfer + wait))
                    times = other, stage.limit = end;
        }
        return times;
    }
};

}  // namespace downset
