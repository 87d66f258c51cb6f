// Pipelines under a latency limit: labels by (devices used, cut, last leader), each a trade of
// period, seconds of the medium and latency that no other beats.
#pragma once

#include <unordered_map>

#include "pipelines/planned_stage.hpp"

namespace downset {

class PipelineLabels {
public:
    PipelineLabels(const PipelineProblem& problem, const DeviceSets& sets, PipelineBlocks& blocks, bool by_latency)
        : problem_(problem), sets_(sets), blocks_(blocks), by_latency_(by_latency), count_(problem.device_count()),
          heads_(problem.network.uniform ? 1 : count_) {}

    // One search for plans with every stage (and the medium) within `limit`. On links: the least period below it.
    std::pair<double, std::vector<PipelineStage>> pass(double limit, bool several) {
        limit_ = limit, several_ = several;
        const int cuts = problem_.chain.cuts, count = sets_.count;
        labels_.assign(1, {});
        labels_[0].parent = -1;
        slots_.assign(static_cast<std::size_t>(count) * (cuts + 1) * heads_, {});
        slot(0, 0, 0).push_back(0);
        const double slack = limit * (1 + 1e-9), together = sets_.speed[sets_.all];
        for (int used = 0; used < count; ++used)
            for (int cut = 0; cut < cuts; ++cut) {
                bool any = false;
                for (int head = 0; head < heads_; ++head) any |= !slot(used, cut, head).empty();
                if (!any) continue;
                if (problem_.macs(cut, cuts) > slack * (together - sets_.speed[used]) + 1) continue;
                for (int set = 1; set < count; ++set) {
                    if (!sets_.disjoint(set, used)) continue;
                    const double left = std::max(0.0, together - sets_.speed[used] - sets_.speed[set]);
                    for (int stop = cut + 1; stop <= cuts; ++stop) {
                        if (problem_.macs(cut, stop) > slack * sets_.speed[set] + 1) break;
                        if (stop < cuts && problem_.macs(stop, cuts) > slack * left + 1) continue;
                        if (!blocks_.allowed(cut, stop, set)) continue;
                        if (blocks_.out_of_time()) return {kNever, {}};
                        expand(used, cut, set, stop);
                        if (blocks_.stopped()) return {kNever, {}};
                    }
                }
            }
        int best = -1;
        for (int used = 0; used < count; ++used)
            for (int head = 0; head < heads_; ++head)
                for (int index : slot(used, cuts, head))
                    if (best < 0 || key(labels_[index]) < key(labels_[best])) best = index;
        if (best < 0) return {kNever, {}};
        const double period = std::max(labels_[best].period, problem_.network.shared ? labels_[best].medium : 0.0);
        std::vector<PipelineStage> stages;
        for (; labels_[best].parent >= 0; best = labels_[best].parent)
            stages.push_back(rows_of(sets_, blocks_, labels_[best].stage));
        std::reverse(stages.begin(), stages.end());
        return {period, std::move(stages)};
    }

private:
    static constexpr double kLoose = 1 + 1e-9;
    struct Label {
        double period = 0, medium = 0, latency = 0;
        int parent = -1;
        PlannedStage stage{};
    };
    struct Choice {
        double compute = kNever, transfer = kNever, limit = kNever;
        int leader = kAnyLeader;
        bool several = false;
    };

    const PipelineProblem& problem_;
    const DeviceSets& sets_;
    PipelineBlocks& blocks_;
    bool by_latency_, several_ = false;
    int count_, heads_;
    double limit_ = kNever;
    std::vector<Label> labels_;
    std::vector<std::vector<int>> slots_;
    std::unordered_map<std::int64_t, std::vector<Choice>> ways_;
    std::vector<Choice> scratch_;

    std::vector<int>& slot(int used, int cut, int head) {
        return slots_[(static_cast<std::size_t>(used) * (problem_.chain.cuts + 1) + cut) * heads_ + head];
    }

    double key(const Label& label) const {
        if (by_latency_) return label.latency;
        return std::max(label.period, problem_.network.shared ? label.medium : 0.0);
    }

    // Ways to run units [start, stop) on the set under the leader, every one within the limits.
    void choices(int start, int stop, int set, int leader, double hand, double limit, std::vector<Choice>& options) {
        if (problem_.summed() || by_latency_) {
            Choice best;
            const double cutoff = std::min(limit, problem_.latency_limit * kLoose) - hand;
            const auto sum = blocks_.least_sum(start, stop, set, leader, cutoff);
            if (sum.value < cutoff) best = {sum.value, 0, sum.limit, leader, false};
            if (several_ && sets_.members[set].size() > 1 && stop - start > 1) {
                const double least = std::min(cutoff, best.compute);
                int leads = leader;
                const double value = blocks_.several(start, stop, set, leads, least, nullptr);
                if (value < least) best = {value, 0, least, leads, true};
            }
            if (best.compute < kNever) options.push_back(best);
            return;
        }
        Division division;
        const auto transfer_at = [&](double trial) {
            return blocks_.least_transfer(start, stop, set, leader, trial, &division);
        };
        const auto offer = [&](double trial) {
            const double transfer = transfer_at(trial);
            if (transfer == kNever) return;
            const double whole = problem_.network.overlap ? std::max(division.longest, transfer + hand)
                                                          : division.longest + transfer + hand;
            if (whole <= limit * kAbout) options.push_back({division.longest, transfer, trial, leader, false});
        };
        if (problem_.network.overlap && problem_.network.shared) {
            offer(limit);
        } else if (problem_.network.overlap) {
            double most = limit;
            if (most == kNever) most = problem_.segment(start, stop).macs.final[0] / sets_.fastest[set] + hand + 1;
            const auto [low, high] = blocks_.around_crossing(start, stop, set, leader, most, hand);
            offer(high);
            offer(low);
        } else {  // the largest T with T + C(T) + hand within the limit has the least C
            const auto sum = blocks_.least_sum(start, stop, set, leader, limit * kAbout - hand);
            if (sum.value == kNever) return;
            double low = sum.limit, high = limit - hand;
            offer(low);
            for (int i = 0; i < 60 && low < high * kBelow; ++i) {
                const double middle = (low + high) / 2;
                const double transfer = transfer_at(middle);
                if (division.longest + transfer + hand <= limit)
                    low = middle;
                else
                    high = middle;
            }
            offer(low);
        }
        if (problem_.latency_limit < kNever) {
            const auto sum = blocks_.least_sum(start, stop, set, leader, kNever);
            if (sum.value < kNever) offer(sum.limit);
        }
    }

    // All ways to run a segment on a set within the limit. Where all pairs of devices are alike they do not depend on
    // the stage before, and are worked out once a pass.
    const std::vector<Choice>& ways(int cut, int stop, int set, int head) {
        if (!problem_.network.uniform) {
            scratch_.clear();
            const auto& devices = sets_.members[set];
            for (int leader = 0; leader < static_cast<int>(devices.size()); ++leader)
                choices(cut, stop, set, leader, problem_.hand_over(cut, head, devices[leader]), limit_, scratch_);
            return scratch_;
        }
        const auto [entry, fresh] =
            ways_.try_emplace(static_cast<std::int64_t>(problem_.index(cut, stop)) * sets_.count + set);
        if (fresh) choices(cut, stop, set, kAnyLeader, problem_.hand_over(cut, 0, 1), limit_, entry->second);
        return entry->second;
    }

    void expand(int used, int cut, int set, int stop) {
        const auto& devices = sets_.members[set];
        // Whatever runs the units behind takes them at least so long.
        const double left = sets_.speed[sets_.all] - sets_.speed[used] - sets_.speed[set];
        const double rest = stop < problem_.chain.cuts
                                ? problem_.macs(stop, problem_.chain.cuts) / std::max(left, 1e-300) * (1 - 1e-9)
                                : 0;
        for (int head = 0; head < heads_; ++head) {
            if (slot(used, cut, head).empty()) continue;
            for (const Choice& choice : ways(cut, stop, set, head)) {
                const int device = choice.leader == kAnyLeader ? devices[0] : devices[choice.leader];
                const double transfer = choice.transfer + problem_.hand_over(cut, head, device);
                const double whole =
                    problem_.network.overlap ? std::max(choice.compute, transfer) : choice.compute + transfer;
                auto& target = slot(used + set, stop, problem_.network.uniform ? 0 : device);
                for (int parent : slot(used, cut, head)) {
                    const Label& before = labels_[parent];
                    const Label label{std::max(before.period, whole),
                                      before.medium + transfer,
                                      before.latency + choice.compute + transfer,
                                      parent,
                                      {cut, stop, set, used, choice.leader, choice.limit, choice.several}};
                    if (label.latency + rest > problem_.latency_limit * kAbout) continue;
                    if (problem_.network.shared && !by_latency_ && label.medium > limit_ * kAbout) continue;
                    insert(target, label);
                }
            }
        }
    }

    bool covers(const Label& a, const Label& b) const {
        if (by_latency_) return a.latency <= b.latency;
        if (problem_.latency_limit < kNever && a.latency > b.latency) return false;
        if (problem_.network.shared) return a.medium <= b.medium;
        return a.period <= b.period;
    }

    void insert(std::vector<int>& labels, const Label& label) {
        for (int index : labels)
            if (covers(labels_[index], label)) return;
        std::erase_if(labels, [&](int index) { return covers(label, labels_[index]); });
        labels.push_back(static_cast<int>(labels_.size()));
        labels_.push_back(label);
    }
};

}  // namespace downset
