// Whether a pipeline exists whose stages all have their price within a period: the one search over (cut, devices used).
//
// A larger set of devices is of no use where a smaller one runs the same segment within the period. So of all sets that
// can run a segment, the search takes only those that contain no other. For every cut it keeps labels: the multiset of
// devices used so far, and what the price has added up. On a shared network that is the seconds of the medium; where
// rates differ from pair to pair, it is the device that leads in front of the cut, and its load without what it hands
// on; under a limit on latency, the latency so far. A label is dropped if another one is at least as good in
// everything. Sets are tried in order of speed. The slowest has the speed that the segment needs at least; the fastest
// leaves the units behind the segment the speed that they need.
//
// A price (loads/price.hpp, rounds/price.hpp) says:
//   at(period)              the period of the next questions
//   need(start, stop)       the least speed of devices that can run the units within the period
//   medium(start, stop)     the least seconds of a shared network for them
//   least(stage)            a bound on every offer
//   offers(stage, list)     the ways to run the stage within the period that matter
//   kinds()                 whether leaders may be half duplex, and full duplex
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "deadline.hpp"
#include "pipelines/loads/problem.hpp"

namespace downset {

// The states that a search may visit in its time.
class WorkLimit {
public:
    WorkLimit(double seconds, std::int64_t states) : deadline_(seconds), most_(states) {}

    // Counts a state. Whether the search has to stop.
    bool spend() {
        ++states_;
        if ((states_ & 63) == 0 && deadline_.passed()) stopped_ = true;
        if (states_ > most_) stopped_ = true;
        return stopped_;
    }
    bool passed() {
        if (deadline_.passed() || states_ > most_) stopped_ = true;
        return stopped_;
    }
    bool stopped() const { return stopped_; }
    std::int64_t states() const { return states_; }

private:
    Deadline deadline_;
    std::int64_t most_, states_ = 0;
    bool stopped_ = false;
};

// A stage as found: its devices are those of `set`, behind those of `used`.
struct SetStage {
    int start = 0, stop = 0, set = 0, used = 0, leader = kAnyLeader;
    bool full = false;      // a full duplex leader
    double before = 0;      // seconds, for its input
    bool several = false;   // several blocks
    double limit = kNever;  // on computing; of several blocks: on their sum
};

// A way to run a stage: what it adds to the label's load and latency. An infinite load: none.
struct StageOffer {
    double load = kNever, latency = 0;
    int leader = kAnyLeader;
    bool several = false;
    double limit = kNever;
};

template <class Price>
class SetSearch {
public:
    SetSearch(const LoadProblem& problem, Price& price, WorkLimit& work, double latency_limit = kNever)
        : problem_(problem), sets_(problem.sets), price_(price), work_(work), latency_limit_(latency_limit),
          heads_(problem.network.uniform ? 1 : problem.device_count()), latency_counts_(latency_limit < kNever),
          hand_(problem.chain.cuts + 1) {
        for (int set = 1; set < sets_.count; ++set) by_speed_.push_back(set);
        std::stable_sort(by_speed_.begin(), by_speed_.end(),
                         [&](int a, int b) { return sets_.speed[a] < sets_.speed[b]; });
        for (int set : by_speed_) speeds_.push_back(sets_.speed[set]);
        for (int cut = 1; cut <= problem.chain.cuts; ++cut) hand_[cut] = problem.least_hand(cut);
    }

    // The stages of a pipeline within the period, of least latency if that is limited, else of least load; none if
    // there is none, or if the search stopped or visited `last_state`.
    std::vector<SetStage> within(double period, std::int64_t last_state = INT64_MAX) {
        period_ = period, given_up_ = false;
        if (work_.passed()) return {};
        price_.at(period);
        measure_rest();
        const int cuts = problem_.chain.cuts;
        labels_.assign(1, {});
        Reached reached(cuts + 1, std::vector<std::vector<int>>(heads_));
        reached[0][0] = {0};
        if (rest_speed_[0] > sets_.speed[sets_.all] * kLoose || rest_medium_[0] > medium_limit()) return {};
        for (int cut = 0; cut < cuts; ++cut) {
            double least_used = kNever;
            heads_reached_.clear();
            for (int head = 0; head < heads_; ++head) {
                if (!reached[cut][head].empty()) heads_reached_.push_back(head);
                for (int label : reached[cut][head])
                    least_used = std::min(least_used, sets_.speed[labels_[label].used]);
            }
            if (least_used == kNever) continue;
            for (int stop = cut + 1; stop <= cuts; ++stop) {
                const double ceiling = (sets_.speed[sets_.all] - least_used - rest_speed_[stop]) * kLoose;
                const double floor = price_.need(cut, stop);
                if (floor <= ceiling) extend(cut, stop, floor / kLoose, ceiling, reached);
                given_up_ = work_.states() > last_state;
                if (work_.stopped() || given_up_) return {};
            }
        }
        return path(reached[cuts]);
    }

    // From here on labels differ in latency too.
    void count_latency() { latency_counts_ = true; }

    // Whether the last search ended at its last state.
    bool given_up() const { return given_up_; }

private:
    static constexpr double kLoose = 1 + 1e-9;
    struct Label {
        int used = 0;
        double load = 0, latency = 0;
        int parent = -1;
        SetStage stage;
    };
    struct Found {
        int set, leader;
        double before;
        StageOffer offer;
    };
    using Reached = std::vector<std::vector<std::vector<int>>>;  // labels, by cut and head

    const LoadProblem& problem_;
    const DeviceSets& sets_;
    Price& price_;
    WorkLimit& work_;
    double latency_limit_, period_ = 0;
    int heads_;
    bool given_up_ = false, latency_counts_;
    std::vector<double> hand_;  // by cut: seconds of what crosses it, between any two
    std::vector<int> by_speed_;
    std::vector<double> speeds_;
    std::vector<double> rest_speed_, rest_medium_;  // by cut: what the units behind it need at least
    std::vector<Label> labels_;
    std::vector<int> heads_reached_;  // of the cut that is extended: those with labels
    std::vector<Found> found_;
    std::vector<StageOffer> offers_;

    double medium_limit() const { return problem_.network.shared ? period_ * kAbout : kNever; }

    std::vector<SetStage> path(const std::vector<std::vector<int>>& ends) const {
        int best = -1;
        const auto rank = [&](int label) {
            const Label& one = labels_[label];
            return std::tuple(latency_counts_ ? one.latency : 0, one.load, sets_.speed[one.used]);
        };
        for (const auto& last : ends)
            for (int label : last)
                if (best < 0 || rank(label) < rank(best)) best = label;
        std::vector<SetStage> stages;
        for (; best >= 0 && labels_[best].parent >= 0; best = labels_[best].parent)
            stages.push_back(labels_[best].stage);
        std::reverse(stages.begin(), stages.end());
        return stages;
    }

    void measure_rest() {
        const int cuts = problem_.chain.cuts;
        rest_speed_.assign(cuts + 1, kNever), rest_medium_.assign(cuts + 1, kNever);
        rest_speed_.back() = rest_medium_.back() = 0;
        for (int cut = cuts - 1; cut >= 0; --cut)
            for (int stop = cut + 1; stop <= cuts; ++stop) {
                rest_speed_[cut] = std::min(rest_speed_[cut], price_.need(cut, stop) + rest_speed_[stop]);
                const double sent = problem_.network.shared ? hand_[cut] + price_.medium(cut, stop) : 0;
                rest_medium_[cut] = std::min(rest_medium_[cut], sent + rest_medium_[stop]);
            }
    }

    // Whether no device of the set is forbidden to run the segment (any of a type: all of it).
    bool allowed(int start, int stop, int set) const {
        for (int device : problem_.forbidden[problem_.index(start, stop)])
            for (int member : sets_.members[set])
                if (problem_.devices[member].type == problem_.devices[device].type) return false;
        return true;
    }

    void extend(int cut, int stop, double floor, double ceiling, Reached& reached) {
        found_.clear();
        auto place = std::lower_bound(speeds_.begin(), speeds_.end(), floor) - speeds_.begin();
        for (; place < static_cast<std::ptrdiff_t>(speeds_.size()) && speeds_[place] <= ceiling; ++place) {
            const int set = by_speed_[place];
            if (!allowed(cut, stop, set)) continue;
            if (problem_.network.uniform)
                for (bool full : price_.kinds())
                    extend_by(cut, 0, {cut, stop, set, 0, kAnyLeader, full, hand_[cut]}, reached);
            const int leaders = problem_.network.uniform ? 0 : static_cast<int>(sets_.members[set].size());
            for (int leader = 0; leader < leaders; ++leader) {
                const int device = sets_.members[set][leader];
                for (int head : heads_reached_)
                    if (cut == 0 || head != device)
                        extend_by(cut, head,
                                  {cut, stop, set, 0, leader, price_.full(device),
                                   cut > 0 ? problem_.hand(cut, head, device) : 0},
                                  reached);
            }
            if (work_.stopped()) return;
        }
    }

    void extend_by(int cut, int head, SetStage stage, Reached& reached) {
        const int device = sets_.device(stage.set, stage.leader);
        const StageOffer least = price_.least(stage);
        if (least.load == kNever || matched(stage, device, least) || !wanted(reached[cut][head], stage, least)) return;
        offers_.clear();
        price_.offers(stage, offers_);
        if (work_.stopped()) return;
        for (const StageOffer& offer : offers_) {
            if (matched(stage, device, offer)) continue;
            found_.push_back({stage.set, device, stage.before, offer});
            for (int parent : reached[cut][head]) {
                const Label before = labels_[parent];
                if (!fits(before, stage, offer)) continue;
                SetStage chosen = stage;
                chosen.used = before.used, chosen.several = offer.several, chosen.limit = offer.limit;
                if (offer.leader != kAnyLeader) chosen.leader = offer.leader;
                insert(reached[stage.stop][problem_.network.uniform ? 0 : device],
                       {before.used + stage.set, (problem_.network.shared ? before.load : 0) + offer.load,
                        before.latency + offer.latency, parent, chosen});
            }
        }
    }

    // Whether a smaller set runs the stage as well.
    bool matched(const SetStage& stage, int device, const StageOffer& offer) const {
        return std::any_of(found_.begin(), found_.end(), [&](const Found& smaller) {
            return smaller.offer.load <= offer.load && smaller.offer.latency <= offer.latency &&
                   smaller.leader == device && smaller.before >= stage.before && smaller.set != stage.set &&
                   sets_.within(smaller.set, stage.set);
        });
    }

    bool fits(const Label& before, const SetStage& stage, const StageOffer& offer) const {
        if (!sets_.disjoint(before.used, stage.set)) return false;
        const double left = sets_.speed[sets_.all] - sets_.speed[before.used] - sets_.speed[stage.set];
        if (rest_speed_[stage.stop] > left + sets_.speed[sets_.all] * (kLoose - 1)) return false;
        if (latency_limit_ < kNever) {
            // Whatever runs the units behind takes them at least so long.
            const double rest = problem_.macs(stage.stop, problem_.chain.cuts);
            const double behind = rest > 0 ? rest / std::max(left, 1e-300) * (1 - 1e-9) : 0;
            if (before.latency + offer.latency + behind > latency_limit_ * kAbout) return false;
        }
        if (problem_.network.shared) return before.load + offer.load + rest_medium_[stage.stop] <= medium_limit();
        // Where pairs differ only now is it known what the head hands on.
        return stage.start == 0 || before.load + stage.before <= period_ * kAbout;
    }

    bool wanted(const std::vector<int>& labels, const SetStage& stage, const StageOffer& offer) const {
        return std::any_of(labels.begin(), labels.end(), [&](int label) { return fits(labels_[label], stage, offer); });
    }

    // Adds a label to those kept of a state, unless one of them beats it; those that it beats go.
    void insert(std::vector<int>& kept, const Label& label) {
        const auto beats = [&](const Label& a, const Label& b) {
            return a.load <= b.load && (!latency_counts_ || a.latency <= b.latency) && sets_.within(a.used, b.used);
        };
        for (int index : kept)
            if (beats(labels_[index], label)) return;
        std::erase_if(kept, [&](int index) { return beats(label, labels_[index]); });
        kept.push_back(static_cast<int>(labels_.size()));
        labels_.push_back(label);
    }
};

// The least period in [low, high], and the best plan: from the bound upwards until there is one, then by halves. A pass
// returns a plan within a limit, as good as it can be; infinite: none, proven unless the work stopped. False: only
// bounds of the price are within the limit.
template <class Found, class Pass>
bool narrow(double& low, double& high, Found& best, const WorkLimit& work, const Pass& pass) {
    constexpr double kRounding = 1 + 1e-8;
    double step = 0.01;
    while (low < high * kBelow && !work.stopped()) {
        double limit = high * kBelow;
        if (best.first == kNever) {
            limit = std::min(limit, step > 1e12 ? kNever : std::max(low, 1e-9) * (1 + step));
            step *= 2;
        } else if (low < high * 0.999) {
            limit = (low + high) / 2;
        }
        auto plan = pass(limit);
        if (work.stopped() && plan.second.empty()) return true;
        if (plan.second.empty()) {
            low = limit;
            if (limit == kNever) return true;
        } else if (plan.first < high) {
            high = plan.first, best = std::move(plan);
        } else if (plan.first <= limit * kRounding) {
            low = limit;
        } else {
            return false;
        }
    }
    return true;
}

// The devices of a stage: those of its set behind those used before.
inline std::vector<int> devices_of(const DeviceSets& sets, const SetStage& stage) {
    std::vector<int> devices;
    for (std::size_t type = 0; type < sets.have.size(); ++type)
        for (int k = 0; k < sets.counts[stage.set][type]; ++k)
            devices.push_back(sets.first[type] + sets.counts[stage.used][type] + k);
    return devices;
}

}  // namespace downset
