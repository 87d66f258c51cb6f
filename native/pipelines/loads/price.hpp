// The price of stages by the loads of their resources, for the set search: every device, radio or port, and the medium,
// within a period.
#pragma once

#include <unordered_map>

#include "pipelines/loads/limited_rows.hpp"
#include "pipelines/set_search.hpp"

namespace downset {

class LoadPrice {
public:
    LoadPrice(const LoadProblem& problem, WorkLimit& work)
        : problem_(problem), sets_(problem.sets), work_(work), rows_(problem), ratio_(problem.chain.segments.size()),
          hand_(problem.chain.cuts + 1) {
        for (int device = 0; device < problem.device_count(); ++device) {
            fastest_ = std::max(fastest_, problem.devices[device].peak);
            slowest_ = std::min(slowest_, problem.devices[device].peak);
            (problem.full(device) ? some_full_ : some_half_) = true;
        }
        if (some_half_) kinds_.push_back(false);
        if (some_full_) kinds_.push_back(true);
        double rate = kNever;
        for (int a = 0; a < problem.device_count(); ++a)
            for (int b = 0; b < problem.device_count(); ++b)
                if (a != b) rate = std::min(rate, problem.per_byte(a, b));
        for (int start = 0; start < problem.chain.cuts; ++start)
            for (int stop = start + 1; stop <= problem.chain.cuts; ++stop) {
                const auto& seg = problem.segment(start, stop);
                if (rate < kNever)
                    ratio_[problem.index(start, stop)] = {seg.strip_ratio(seg.in_and_out()) * rate,
                                                          seg.strip_ratio(seg.in) * rate};
            }
        for (int cut = 0; cut <= problem.chain.cuts; ++cut) hand_[cut] = problem.least_hand(cut);
    }

    void at(double period) { period_ = period; }
    const std::vector<bool>& kinds() const { return kinds_; }
    bool full(int device) const { return problem_.full(device); }

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

    // Seconds of the medium for the units, at least.
    double medium(int start, int stop) const {
        return ratio_[problem_.index(start, stop)].both *
               std::max(0.0, problem_.macs(start, stop) - fastest_ * period_);
    }

    StageOffer least(const SetStage& stage) const {
        const double value = least_value(stage), around = around_of(stage);
        if (value == kNever || value + around > period_ * kLoose) return {};
        return {load_of(value + around)};
    }

    void offers(const SetStage& stage, std::vector<StageOffer>& list) {
        const double value = value_of(stage, behind_of(stage)), around = around_of(stage);
        if (value < kNever && value + around <= period_ * kAbout) list.push_back({load_of(value + around)});
    }

    // The stage's division at a period, if all its loads are within it; else its value is infinite. `behind`: seconds
    // that its leader takes to hand on.
    LoadDivision division(const SetStage& stage, double behind, double period) {
        LoadDivision result =
            rows_.least({stage.start, stage.stop, stage.set, stage.leader, stage.full, period, stage.before, behind});
        if (!problem_.network.shared && result.value + joined(stage) + behind > period * kAbout) result.value = kNever;
        work_.spend();
        return result;
    }

    // What the leader takes for a stage's input where that is in addition to what it hands on: not where it is full
    // duplex.
    static double joined(const SetStage& stage) { return stage.full ? 0 : stage.before; }

private:
    static constexpr double kLoose = 1 + 1e-9;
    struct Ratio {
        double both = 0, in = 0;  // seconds of transfer a MAC that the leader does not do, at least
    };
    // In periods from `low` to `high` the value is the same.
    struct Known {
        double low = 1, high = 0, before = 0, value = 0;
        bool holds(double period, double wait) const { return low <= period && period <= high && before == wait; }
    };

    const LoadProblem& problem_;
    const DeviceSets& sets_;
    WorkLimit& work_;
    LoadRows rows_;
    bool some_full_ = false, some_half_ = false;
    std::vector<bool> kinds_;
    double period_ = 0, fastest_ = 0, slowest_ = kNever;
    std::vector<Ratio> ratio_;  // by segment
    std::vector<double> hand_;  // by cut: seconds of what crosses it, between any two
    std::unordered_map<std::uint64_t, std::array<Known, 2>> known_;  // by segment, set, leader

    double behind_of(const SetStage& stage) const {
        return problem_.network.uniform && stage.stop < problem_.chain.cuts ? hand_[stage.stop] : 0;
    }
    double around_of(const SetStage& stage) const {
        return problem_.network.shared ? stage.before : joined(stage) + behind_of(stage);
    }
    // Where all pairs are alike the load of a leader is final.
    double load_of(double value) const { return problem_.network.shared || !problem_.network.uniform ? value : 0; }

    // What a leader takes for input and output between stages, at least.
    double hands(int start, int stop, bool full) const {
        const double before = start > 0 ? hand_[start] : 0, behind = stop < problem_.chain.cuts ? hand_[stop] : 0;
        return problem_.network.overlap && problem_.network.shared ? 0 : full ? behind : before + behind;
    }

    // No division of the segment over the set is lighter for its leader (on a shared network, its medium).
    double least_value(const SetStage& stage) const {
        const auto [start, stop, set, leader, full] =
            std::tuple(stage.start, stage.stop, stage.set, stage.leader, stage.full);
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

    // The least value of the stage at this period, remembered: it is a step function of it.
    double value_of(const SetStage& stage, double behind) {
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
        if (work_.spend()) return kNever;
        const LoadDivision division =
            rows_.least({stage.start, stage.stop, stage.set, stage.leader, stage.full, period_, wait, behind});
        std::swap(facts[0], facts[1]);
        facts[0] = division.value == kNever ? Known{0, period_, wait, kNever}
                                            : Known{std::min(division.tight, period_), period_, wait, division.value};
        return division.value;
    }
};

}  // namespace downset
