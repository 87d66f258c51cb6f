// A block of fused units divided over a set of devices, exactly, into integer rows: by the paper's equations.
//
// For a limit T on computing, the least communication C(T) is a shortest path over row boundaries. C falls in T.
#pragma once

#include "pipelines/loads/rows.hpp"

namespace downset {

struct Division {
    double transfer = kNever, longest = 0;  // seconds of communication, and of the busiest device's computing
    int leader = 0;                         // position among the set's devices
    std::vector<int> bounds;
};

class RoundRows : public RowPaths {
public:
    using RowPaths::RowPaths;

    // The least communication with every device's computing within the limit; infinity where they cannot.
    // `division`, if given, receives it with its bounds.
    double least_transfer(int start, int stop, int set, int leader, double limit, Division* division) {
        const auto& devices = sets_.members[set];
        if (problem_.macs(start, stop) > sets_.speed[set] * limit * kAbout) return kNever;
        const int lead = leader == kAnyLeader ? 0 : leader;  // the fastest leads what one device can do alone
        if (const double seconds = alone_s(start, stop, devices[lead]); seconds <= limit * kAbout) {
            if (!division) return 0;
            *division = {0, seconds, lead, std::vector<int>(devices.size() + 1, 0)};
            for (int k = lead + 1; k <= static_cast<int>(devices.size()); ++k)
                division->bounds[k] = problem_.segment(start, stop).rows;
            return 0;
        }
        if (devices.size() == 1) return kNever;
        const LoadAsk ask{start, stop, set, leader, false, limit};
        prepare(ask);
        path(ask, {false, kNoFloor, kNoCount}, shortest_);
        if (shortest_.value == kNever || !division) return shortest_.value;
        division->transfer = shortest_.value, division->longest = 0, division->leader = shortest_.leader;
        division->bounds = shortest_.bounds;
        for (int k = 0; k < static_cast<int>(devices.size()); ++k)
            if (const int lo = division->bounds[k], hi = division->bounds[k + 1]; lo < hi)
                division->longest =
                    std::max(division->longest, work(ask, devices[k]).of(lo, hi) / problem_.devices[devices[k]].speed);
        return division->transfer;
    }

    // The seconds that a device takes for all rows.
    double alone_s(int start, int stop, int device) const {
        const LoadDevice& one = problem_.devices[device];
        return problem_.segment(start, stop).work[one.work_class].final[0] / one.speed;
    }

private:
    int start_ = -1, stop_ = -1, set_ = -1, leader_ = -1;  // what the roles are prepared for
    LoadDivision shortest_;
    std::vector<StripCosts> costs_;  // by segment: seconds of communication, where all pairs are alike

    void prepare(const LoadAsk& ask) {
        const auto& devices = sets_.members[ask.set];
        const int n = static_cast<int>(devices.size());
        if (start_ != ask.start || stop_ != ask.stop || set_ != ask.set || leader_ != ask.leader) {
            start_ = ask.start, stop_ = ask.stop, set_ = ask.set, leader_ = ask.leader;
            for (int k = 0; k < n; ++k) describe(ask, k);
        }
        for (int k = 0; k < n; ++k)
            roles_[k].worker.conditions[0].room = ask.period * problem_.devices[devices[k]].speed * kAbout;
        reach(ask, n);
    }

    void describe(const LoadAsk& ask, int k) {
        const int device = sets_.members[ask.set][k];
        Role& role = roles_[k];
        role.leads = ask.leader == kAnyLeader || ask.leader == k, role.apart = false;
        role.worker.conditions[0] = Line(work(ask, device), 0), role.worker.used = 1;
        role.worker.cost = &costs_of(ask, device, role.worker.cost_table);
    }

    // The seconds of communication of a device's strips; `table` holds them where they differ with the leader.
    const StripCosts& costs_of(const LoadAsk& ask, int device, StripCosts& table) {
        const int leader = problem_.network.uniform ? (device == 0 ? 1 : 0) : sets_.members[ask.set][ask.leader];
        const double rate = problem_.per_byte(leader, device), message = problem_.latency(leader, device);
        if (problem_.network.uniform && costs_.empty()) costs_.resize(problem_.chain.segments.size());
        StripCosts& costs = problem_.network.uniform ? costs_[problem_.index(ask.start, ask.stop)] : table;
        if (!problem_.network.uniform || costs.upper.empty())
            fill(costs, ask, device, {0, rate, rate, message, message});
        return costs;
    }
};

}  // namespace downset
