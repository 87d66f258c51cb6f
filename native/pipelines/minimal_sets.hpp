// Whether a pipeline exists with every stage (and the medium) within a period.
//
// A stage that more devices can run within the period, fewer may as well: of the sets that can run a segment only those
// matter that no smaller one matches in what it sends. So for every cut the search keeps the multisets of devices used
// to get there, on a shared network with the seconds the medium was busy, and only those that no other beats in both.
// Sets are tried in order of speed, from what the MACs and the bytes per MAC of the segment need at least, to what the
// devices used before and the need of the units behind leave. Where links differ from pair to pair, all this is asked
// of each leader by itself, and kept for each device that leads the stage in front of the cut (its head).
#pragma once

#include <numeric>

#include "pipelines/planned_stage.hpp"
#include "pipelines/sending.hpp"
#include "pipelines/trades.hpp"
#include "pipelines/unbeaten.hpp"

namespace downset {

class MinimalSets {
public:
    // What a stage may be: one block; several (where computing and sending are not summed: as far as bounds tell, so
    // that what is found need not exist, but where nothing is found nothing does); or several as known to exist.
    enum class Blocks { one, several, existing };

    MinimalSets(const PipelineProblem& problem, const DeviceSets& sets, PipelineBlocks& blocks)
        : problem_(problem), sets_(sets), blocks_(blocks), steps_(problem, sets, blocks),
          trades_(problem, sets, blocks), heads_(problem.network.uniform ? 1 : problem.device_count()),
          sums_(sets.led_count), least_ratio_(problem.chain.segments.size(), 0.0),
          least_wait_(problem.chain.cuts + 1, kNever) {
        for (int set = 1; set < sets.count; ++set) by_speed_.push_back(set);
        std::stable_sort(by_speed_.begin(), by_speed_.end(),
                         [&](int a, int b) { return sets.speed[a] < sets.speed[b]; });
        for (int set : by_speed_) speeds_.push_back(sets.speed[set]);
        for (int length = 1; length <= problem.chain.cuts; ++length)
            for (int start = 0; start + length <= problem.chain.cuts; ++start) {
                const int segment = problem.index(start, start + length);
                least_ratio_[segment] = blocks.bytes_per_mac(start, start + length);
                if (length > 1)
                    least_ratio_[segment] =
                        std::min({least_ratio_[segment], least_ratio_[problem.index(start + 1, start + length)],
                                  least_ratio_[problem.index(start, start + length - 1)]});
            }
        std::vector<int> devices(problem.speed.size());
        std::iota(devices.begin(), devices.end(), 0);
        rate_ = problem.least_rate(devices, kAnyLeader);
        for (int cut = 0; cut <= problem.chain.cuts; ++cut)
            for (int from : devices)
                for (int to : devices)
                    if (from != to || devices.size() == 1)
                        least_wait_[cut] = std::min(least_wait_[cut], problem.hand_over(cut, from, to));
    }

    // The stages of a pipeline within the period, none if there is none (or the time is up).
    std::vector<PlannedStage> within(double period, Blocks stages_of, std::int64_t last_state = INT64_MAX) {
        if (period != bounded_at_) blocks_.forget_bounds();
        bounded_at_ = period_ = period, stages_of_ = stages_of, several_ = stages_of != Blocks::one, given_up_ = false;
        measure_rest();
        const int cuts = problem_.chain.cuts;
        labels_.assign(1, {0, 0, -1, {}});
        Reached reached(cuts + 1, std::vector<std::vector<int>>(heads_));
        reached[0][0] = {0};
        if (rest_speed_[0] > sets_.speed[sets_.all] * kLoose || rest_medium_[0] > medium_limit()) return {};
        for (int cut = 0; cut < cuts; ++cut) {
            double least_used = kNever;
            for (const auto& behind : reached[cut])
                for (int label : behind) least_used = std::min(least_used, sets_.speed[labels_[label].used]);
            for (int stop = cut + 1; stop <= cuts; ++stop) {
                const double ceiling = (sets_.speed[sets_.all] - least_used - rest_speed_[stop]) * kLoose;
                const double floor = need(cut, stop);
                if (floor <= ceiling) extend(cut, stop, floor / kLoose, ceiling, reached);
                given_up_ = blocks_.states() > last_state;
                if (blocks_.stopped() || given_up_) return {};
            }
        }
        int best = -1;
        const auto rank = [&](int label) { return std::pair(labels_[label].medium, sets_.speed[labels_[label].used]); };
        for (const auto& last : reached[cuts])
            for (int label : last)
                if (best < 0 || rank(label) < rank(best)) best = label;
        if (best < 0) return {};
        std::vector<PlannedStage> stages;
        for (; labels_[best].parent >= 0; best = labels_[best].parent) stages.push_back(labels_[best].stage);
        std::reverse(stages.begin(), stages.end());
        return stages;
    }

    // Whether the last search ended at its last state.
    bool given_up() const { return given_up_; }

    // The computing limit within which a stage sends least, as found by a search within this period.
    double limit_of(const PlannedStage& stage, double period) {
        period_ = period;
        return steps_.least(stage.start, stage.stop, stage.set, stage.leader, budget(stage.wait)).limit;
    }

    // Works out a stage of several blocks that was only bounded. Whether the bound was too low.
    bool learn(const PlannedStage& stage, double period) {
        period_ = period;
        const auto* bounds = trades_.learn(stage.start, stage.stop, stage.set, stage.leader, budget(stage.wait));
        return bounds && bounds->lower > stage.limit * kLoose;
    }

    // The stage of several blocks that is known to send least within the period; null: none is.
    const StageTrades::Way* way_of(const PlannedStage& stage, double period) {
        period_ = period;
        const auto* bounds = trades_.known(stage.start, stage.stop, stage.set, stage.leader, budget(stage.wait));
        return bounds ? &bounds->way : nullptr;
    }

private:
    static constexpr double kLoose = 1 + 1e-9;
    struct Label {
        int used;
        double medium;
        int parent;
        PlannedStage stage{};
    };
    // The bound on what several blocks send within a budget, if less than `transfer`.
    struct SumBound {
        double left = -1, transfer = -1, bound = 0;
    };
    // A set that can run the segment, led by this device (-1: by any) and waiting so long for its input.
    struct Found {
        int set, leader;
        double wait, cost;
    };
    using Reached = std::vector<std::vector<std::vector<int>>>;  // labels, by cut and head

    const PipelineProblem& problem_;
    const DeviceSets& sets_;
    PipelineBlocks& blocks_;
    BlockSending steps_;
    StageTrades trades_;
    int heads_;
    double period_ = 0, rate_ = 0, bounded_at_ = -1;
    Blocks stages_of_ = Blocks::one;
    bool several_ = false, given_up_ = false;
    std::vector<int> by_speed_;
    std::vector<double> speeds_;
    std::vector<std::vector<SumBound>> sums_;       // by set and leader, segment
    std::vector<double> least_ratio_;               // by segment: bytes a MAC of any block in it, at least
    std::vector<double> least_wait_;                // by cut: for the input, between any two devices
    std::vector<double> rest_speed_, rest_medium_;  // by cut: what the units behind it need at least
    std::vector<Label> labels_;
    std::vector<Found> found_;

    double medium_limit() const { return problem_.network.shared ? period_ * kAbout : kNever; }
    // What a stage's computing may take, with its communication or without it.
    double budget(double wait) const { return problem_.network.overlap ? period_ : period_ - wait; }

    // Of the segment as one block or, with several, of any block in it, at least.
    double seconds_per_mac(int start, int stop) const {
        return rate_ * (several_ ? least_ratio_[problem_.index(start, stop)] : blocks_.bytes_per_mac(start, stop));
    }

    // The least speed of devices that can run units [start, stop) within the period; no set below it can.
    double need(int start, int stop) const {
        const double wait = least_wait_[start], left = budget(wait);
        const double macs = problem_.macs(start, stop), fastest = problem_.speed[0];
        if (left <= 0) return macs > 0 || left < 0 ? kNever : 0;
        if (macs <= fastest * left) return macs / left;
        const double ratio = seconds_per_mac(start, stop);
        if (problem_.network.overlap) {
            const bool heard = problem_.network.shared || ratio * (macs - fastest * left) <= (period_ - wait) * kLoose;
            return heard ? macs / left : kNever;
        }
        if (ratio * fastest >= 1 || left <= ratio * macs) return kNever;
        return macs * (1 - ratio * fastest) / (left - ratio * macs);
    }

    void measure_rest() {
        rest_speed_.assign(problem_.chain.cuts + 1, kNever), rest_medium_.assign(problem_.chain.cuts + 1, kNever);
        rest_speed_.back() = rest_medium_.back() = 0;
        for (int cut = problem_.chain.cuts - 1; cut >= 0; --cut)
            for (int stop = cut + 1; stop <= problem_.chain.cuts; ++stop) {
                rest_speed_[cut] = std::min(rest_speed_[cut], need(cut, stop) + rest_speed_[stop]);
                if (problem_.network.shared)
                    rest_medium_[cut] = std::min(
                        rest_medium_[cut], least_wait_[cut] + sent(cut, stop, problem_.speed[0]) + rest_medium_[stop]);
                else
                    rest_medium_[cut] = 0;
            }
    }

    // Seconds that a stage sends at least, led by a device of this speed.
    double sent(int start, int stop, double leader) const {
        if (!problem_.network.shared) return 0;
        return seconds_per_mac(start, stop) *
               std::max(0.0, problem_.macs(start, stop) - leader * budget(least_wait_[start]));
    }

    void extend(int cut, int stop, double floor, double ceiling, Reached& reached) {
        found_.clear();
        auto place = std::lower_bound(speeds_.begin(), speeds_.end(), floor) - speeds_.begin();
        for (; place < static_cast<std::ptrdiff_t>(speeds_.size()) && speeds_[place] <= ceiling; ++place) {
            const int set = by_speed_[place];
            if (!blocks_.allowed(cut, stop, set)) continue;
            if (problem_.network.uniform) extend_by(cut, 0, stop, set, kAnyLeader, reached);
            for (int leader = 0; !problem_.network.uniform && leader < static_cast<int>(sets_.members[set].size());
                 ++leader)
                for (int head = 0; head < heads_; ++head) extend_by(cut, head, stop, set, leader, reached);
            if (blocks_.stopped()) return;
        }
    }

    void extend_by(int cut, int head, int stop, int set, int leader, Reached& reached) {
        const int device = sets_.device(set, leader);
        const double wait = problem_.network.uniform ? least_wait_[cut] : problem_.hand_over(cut, head, device);
        double cheapest = kNever;
        for (const Found& smaller : found_)
            if (smaller.cost < cheapest && smaller.leader == device && smaller.wait >= wait && smaller.set != set &&
                sets_.within(smaller.set, set))
                cheapest = smaller.cost;
        const double least = sent(cut, stop, sets_.fastest[set]);
        if (least >= cheapest || !wanted(reached[cut][head], stop, set, wait + least)) return;
        bool several = false;
        double sending = 0;
        const double cost = cost_of(cut, stop, set, leader, wait, several, sending);
        if (cost >= cheapest || blocks_.stopped()) return;
        found_.push_back({set, device, wait, cost});
        for (int parent : reached[cut][head]) {
            const Label before = labels_[parent];
            if (!fits(before, stop, set, cost + wait)) continue;
            insert(reached[stop][problem_.network.uniform ? 0 : device],
                   {before.used + set,
                    before.medium + (problem_.network.shared ? cost + wait : 0),
                    parent,
                    {cut, stop, set, before.used, leader, sending, several, wait}});
        }
    }

    bool fits(const Label& before, int stop, int set, double cost) const {
        return sets_.disjoint(before.used, set) &&
               sets_.speed[before.used] + sets_.speed[set] + rest_speed_[stop] <= sets_.speed[sets_.all] * kLoose &&
               (!problem_.network.shared || before.medium + cost + rest_medium_[stop] <= medium_limit() * kLoose);
    }

    bool wanted(const std::vector<int>& labels, int stop, int set, double cost) const {
        return std::any_of(labels.begin(), labels.end(),
                           [&](int label) { return fits(labels_[label], stop, set, cost); });
    }

    void insert(std::vector<int>& labels, const Label& label) {
        const auto beats = [&](const Label& a, const Label& b) {
            return a.medium <= b.medium && sets_.within(a.used, b.used);
        };
        keep_unbeaten(labels_, labels, label, beats);
    }

    // Seconds of communication inside a stage on a shared network, 0 on links; infinite where the period is too short.
    double cost_of(int start, int stop, int set, int leader, double wait, bool& several, double& transfer) {
        if (problem_.summed()) {
            const double left = period_ - wait;
            if (blocks_.sum_bound(start, stop, set, leader) <= left * kLoose &&
                blocks_.sum_within(start, stop, set, leader, left) < kNever)
                return 0;
            if (!several_ || sets_.members[set].size() < 2 || stop - start < 2) return kNever;
            if (blocks_.several_bound(start, stop, set, leader) > left) return kNever;
            int leads = leader;
            several = blocks_.several(start, stop, set, leads, left, nullptr) < kNever;
            return several ? 0 : kNever;
        }
        transfer = steps_.least(start, stop, set, leader, budget(wait)).transfer;
        if (several_ && stop - start > 1 && transfer > 0 && sets_.members[set].size() > 1) {
            const double other =
                sent_by_several(start, stop, set, leader, budget(wait), std::min(transfer, period_ - wait));
            several = other < transfer * kBelow;
            if (several) transfer = other;
        }
        if (problem_.network.shared) return transfer;
        return transfer <= (period_ - wait) * kAbout ? 0 : kNever;
    }

    // No stage of several blocks within the budget sends less, if it sends less than `transfer`: computing and sending
    // together take it the least sum of several blocks, and computing alone no more than the budget.
    double several_bound(int start, int stop, int set, int leader, double left, double transfer) {
        auto& line = sums_[sets_.led(set, leader)];
        if (line.empty()) line.resize(problem_.chain.segments.size());
        auto& sum = line[problem_.index(start, stop)];
        if (sum.left != left || sum.transfer != transfer)
            sum = {left, transfer, bound_by_sum(start, stop, set, leader, left, transfer)};
        return sum.bound;
    }

    double bound_by_sum(int start, int stop, int set, int leader, double left, double transfer) {
        const double together = problem_.network.overlap ? left + transfer : left;
        if (blocks_.several_bound(start, stop, set, leader) > together * kLoose) return kNever;
        const double sum = blocks_.several_led(start, stop, set, leader, together * kLoose);
        const double least = sent(start, stop, sets_.fastest[set]);
        return sum == kNever ? kNever : problem_.network.overlap ? std::max(least, sum - left) : least;
    }

    // What a stage of several blocks sends within the budget, at least or as known; only below `transfer` does it
    // matter.
    double sent_by_several(int start, int stop, int set, int leader, double left, double transfer) {
        if (stages_of_ == Blocks::existing) {
            const auto* bounds = trades_.known(start, stop, set, leader, left);
            return bounds ? bounds->upper : kNever;
        }
        const double least = trades_.lower(start, stop, set, leader, left);
        return least >= transfer ? kNever : std::max(least, several_bound(start, stop, set, leader, left, transfer));
    }
};

}  // namespace downset
