// Whether a pipeline exists with every stage (and the medium) within a period, where all pairs of devices are alike.
//
// A stage that more devices can run within the period, fewer may as well: of the sets that can run a segment only those
// matter that no smaller one matches in what it sends. So for every cut the search keeps the multisets of devices used
// to get there, on a shared network with the seconds the medium was busy, and only those that no other beats in both.
// Sets are tried in order of speed, from what the MACs and the bytes per MAC of the segment need at least, to what the
// devices used before and the need of the units behind leave.
#pragma once

#include <array>

#include "pipeline_blocks.hpp"

namespace downset {

struct StageChoice {
    int start = 0, stop = 0, set = 0, used = 0;
    bool several = false;
};

class MinimalSets {
  public:
    MinimalSets(const PipelineProblem& problem, const DeviceSets& sets, PipelineBlocks& blocks)
        : problem_(problem), sets_(sets), blocks_(blocks), steps_(problem.segments.size()),
          ratio_(problem.segments.size(), 0.0), least_ratio_(problem.segments.size(), 0.0) {
        for (int set = 1; set < sets.count; ++set) by_speed_.push_back(set);
        std::stable_sort(by_speed_.begin(), by_speed_.end(), [&](int a, int b) { return sets.speed[a] < sets.speed[b]; });
        for (int set : by_speed_) speeds_.push_back(sets.speed[set]);
        for (int length = 1; length <= problem.cuts; ++length)
            for (int start = 0; start + length <= problem.cuts; ++start) {
                const int at = problem.index(start, start + length);
                ratio_[at] = least_ratio_[at] = blocks.seconds_per_mac(start, start + length);
                if (length > 1)
                    least_ratio_[at] = std::min({ratio_[at], least_ratio_[problem.index(start + 1, start + length)],
                                                 least_ratio_[problem.index(start, start + length - 1)]});
            }
    }

    // The stages of a pipeline within the period, none if there is none (or the time is up). Where computing and
    // communication are not summed, stages of several blocks are only bounded: what is found with them need not exist,
    // but where nothing is found nothing does.
    std::vector<StageChoice> within(double period, bool several, std::int64_t last_state = INT64_MAX) {
        period_ = period, several_ = several, given_up_ = false;
        blocks_.forget_bounds();
        measure_rest();
        const int cuts = problem_.cuts;
        labels_.assign(1, {0, 0, -1, {}});
        std::vector<std::vector<int>> reached(cuts + 1);
        reached[0] = {0};
        if (rest_speed_[0] > sets_.speed[sets_.all] * kLoose || rest_medium_[0] > medium_limit()) return {};
        for (int cut = 0; cut < cuts; ++cut) {
            if (reached[cut].empty()) continue;
            double least_used = kNever;
            for (int label : reached[cut]) least_used = std::min(least_used, sets_.speed[labels_[label].used]);
            for (int stop = cut + 1; stop <= cuts; ++stop) {
                const double ceiling = (sets_.speed[sets_.all] - least_used - rest_speed_[stop]) * kLoose;
                const double floor = need(cut, stop);
                if (floor <= ceiling) extend(cut, stop, floor / kLoose, ceiling, reached);
                given_up_ = blocks_.states() > last_state;
                if (blocks_.stopped() || given_up_) return {};
            }
        }
        if (reached[cuts].empty()) return {};
        int best = reached[cuts][0];
        const auto rank = [&](int label) { return std::pair(labels_[label].medium, sets_.speed[labels_[label].used]); };
        for (int label : reached[cuts])
            if (rank(label) < rank(best)) best = label;
        std::vector<StageChoice> stages;
        for (; labels_[best].parent >= 0; best = labels_[best].parent) stages.push_back(labels_[best].stage);
        std::reverse(stages.begin(), stages.end());
        return stages;
    }

    // Whether the last search ended at its last state.
    bool given_up() const { return given_up_; }

    // The computing limit within which a stage sends least, as found by a search within this period.
    double limit_of(const StageChoice& stage, double period) {
        period_ = period;
        return step_of(stage.start, stage.stop, stage.set).limit;
    }

  private:
    static constexpr double kLoose = 1 + 1e-9;
    struct Label {
        int used;
        double medium;
        int parent;
        StageChoice stage;
    };
    // Budgets in [low, high] have the same least communication, had within `limit` of computing.
    struct Step {
        double low = 1, high = 0, transfer = 0, limit = 0;
    };
    struct Found {
        int set;
        double cost;
    };

    const PipelineProblem& problem_;
    const DeviceSets& sets_;
    PipelineBlocks& blocks_;
    double period_ = 0;
    bool several_ = false, given_up_ = false;
    std::vector<int> by_speed_;
    std::vector<double> speeds_;
    std::vector<std::vector<std::array<Step, 2>>> steps_;  // by segment, set
    std::vector<double> ratio_, least_ratio_;              // by segment: seconds a MAC, of it and of any block in it
    std::vector<double> rest_speed_, rest_medium_;         // by cut: what the units behind it need at least
    std::vector<Label> labels_;
    std::vector<Found> found_;

    double medium_limit() const { return problem_.shared ? period_ * kAbout : kNever; }
    double hand(int cut) const { return problem_.hand_over(cut, 0, 1); }
    // What a stage's computing may take, with its communication or beside it.
    double budget(int cut) const { return problem_.overlap ? period_ : period_ - hand(cut); }

    // The least speed of devices that can run units [start, stop) within the period; no set below it can.
    double need(int start, int stop) const {
        const double macs = problem_.macs(start, stop), left = budget(start), fastest = problem_.speed[0];
        if (left <= 0) return macs > 0 || left < 0 ? kNever : 0;
        if (macs <= fastest * left) return macs / left;
        const double ratio = (several_ ? least_ratio_ : ratio_)[problem_.index(start, stop)];
        if (problem_.overlap) {
            const bool heard = problem_.shared || ratio * (macs - fastest * left) <= (period_ - hand(start)) * kLoose;
            return heard ? macs / left : kNever;
        }
        if (ratio * fastest >= 1 || left <= ratio * macs) return kNever;
        return macs * (1 - ratio * fastest) / (left - ratio * macs);
    }

    void measure_rest() {
        rest_speed_.assign(problem_.cuts + 1, kNever), rest_medium_.assign(problem_.cuts + 1, kNever);
        rest_speed_.back() = rest_medium_.back() = 0;
        for (int cut = problem_.cuts - 1; cut >= 0; --cut)
            for (int stop = cut + 1; stop <= problem_.cuts; ++stop) {
                rest_speed_[cut] = std::min(rest_speed_[cut], need(cut, stop) + rest_speed_[stop]);
                if (problem_.shared)
                    rest_medium_[cut] = std::min(rest_medium_[cut],
                                                 hand(cut) + sent(cut, stop, problem_.speed[0]) + rest_medium_[stop]);
                else
                    rest_medium_[cut] = 0;
            }
    }

    // Seconds that a stage sends at least, led by a device of this speed.
    double sent(int start, int stop, double leader) const {
        if (!problem_.shared) return 0;
        const auto& ratio = several_ ? least_ratio_ : ratio_;
        return ratio[problem_.index(start, stop)] * std::max(0.0, problem_.macs(start, stop) - leader * budget(start));
    }

    bool allowed(int start, int stop, int set) const {
        for (int device : problem_.forbidden[problem_.index(start, stop)])
            for (int member : sets_.members[set])
                if (problem_.type[member] == problem_.type[device]) return false;
        return true;
    }

    void extend(int cut, int stop, double floor, double ceiling, std::vector<std::vector<int>>& reached) {
        found_.clear();
        const double wait = hand(cut);
        auto at = std::lower_bound(speeds_.begin(), speeds_.end(), floor) - speeds_.begin();
        for (; at < static_cast<std::ptrdiff_t>(speeds_.size()) && speeds_[at] <= ceiling; ++at) {
            const int set = by_speed_[at];
            double cheapest = kNever;
            for (const Found& smaller : found_)
                if (smaller.cost < cheapest && sets_.within(smaller.set, set)) cheapest = smaller.cost;
            const double least = sent(cut, stop, sets_.fastest[set]);
            if (least >= cheapest || !wanted(cut, stop, set, wait + least, reached) || !allowed(cut, stop, set)) continue;
            bool several = false;
            const double cost = cost_of(cut, stop, set, several);
            if (blocks_.stopped()) return;
            if (cost >= cheapest) continue;
            found_.push_back({set, cost});
            for (int parent : reached[cut]) {
                const Label before = labels_[parent];
                if (!fits(before, stop, set, cost + wait)) continue;
                insert(reached[stop], {before.used + set, before.medium + (problem_.shared ? cost + wait : 0), parent,
                                       {cut, stop, set, before.used, several}});
            }
        }
    }

    bool fits(const Label& before, int stop, int set, double cost) const {
        return sets_.disjoint(before.used, set) &&
               sets_.speed[before.used] + sets_.speed[set] + rest_speed_[stop] <= sets_.speed[sets_.all] * kLoose &&
               (!problem_.shared || before.medium + cost + rest_medium_[stop] <= medium_limit() * kLoose);
    }

    bool wanted(int cut, int stop, int set, double cost, const std::vector<std::vector<int>>& reached) const {
        return std::any_of(reached[cut].begin(), reached[cut].end(),
                           [&](int label) { return fits(labels_[label], stop, set, cost); });
    }

    void insert(std::vector<int>& labels, const Label& label) {
        const auto beats = [&](const Label& a, const Label& b) { return a.medium <= b.medium && sets_.within(a.used, b.used); };
        for (int index : labels)
            if (beats(labels_[index], label)) return;
        std::erase_if(labels, [&](int index) { return beats(label, labels_[index]); });
        labels.push_back(static_cast<int>(labels_.size()));
        labels_.push_back(label);
    }

    // Seconds of communication inside a stage on a shared network, 0 on links; infinite where the period is too short.
    double cost_of(int start, int stop, int set, bool& several) {
        const double wait = hand(start);
        if (problem_.summed()) {
            const double left = period_ - wait;
            if (blocks_.sum_bound(start, stop, sets_.speed[set], sets_.fastest[set]) <= left * kLoose &&
                blocks_.sum_within(start, stop, set, kAnyLeader, left) < kNever)
                return 0;
            if (!several_ || sets_.members[set].size() < 2 || stop - start < 2) return kNever;
            if (blocks_.several_bound(start, stop, set) > left) return kNever;
            int leader = kAnyLeader;
            several = blocks_.several(start, stop, set, leader, left, nullptr) < kNever;
            return several ? 0 : kNever;
        }
        double transfer = step_of(start, stop, set).transfer;
        if (several_ && stop - start > 1 && transfer > 0 && sets_.members[set].size() > 1)
            transfer = std::min(transfer, several_bound(start, stop, set, std::min(transfer, period_ - wait)));
        if (problem_.shared) return transfer;
        return transfer <= (period_ - wait) * kAbout ? 0 : kNever;
    }

    // No stage of several blocks within the budget sends less, if it sends less than `transfer`: computing and sending
    // together take it the least sum of several blocks, and computing alone no more than the budget.
    double several_bound(int start, int stop, int set, double transfer) {
        const double left = budget(start), together = problem_.overlap ? left + transfer : left;
        if (blocks_.several_bound(start, stop, set) > together * kLoose) return kNever;
        const double sum = blocks_.several_led_freely(start, stop, set, together * kLoose);
        const double least = sent(start, stop, sets_.fastest[set]);
        return sum == kNever ? kNever : problem_.overlap ? std::max(least, sum - left) : least;
    }

    Step step_of(int start, int stop, int set) {
        auto& line = steps_[problem_.index(start, stop)];
        if (line.empty()) line.resize(sets_.count);
        auto& known = line[set];
        const double left = budget(start);
        for (const Step& step : known)
            if (step.low <= left && left <= step.high) return step;
        std::swap(known[0], known[1]);
        return known[0] = worked_out(start, stop, set, left);
    }

    Step worked_out(int start, int stop, int set, double left) {
        Division found;
        double limit = left;
        while (!blocks_.out_of_time()) {
            const double transfer = blocks_.least_transfer(start, stop, set, kAnyLeader, limit, &found);
            if (transfer == kNever) return {0, left, kNever, 0};
            const double taken = problem_.overlap ? found.longest : found.longest + transfer;
            if (taken <= left * kAbout) return {std::min(taken, left), left, transfer, limit};
            const double next = left - transfer;
            if (next >= limit) return {left, left, transfer, limit};  // rounding
            limit = next;
        }
        return {1, 0, kNever, 0};
    }
};

}  // namespace downset
