// Whether a pipeline exists with every load (and the medium's) within a period.
//
// A stage that more devices can run within the period, fewer may as well: of the sets that can run a segment only those
// matter that no smaller one matches. So for every cut the search keeps the multisets of devices used to get there, on
// a shared network with the seconds the medium was busy, where pairs differ with the device that leads in front of the
// cut and its load without what it hands on, and only those that no other beats in all. Sets are tried in order of
// speed, from what the segment needs at least to what the devices used before and the need of the units behind leave.
#pragma once

#include <numeric>
#include <unordered_map>

#include "deadline.hpp"
#include "pipelines/loads/limited_rows.hpp"
#include "pipelines/row_division.hpp"
#include "pipelines/unbeaten.hpp"

namespace downset {

class LoadSets {
public:
    // A stage as found: its devices are those of `set`, behind those of `used`.
    struct Stage {
        int start = 0, stop = 0, set = 0, used = 0, leader = kAnyLeader;
        bool full = false;
        double before = 0;
    };

    LoadSets(const LoadProblem& problem, double seconds, std::int64_t state_limit)
        : problem_(problem), sets_(problem.sets), rows_(problem),
          heads_(problem.network.uniform ? 1 : problem.device_count()), deadline_(seconds), state_limit_(state_limit),
          ratio_(problem.chain.segments.size()), hand_(problem.chain.cuts + 1) {
        for (int set = 1; set < sets_.count; ++set) by_speed_.push_back(set);
        std::stable_sort(by_speed_.begin(), by_speed_.end(),
                         [&](int a, int b) { return sets_.speed[a] < sets_.speed[b]; });
        for (int set : by_speed_) speeds_.push_back(sets_.speed[set]);
        for (const LoadDevice& device : problem.devices) {
            fastest_ = std::max(fastest_, device.peak), slowest_ = std::min(slowest_, device.peak);
            (problem.full(static_cast<int>(&device - problem.devices.data())) ? some_full_ : some_half_) = true;
        }
        rate_ = kNever;
        for (int a = 0; a < problem.device_count(); ++a)
            for (int b = 0; b < problem.device_count(); ++b)
                if (a != b) rate_ = std::min(rate_, problem.per_byte(a, b));
        if (rate_ == kNever) rate_ = 0;
        for (int start = 0; start < problem.chain.cuts; ++start)
            for (int stop = start + 1; stop <= problem.chain.cuts; ++stop) {
                const auto& seg = problem.segment(start, stop);
                StripCosts both = seg.in;
                for (auto list : {&StripCosts::upper, &StripCosts::lower, &StripCosts::final})
                    for (std::size_t row = 0; row < (both.*list).size(); ++row)
                        (both.*list)[row] += (seg.out.*list)[row];
                const bool any = seg.macs.final[0] > 0 && problem.device_count() > 1;
                ratio_[problem.index(start, stop)] = {
                    any ? RowDivision::strip_ratio(seg.rows, seg.macs, both) * rate_ : 0,
                    any ? RowDivision::strip_ratio(seg.rows, seg.macs, seg.in) * rate_ : 0};
            }
        for (int cut = 0; cut <= problem.chain.cuts; ++cut) hand_[cut] = problem.least_hand(cut);
    }

    std::int64_t states() const { return states_; }
    bool stopped() const { return stopped_; }

    // The stages of a pipeline within the period, none if there is none (or the time is up).
    std::vector<Stage> within(double period) {
        period_ = period;
        if (out_of_time()) return {};
        measure_rest();
        const int cuts = problem_.chain.cuts;
        labels_.assign(1, {});
        Reached reached(cuts + 1, std::vector<std::vector<int>>(heads_));
        reached[0][0] = {0};
        if (rest_speed_[0] > sets_.speed[sets_.all] * kLoose || rest_medium_[0] > medium_limit()) return {};
        for (int cut = 0; cut < cuts; ++cut) {
            double least_used = kNever;
            for (const auto& behind : reached[cut])
                for (int label : behind) least_used = std::min(least_used, sets_.speed[labels_[label].used]);
            if (least_used == kNever) continue;
            for (int stop = cut + 1; stop <= cuts; ++stop) {
                const double ceiling = (sets_.speed[sets_.all] - least_used - rest_speed_[stop]) * kLoose;
                const double floor = need(cut, stop);
                if (floor <= ceiling) extend(cut, stop, floor / kLoose, ceiling, reached);
                if (stopped_) return {};
            }
        }
        int best = -1;
        const auto rank = [&](int label) { return std::pair(labels_[label].load, sets_.speed[labels_[label].used]); };
        for (const auto& last : reached[cuts])
            for (int label : last)
                if (best < 0 || rank(label) < rank(best)) best = label;
        std::vector<Stage> stages;
        for (; best >= 0 && labels_[best].parent >= 0; best = labels_[best].parent)
            stages.push_back(labels_[best].stage);
        std::reverse(stages.begin(), stages.end());
        return stages;
    }

    // The stage's division at a period, if all its loads are within it; else its value is infinite. `behind`: seconds
    // that its leader takes to hand on.
    LoadDivision division(const Stage& stage, double behind, double period) {
        LoadDivision result =
            rows_.least({stage.start, stage.stop, stage.set, stage.leader, stage.full, period, stage.before, behind});
        if (!problem_.network.shared && result.value + joined(stage.full, stage.before) + behind > period * kAbout)
            result.value = kNever;
        ++states_;
        return result;
    }

    // What the leader takes for a stage's input where that is in addition to what it hands on: not where it is full
    // duplex.
    static double joined(bool full, double before) { return full ? 0 : before; }

private:
    static constexpr double kLoose = 1 + 1e-9;
    struct Label {
        int used = 0;
        double load = 0;  // of the medium; else of the head, without what it hands on
        int parent = -1;
        Stage stage;
    };
    struct Ratio {
        double both = 0, in = 0;  // seconds of transfer a MAC that the leader does not do, at least
    };
    struct Found {
        int set, leader;
        double before, cost;
    };
    // In periods from `low` to `high` the value is the same.
    struct Known {
        double low = 1, high = 0, before = 0, value = 0;
        bool holds(double period, double wait) const { return low <= period && period <= high && before == wait; }
    };
    using Reached = std::vector<std::vector<std::vector<int>>>;  // labels, by cut and head

    const LoadProblem& problem_;
    const DeviceSets& sets_;
    LoadRows rows_;
    int heads_;
    Deadline deadline_;
    std::int64_t state_limit_, states_ = 0;
    bool stopped_ = false, some_full_ = false, some_half_ = false;
    double period_ = 0, fastest_ = 0, slowest_ = kNever, rate_ = 0;
    std::vector<Ratio> ratio_;  // by segment
    std::vector<double> hand_;  // by cut: seconds of what crosses it, between any two
    std::vector<int> by_speed_;
    std::vector<double> speeds_;
    std::vector<double> rest_speed_, rest_medium_;  // by cut: what the units behind it need at least
    std::vector<Label> labels_;
    std::vector<Found> found_;
    std::unordered_map<std::uint64_t, std::array<Known, 2>> known_;  // by segment, set, leader

    bool out_of_time() {
        if (deadline_.passed() || states_ > state_limit_) stopped_ = true;
        return stopped_;
    }

    double medium_limit() const { return problem_.network.shared ? period_ * kAbout : kNever; }

    // What a leader takes for input and output between stages, at least.
    double hands(int start, int stop, bool full) const {
        const double before = start > 0 ? hand_[start] : 0, behind = stop < problem_.chain.cuts ? hand_[stop] : 0;
        return problem_.network.overlap && problem_.network.shared ? 0 : full ? behind : before + behind;
    }

    // The least speed of devices that can run units [start, stop) within the period; no set below it can.
    double need(int start, int stop) const {
        const double macs = problem_.macs(start, stop), left = period_ - hands(start, stop, some_full_);
        const Ratio ratio = ratio_[problem_.index(start, stop)];
        if (left < 0) return kNever;
        if (problem_.network.overlap) {
            const double given = macs - fastest_ * period_;  // to others, at least
            if (!problem_.network.shared && given > 0 && (some_full_ ? ratio.in : ratio.both) * given > left * kLoose)
                return kNever;
            return period_ > 0 ? macs / period_ : kNever;
        }
        if (macs <= fastest_ * left) return left > 0 ? macs / left : 0;
        // The leader does what the others do not, in the time that their transfers leave it.
        const double each = 1 + ratio.both * slowest_;
        const auto speed = [&](double given) {
            const double time = left - ratio.both * given;
            if (given < macs && time <= 0) return kNever;
            return (given < macs ? (macs - given) / time : 0) + given * each / period_;
        };
        const double least = macs - fastest_ * left;
        if (ratio.both * macs >= left) return speed(least);
        return std::min(speed(least), speed(macs));
    }

    // No division of the segment over the set is lighter for its leader (on a shared network, its medium).
    double least_value(int start, int stop, int set, int leader, bool full) const {
        const Ratio ratio = ratio_[problem_.index(start, stop)];
        const double macs = problem_.macs(start, stop), each = full ? ratio.in : ratio.both;
        double together = 0;  // MACs that all can do as the leader's
        for (int device : sets_.members[set]) together += others(device, ratio.both);
        double least = kNever;
        for (int k = 0; k < static_cast<int>(sets_.members[set].size()); ++k) {
            if (leader != kAnyLeader && k != leader) continue;
            const int device = sets_.members[set][k];
            const double speed = problem_.devices[device].peak,
                         most = std::min(macs, together - others(device, ratio.both));
            double value;
            if (macs - most > speed * period_ * kLoose) continue;
            if (problem_.alone() && !problem_.network.shared) {
                const double given = each * speed >= 1 ? 0 : most;
                value = (macs - given) / speed + each * given;
            } else {
                value = each * std::max(0.0, macs - speed * period_);
            }
            least = std::min(least, value);
        }
        return least;
    }

    // MACs that a device can do within the period, as one of a leader's.
    double others(int device, double ratio) const {
        const double speed = problem_.devices[device].peak;
        if (problem_.alone()) return period_ / (1 / speed + ratio);
        if (problem_.network.shared || problem_.devices[device].full || ratio == 0) return period_ * speed;
        return period_ * std::min(speed, 1 / ratio);
    }

    void measure_rest() {
        const int cuts = problem_.chain.cuts;
        rest_speed_.assign(cuts + 1, kNever), rest_medium_.assign(cuts + 1, kNever);
        rest_speed_.back() = rest_medium_.back() = 0;
        for (int cut = cuts - 1; cut >= 0; --cut)
            for (int stop = cut + 1; stop <= cuts; ++stop) {
                rest_speed_[cut] = std::min(rest_speed_[cut], need(cut, stop) + rest_speed_[stop]);
                double sent = 0;
                if (problem_.network.shared)
                    sent =
                        (cut > 0 ? hand_[cut] : 0) + ratio_[problem_.index(cut, stop)].both *
                                                         std::max(0.0, problem_.macs(cut, stop) - fastest_ * period_);
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
            if (problem_.network.uniform) {
                const double before = cut > 0 ? hand_[cut] : 0;
                if (some_half_) extend_by(cut, 0, {cut, stop, set, 0, kAnyLeader, false, before}, reached);
                if (some_full_) extend_by(cut, 0, {cut, stop, set, 0, kAnyLeader, true, before}, reached);
            }
            for (int leader = 0; !problem_.network.uniform && leader < static_cast<int>(sets_.members[set].size());
                 ++leader) {
                const int device = sets_.members[set][leader];
                for (int head = 0; head < heads_; ++head) {
                    const double before = cut > 0 ? problem_.hand(cut, head, device) : 0;
                    if (cut == 0 || head != device)
                        extend_by(cut, head, {cut, stop, set, 0, leader, problem_.full(device), before}, reached);
                }
            }
            if (stopped_) return;
        }
    }

    void extend_by(int cut, int head, Stage stage, Reached& reached) {
        const bool shared = problem_.network.shared, apart = !problem_.network.uniform;
        const int stop = stage.stop, set = stage.set, device = sets_.device(set, stage.leader);
        double cheapest = kNever;
        for (const Found& smaller : found_)
            if (smaller.cost < cheapest && smaller.leader == device && smaller.before >= stage.before &&
                smaller.set != set && sets_.within(smaller.set, set))
                cheapest = smaller.cost;
        const double behind = !apart && stop < problem_.chain.cuts ? hand_[stop] : 0;
        const double around = shared ? stage.before : joined(stage.full, stage.before) + behind;
        const double least = least_value(cut, stop, set, stage.leader, stage.full);
        if (least + around > period_ * kLoose) return;
        if ((apart || shared ? least + around : 0) >= cheapest) return;
        if (!wanted(reached[cut][head], stage, least)) return;
        const double value = value_of(stage, behind);
        if (stopped_ || value + around > period_ * kAbout) return;
        const double cost = apart || shared ? value + around : 0;
        if (cost >= cheapest) return;
        found_.push_back({set, device, stage.before, cost});
        for (int parent : reached[cut][head]) {
            const Label before = labels_[parent];
            if (!fits(before, stage, value)) continue;
            stage.used = before.used;
            insert(reached[stop][apart ? device : 0], {before.used + set,
                                                       shared  ? before.load + cost
                                                       : apart ? cost
                                                               : 0,
                                                       parent, stage});
        }
    }

    bool fits(const Label& before, const Stage& stage, double value) const {
        if (!sets_.disjoint(before.used, stage.set)) return false;
        if (sets_.speed[before.used] + sets_.speed[stage.set] + rest_speed_[stage.stop] >
            sets_.speed[sets_.all] * kLoose)
            return false;
        if (problem_.network.shared)
            return before.load + value + stage.before + rest_medium_[stage.stop] <= medium_limit();
        // Where pairs differ only now is it known what the head hands on.
        return problem_.network.uniform || stage.start == 0 || before.load + stage.before <= period_ * kAbout;
    }

    bool wanted(const std::vector<int>& labels, const Stage& stage, double value) const {
        return std::any_of(labels.begin(), labels.end(), [&](int label) { return fits(labels_[label], stage, value); });
    }

    void insert(std::vector<int>& labels, const Label& label) {
        const auto beats = [&](const Label& a, const Label& b) {
            return a.load <= b.load && sets_.within(a.used, b.used);
        };
        keep_unbeaten(labels_, labels, label, beats);
    }

    // The least value of the stage at this period, remembered: it is a step function of it.
    double value_of(const Stage& stage, double behind) {
        // Only where the leader's other load has limits of its own does it matter what comes in.
        const bool shared_alone = problem_.network.shared && problem_.alone();
        const double wait = shared_alone || stage.full ? stage.before : 0;
        const std::uint64_t slot =
            (static_cast<std::uint64_t>(problem_.index(stage.start, stage.stop)) * sets_.led_count +
             sets_.led(stage.set, stage.leader)) *
                2 +
            stage.full;
        auto& facts = known_[slot];
        for (const Known& one : facts)
            if (one.holds(period_, wait)) return one.value;
        if ((++states_ & 63) == 0 && out_of_time()) return kNever;
        const LoadDivision division =
            rows_.least({stage.start, stage.stop, stage.set, stage.leader, stage.full, period_, wait, behind});
        std::swap(facts[0], facts[1]);
        facts[0] = division.value == kNever ? Known{0, period_, wait, kNever}
                                            : Known{std::min(division.tight, period_), period_, wait, division.value};
        return division.value;
    }
};

}  // namespace downset
