// The loads of a stage of one block that is divided over devices: seconds of each device, of its leader, of the medium.
// They are the prices of results/task_times.py; tests/pipelines/test_load_search.py holds the load of every plan found
// to that formula.
#pragma once

#include <algorithm>
#include <vector>

#include "pipelines/loads/problem.hpp"

namespace downset {

// Of a stage of one block: who leads (a position among the set's devices, or any that is `full` or is not), and the
// seconds that its leader takes for what comes in from the stage before, and hands on to the next.
struct LoadAsk {
    int start, stop, set, leader = kAnyLeader;
    bool full = false;
    double period = kNever, before = 0, behind = 0;
};

// `value`: on a shared network the seconds of the medium, elsewhere the leader's load, of full duplex what it sends;
// without what `before` and `behind` say. `tight`: the least period at which no other load of the stage is above it.
struct LoadDivision {
    double value = kNever, tight = 0;
    int leader = 0;
    std::vector<int> bounds;
};

class StageLoads {
public:
    explicit StageLoads(const LoadProblem& problem) : problem_(problem), sets_(problem.sets) {}

    // What a device beyond its stage's work has to carry, if it is the source or the sink: what it sends, and receives.
    struct Ends {
        double send = 0, receive = 0;
    };
    Ends ends_of(const LoadAsk& ask, int device, int leader) const {
        Ends ends;
        const int last = problem_.chain.cuts, source = problem_.source, sink = problem_.sink;
        const bool opens = ask.start == 0, closes = ask.stop == last, leads = device == leader;
        if (device == source && !(leads && opens))
            ends.send += opens ? problem_.hand(0, source, leader) : problem_.least_from(0, source);
        if (device == sink && !(leads && closes))
            ends.receive += closes ? problem_.hand(last, leader, sink) : problem_.least_from(last, sink);
        if (leads && opens && source >= 0) ends.receive += problem_.hand(0, source, leader);
        if (leads && closes && sink >= 0) ends.send += problem_.hand(last, leader, sink);
        return ends;
    }

protected:
    static constexpr double kNear = 1 + 1e-11;  // sums of tables, and of strips, round differently

    const LoadProblem& problem_;
    const DeviceSets& sets_;

    const LoadSegment& segment(const LoadAsk& ask) const { return problem_.segment(ask.start, ask.stop); }
    const StripCosts& work(const LoadAsk& ask, int device) const {
        return segment(ask).work[problem_.devices[device].work_class];
    }

    // One device does it all.
    LoadDivision alone(const LoadAsk& ask) const {
        LoadDivision division{0, 0, 0, {0, segment(ask).rows}};
        if (ask.full != problem_.full(sets_.members[ask.set][0])) return {};
        measure(ask, division);
        if (division.tight > ask.period * kNear) division.value = kNever;
        return division;
    }

    // Value and tight of a division's leader and bounds.
    void measure(const LoadAsk& ask, LoadDivision& division) const {
        const auto& devices = sets_.members[ask.set];
        const auto& seg = segment(ask);
        const int leader = devices[division.leader];
        double computing = 0, sends = 0, receives = 0;
        division.tight = 0;
        for (std::size_t k = 0; k < devices.size(); ++k) {
            const int device = devices[k], lo = division.bounds[k], hi = division.bounds[k + 1];
            const bool leads = static_cast<int>(k) == division.leader;
            const Ends ends = leads ? Ends{} : ends_of(ask, device, leader);
            double takes = 0, gets = 0, gives = 0;
            if (lo < hi) {
                takes = work(ask, device).of(lo, hi) / problem_.devices[device].speed;
                if (leads) {
                    computing = takes;
                    continue;
                }
                const double rate = problem_.per_byte(leader, device), message = problem_.latency(leader, device);
                const double in = seg.in.of(lo, hi), out = seg.out.of(lo, hi);
                gets = in * rate + (in > 0 ? message : 0), gives = out * rate + (out > 0 ? message : 0);
            }
            sends += gets, receives += gives;
            gets += ends.receive, gives += ends.send;
            double load = std::max(takes, gets + gives);
            if (problem_.alone())
                load = takes + gets + gives;
            else if (problem_.network.shared)
                load = takes;
            else if (problem_.full(device))
                load = std::max({takes, gets, gives});
            division.tight = std::max(division.tight, load);
        }
        const Ends ends = ends_of(ask, leader, leader);
        if (problem_.network.shared) {
            division.value = sends + receives + medium_fixed(ask, leader);
            division.tight = std::max(division.tight, problem_.alone() ? computing + sends + receives + ends.send +
                                                                             ends.receive + ask.before + ask.behind
                                                                       : computing);
            return;
        }
        if (problem_.alone()) {
            division.value = computing + sends + receives + ends.send + ends.receive;
            return;
        }
        division.tight = std::max(division.tight, computing);
        if (problem_.full(leader)) {
            division.value = sends + ends.send;
            division.tight = std::max(division.tight, receives + ends.receive + ask.before);
        } else {
            division.value = sends + receives + ends.send + ends.receive;
        }
    }

    double medium_fixed(const LoadAsk& ask, int leader) const {
        double fixed = 0;
        if (ask.start == 0 && problem_.source >= 0) fixed += problem_.hand(0, problem_.source, leader);
        if (ask.stop == problem_.chain.cuts && problem_.sink >= 0)
            fixed += problem_.hand(ask.stop, leader, problem_.sink);
        return fixed;
    }
};

}  // namespace downset
