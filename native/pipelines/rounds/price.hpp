// The price of stages by the paper's equations, for the set search: computing and communication of a stage, summed or
// side by side, within a period. tests/pipelines/test_pipeline_exact.py holds the period of every plan found to
// pipelines/paper_timing.py.
#pragma once

#include <array>

#include "pipelines/rounds/trades.hpp"

namespace downset {

// What is asked of pipelines besides their period.
struct RoundAims {
    double latency_limit = kNever;  // seconds
    bool several_blocks = true;     // a stage may be several fused blocks
};

class RoundPrice {
public:
    // One block a stage; several, as far as bounds leave them; several, as far as they are known to exist.
    enum class Blocks { one, several, existing };

    RoundPrice(const LoadProblem& problem, const RoundAims& aims, BlockSums& sums)
        : problem_(problem), sets_(problem.sets), aims_(aims), sums_(sums), trades_(problem, sums),
          steps_(sets_.led_count), sum_bounds_(sets_.led_count), least_ratio_(problem.chain.segments.size(), 0.0),
          least_wait_(problem.chain.cuts + 1, 0.0) {
        for (const LoadDevice& device : problem.devices) fastest_ = std::max(fastest_, device.peak);
        for (int length = 1; length <= problem.chain.cuts; ++length)
            for (int start = 0; start + length <= problem.chain.cuts; ++start) {
                double& least = least_ratio_[problem.index(start, start + length)];
                least = sums.bytes_per_mac(start, start + length);
                if (length > 1)
                    least = std::min({least, least_ratio_[problem.index(start + 1, start + length)],
                                      least_ratio_[problem.index(start, start + length - 1)]});
            }
        rate_ = sums.least_rate(sets_.all);
        for (int cut = 1; cut <= problem.chain.cuts; ++cut) least_wait_[cut] = problem.least_hand(cut);
    }

    // Computing and sending are one sum.
    bool summed() const { return problem_.alone() && !problem_.network.shared; }
    bool limited() const { return aims_.latency_limit < kNever; }

    void take(Blocks blocks) { stages_of_ = blocks, several_ = blocks != Blocks::one; }
    // From here on offers are the least sums, whatever the network.
    void take_latency() { by_latency_ = true; }
    void at(double period) {
        if (period != bounded_at_) sums_.forget_bounds();
        bounded_at_ = period_ = period;
    }
    const std::vector<bool>& kinds() const { return kinds_; }
    bool full(int) const { return false; }

    double need(int start, int stop) const {
        const double wait = least_wait_[start], left = budget(wait), macs = problem_.macs(start, stop);
        if (left <= 0) return macs > 0 || left < 0 ? kNever : 0;
        if (macs <= fastest_ * left) return macs / left;
        const double ratio = seconds_per_mac(start, stop);
        if (problem_.network.overlap) {
            const bool heard = problem_.network.shared || ratio * (macs - fastest_ * left) <= (period_ - wait) * kLoose;
            return heard ? macs / left : kNever;
        }
        if (ratio * fastest_ >= 1 || left <= ratio * macs) return kNever;
        return macs * (1 - ratio * fastest_) / (left - ratio * macs);
    }

    double medium(int start, int stop) const { return by_latency_ ? 0 : sent(start, stop, fastest_); }

    StageOffer least(const SetStage& stage) const {
        const double macs = problem_.macs(stage.start, stage.stop), left = budget(stage.before);
        double sum = macs / sets_.speed[stage.set];
        if (!several_) sum = sums_.sum_bound(stage.start, stage.stop, stage.set, stage.leader);
        if (sum > left * kLoose && (!several_ || stage.stop - stage.start < 2) && !problem_.network.overlap) return {};
        const bool shared = problem_.network.shared && !by_latency_;
        return {shared ? stage.before + sent(stage.start, stage.stop, sets_.fastest[stage.set]) : 0,
                limited() || by_latency_ ? sum * (1 - 1e-9) + stage.before : 0};
    }

    void offers(const SetStage& stage, std::vector<StageOffer>& list) {
        if (by_latency_ || (limited() && summed()))
            offer_sum(stage, list);
        else if (summed())
            offer_within(stage, list);
        else if (limited())
            offer_trades(stage, list);
        else
            offer_sending(stage, list);
    }

    // Works out a stage of several blocks that was only bounded. Whether the bound was too low.
    bool learn(const SetStage& stage) {
        const auto* bounds = trades_.learn(stage.start, stage.stop, stage.set, stage.leader, budget(stage.before));
        return bounds && bounds->lower > stage.limit * kLoose;
    }

    // The stage of several blocks that is known to send least within the period; null: none is.
    const StageTrades::Way* way_of(const SetStage& stage) const {
        const auto* bounds = trades_.known(stage.start, stage.stop, stage.set, stage.leader, budget(stage.before));
        return bounds ? &bounds->way : nullptr;
    }

private:
    static constexpr double kLoose = 1 + 1e-9;
    // Budgets in [low, high] have the same least communication, had within `limit` of computing.
    struct Step {
        double low = 1, high = 0, transfer = 0, limit = 0;
    };
    // The bound on what several blocks send within a budget, if less than `transfer`.
    struct SumBound {
        double left = -1, transfer = -1, bound = 0;
    };

    const LoadProblem& problem_;
    const DeviceSets& sets_;
    const RoundAims aims_;
    BlockSums& sums_;
    StageTrades trades_;
    std::vector<std::vector<std::array<Step, 2>>> steps_;  // by set and leader, segment: the last two
    std::vector<std::vector<SumBound>> sum_bounds_;        // by set and leader, segment
    std::vector<double> least_ratio_;                      // by segment: bytes a MAC of any block in it, at least
    std::vector<double> least_wait_;                       // by cut: for the input, between any two devices
    const std::vector<bool> kinds_{false};
    double period_ = 0, fastest_ = 0, rate_ = 0, bounded_at_ = -1;
    Blocks stages_of_ = Blocks::one;
    bool several_ = false, by_latency_ = false;

    // What a stage's computing may take, with its communication or without it.
    double budget(double wait) const { return problem_.network.overlap ? period_ : period_ - wait; }
    bool divisible(const SetStage& stage) const {
        return several_ && stage.stop - stage.start > 1 && sets_.members[stage.set].size() > 1;
    }

    // Of the segment as one block or, with several, of any block in it, at least.
    double seconds_per_mac(int start, int stop) const {
        return rate_ * (several_ ? least_ratio_[problem_.index(start, stop)] : sums_.bytes_per_mac(start, stop));
    }

    // Seconds that a stage sends at least, led by a device of this speed.
    double sent(int start, int stop, double leader) const {
        if (!problem_.network.shared) return 0;
        return seconds_per_mac(start, stop) *
               std::max(0.0, problem_.macs(start, stop) - leader * budget(least_wait_[start]));
    }

    // The least sum of one block or several.
    void offer_sum(const SetStage& stage, std::vector<StageOffer>& list) {
        const double cutoff =
            std::min(by_latency_ ? kNever : budget(stage.before) * kAbout, aims_.latency_limit * kLoose - stage.before);
        StageOffer best;
        const auto sum = sums_.least_sum(stage.start, stage.stop, stage.set, stage.leader, cutoff);
        if (sum.value < cutoff) best = {0, sum.value, kAnyLeader, false, sum.limit};
        if (divisible(stage)) {
            const double below = best.load == kNever ? cutoff : best.latency;
            int leader = stage.leader;
            const double value = sums_.several(stage.start, stage.stop, stage.set, leader, below, nullptr);
            if (value < below) best = {0, value, leader, true, below};
        }
        best.latency += stage.before;
        if (best.load < kNever) list.push_back(best);
    }

    // Whether the sum of one block or several is within the period.
    void offer_within(const SetStage& stage, std::vector<StageOffer>& list) {
        const double left = budget(stage.before);
        const auto [start, stop, set, leader] = std::tuple(stage.start, stage.stop, stage.set, stage.leader);
        if (sums_.sum_bound(start, stop, set, leader) <= left * kLoose &&
            sums_.sum_within(start, stop, set, leader, left) < kNever) {
            list.push_back({0});
            return;
        }
        if (!divisible(stage) || sums_.several_bound(start, stop, set, leader) > left) return;
        int leads = leader;
        if (sums_.several(start, stop, set, leads, left, nullptr) < kNever)
            list.push_back({.load = 0, .several = true});
    }

    // The least that a stage of one block or several sends within the period.
    void offer_sending(const SetStage& stage, std::vector<StageOffer>& list) {
        const double left = budget(stage.before), room = period_ - stage.before;
        const Step step = least_sending(stage, left);
        StageOffer offer{.load = step.transfer, .limit = step.limit};
        if (divisible(stage) && step.transfer > 0) {
            const double other = sent_by_several(stage, left, std::min(step.transfer, room));
            if (other < step.transfer * kBelow) offer = {.load = other, .several = true, .limit = other};
        }
        if (!problem_.network.shared)
            offer.load = offer.load <= room * kAbout ? 0 : kNever;
        else
            offer.load += stage.before;
        if (offer.load < kNever) list.push_back(offer);
    }

    // The least that a stage of one block sends, and its least sum: by latency.
    void offer_trades(const SetStage& stage, std::vector<StageOffer>& list) {
        const double left = budget(stage.before), room = period_ - stage.before;
        Division division;
        const auto offer = [&](double limit) {
            const double transfer =
                sums_.least_transfer(stage.start, stage.stop, stage.set, stage.leader, limit, &division);
            if (transfer == kNever) return;
            list.push_back({.load = problem_.network.shared ? transfer + stage.before : 0,
                            .latency = division.longest + transfer + stage.before,
                            .limit = limit});
        };
        if (problem_.network.shared)
            if (const Step step = least_sending(stage, left); step.transfer < kNever) offer(step.limit);
        double limit = kNever;
        BlockSums::Weighing asked;
        if (problem_.network.overlap)
            asked.longest = left * kAbout, asked.most = problem_.network.shared ? kNever : room * kAbout;
        else
            asked.cutoff = left * kAbout;
        const double sum = sums_.lightest(stage.start, stage.stop, stage.set, stage.leader, asked, limit);
        if (sum < asked.cutoff) offer(limit);
    }

    // The least that one block sends within a budget for computing (without overlap: and sending), remembered: it is a
    // step function of the budget.
    Step least_sending(const SetStage& stage, double left) {
        auto& line = steps_[sets_.led(stage.set, stage.leader)];
        if (line.empty()) line.resize(problem_.chain.segments.size());
        auto& recent = line[problem_.index(stage.start, stage.stop)];
        for (const Step& step : recent)
            if (step.low <= left && left <= step.high) return step;
        std::swap(recent[0], recent[1]);
        return recent[0] = worked_out(stage, left);
    }

    Step worked_out(const SetStage& stage, double left) {
        Division division;
        double limit = left;
        if (problem_.network.overlap) {
            const double transfer = sums_.out_of_time() ? kNever
                                                        : sums_.least_transfer(stage.start, stage.stop, stage.set,
                                                                               stage.leader, left, &division);
            if (transfer < kNever) return {std::min(division.longest, left), left, transfer, left};
        } else if (sums_.largest_within(stage.start, stage.stop, stage.set, stage.leader, left, limit, division)) {
            return {std::min(division.longest + division.transfer, left), left, division.transfer, limit};
        }
        if (!sums_.stopped()) return {0, left, kNever, 0};
        return {1, 0, kNever, 0};
    }

    // What a stage of several blocks sends within the budget, at least or as known; only below `transfer` does it
    // matter.
    double sent_by_several(const SetStage& stage, double left, double transfer) {
        if (stages_of_ == Blocks::existing) {
            const auto* bounds = trades_.known(stage.start, stage.stop, stage.set, stage.leader, left);
            return bounds ? bounds->upper : kNever;
        }
        const double least = trades_.lower(stage.start, stage.stop, stage.set, stage.leader, left);
        return least >= transfer ? kNever : std::max(least, several_bound(stage, left, transfer));
    }

    // No stage of several blocks within the budget sends less, if it sends less than `transfer`: computing and sending
    // together take it the least sum of several blocks, and computing alone no more than the budget.
    double several_bound(const SetStage& stage, double left, double transfer) {
        auto& line = sum_bounds_[sets_.led(stage.set, stage.leader)];
        if (line.empty()) line.resize(problem_.chain.segments.size());
        auto& sum = line[problem_.index(stage.start, stage.stop)];
        if (sum.left != left || sum.transfer != transfer) sum = {left, transfer, bound_by_sum(stage, left, transfer)};
        return sum.bound;
    }

    double bound_by_sum(const SetStage& stage, double left, double transfer) {
        const double together = (problem_.network.overlap ? left + transfer : left) * kLoose;
        if (sums_.several_bound(stage.start, stage.stop, stage.set, stage.leader) > together) return kNever;
        const double sum = sums_.several_led(stage.start, stage.stop, stage.set, stage.leader, together);
        const double least = sent(stage.start, stage.stop, sets_.fastest[stage.set]);
        return sum == kNever ? kNever : problem_.network.overlap ? std::max(least, sum - left) : least;
    }
};

}  // namespace downset
