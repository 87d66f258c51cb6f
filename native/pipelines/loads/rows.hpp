// A block of fused units divided over a set of devices into integer rows, so that no load of them is above a period.
//
// The devices lie in a fixed order. Each has conditions on its strip (its computing, its transfers, or both together),
// sums of tables upper[hi] - lower[lo], so that the strips that end at a row and fit begin in a window that slides.
// What is made least is a sum over strips too: a shortest path over row boundaries, one sliding minimum for each
// device. A second layer holds the divisions that have named their leader.
//   links without overlap        the leader computes, sends and receives; each other device its own strip's share
//   links with overlap           the leader's radio, or what it sends where it is full duplex: what it receives is all
//                                that is made less its own strip, a window on that strip alone, and the messages
//   shared with overlap          the seconds of the medium
//   shared without overlap       likewise, with the leader's load as a limit: where the least breaks it, the leader's
//                                strip is tried between all paths in front of it and behind it
#pragma once

#include <algorithm>
#include <span>
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

class LoadRows {
public:
    explicit LoadRows(const LoadProblem& problem) : problem_(problem), sets_(problem.sets) {}

    // The division of least value with every other load within the period; its value is infinite where there is none.
    LoadDivision least(const LoadAsk& ask) {
        const auto& devices = sets_.members[ask.set];
        if (devices.size() == 1) return alone(ask);
        prepare(ask);
        const Paths plain{problem_.alone() && !problem_.network.shared, kNoFloor, kNoCount};
        LoadDivision found = shortest(ask, plain);
        if (found.value == kNever || found.tight <= ask.period * kNear) return found;
        if (problem_.network.shared) {
            if (problem_.source < 0 && problem_.sink < 0 &&
                shortest(ask, {true, kNoFloor, kNoCount}).tight > ask.period * kNear)
                return {};
            return between(ask);
        }
        return ask.full ? receiving(ask) : LoadDivision{};
    }

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

private:
    static constexpr double kNear = 1 + 1e-11;  // sums of tables, and of strips, round differently
    static constexpr double kNoFloor = -1;
    static constexpr int kNoCount = -1;

    // Strip [lo, hi) takes upper[hi] - lower[lo] or final[lo] seconds, and has so much room.
    struct Line {
        std::vector<double> upper, lower, final;
        double room = kNever;
        double of(int lo, int hi) const {
            return hi + 1 == static_cast<int>(upper.size()) ? final[lo] : upper[hi] - lower[lo];
        }
    };
    struct Share {
        double work, in, out, message_in, message_out;  // seconds a unit of work, a byte, a message
    };
    struct Lines {
        std::vector<Line> conditions;
        int used = 0;
        Line cost;
    };
    struct Role {
        Lines worker, leader;
        double fixed = 0;  // of a leader
        bool leads = false;
    };
    struct Step {
        int row, layer;
    };
    // What is made least, with the leader's computing or without; the least seconds of output that the leader keeps;
    // the most devices beside it.
    struct Paths {
        bool computing;
        double floor;
        int most;
    };

    const LoadProblem& problem_;
    const DeviceSets& sets_;
    std::vector<Role> roles_;
    Line kept_;  // the leader's own output
    std::vector<std::vector<double>> now_, next_, front_, back_;
    std::vector<std::vector<std::vector<Step>>> from_;
    std::vector<std::vector<int>> onwards_;
    std::vector<int> low_, high_, window_row_;
    std::vector<double> window_value_;

    const LoadSegment& segment(const LoadAsk& ask) const { return problem_.segment(ask.start, ask.stop); }
    const StripCosts& work(const LoadAsk& ask, int device) const {
        return segment(ask).work[problem_.devices[device].work_class];
    }

    // One device does it all.
    LoadDivision alone(const LoadAsk& ask) const {
        LoadDivision found{0, 0, 0, {0, segment(ask).rows}};
        if (ask.full != problem_.full(sets_.members[ask.set][0])) return {};
        measure(ask, found);
        if (found.tight > ask.period * kNear) found.value = kNever;
        return found;
    }

    // Value and tight of a division's leader and bounds.
    void measure(const LoadAsk& ask, LoadDivision& found) const {
        const auto& devices = sets_.members[ask.set];
        const auto& seg = segment(ask);
        const int leader = devices[found.leader];
        double computing = 0, sends = 0, receives = 0;
        found.tight = 0;
        for (std::size_t k = 0; k < devices.size(); ++k) {
            const int device = devices[k], lo = found.bounds[k], hi = found.bounds[k + 1];
            const bool leads = static_cast<int>(k) == found.leader;
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
            found.tight = std::max(found.tight, load);
        }
        const Ends ends = ends_of(ask, leader, leader);
        if (problem_.network.shared) {
            found.value = sends + receives + medium_fixed(ask, leader);
            found.tight = std::max(found.tight, problem_.alone() ? computing + sends + receives + ends.send +
                                                                       ends.receive + ask.before + ask.behind
                                                                 : computing);
            return;
        }
        if (problem_.alone()) {
            found.value = computing + sends + receives + ends.send + ends.receive;
            return;
        }
        found.tight = std::max(found.tight, computing);
        if (problem_.full(leader)) {
            found.value = sends + ends.send;
            found.tight = std::max(found.tight, receives + ends.receive + ask.before);
        } else {
            found.value = sends + receives + ends.send + ends.receive;
        }
    }

    double medium_fixed(const LoadAsk& ask, int leader) const {
        double fixed = 0;
        if (ask.start == 0 && problem_.source >= 0) fixed += problem_.hand(0, problem_.source, leader);
        if (ask.stop == problem_.chain.cuts && problem_.sink >= 0)
            fixed += problem_.hand(ask.stop, leader, problem_.sink);
        return fixed;
    }

    void fill(Line& line, const LoadAsk& ask, int device, const Share& share, double room) const {
        const auto& seg = segment(ask);
        const auto& own = work(ask, device);
        const int rows = seg.rows;
        line.upper.resize(rows + 1), line.lower.resize(rows + 1), line.final.resize(rows + 1), line.room = room;
        const double inner = (seg.inner_in ? share.message_in : 0) + (seg.inner_out ? share.message_out : 0);
        for (int row = 0; row <= rows; ++row) {
            line.upper[row] =
                share.work * own.upper[row] + share.in * seg.in.upper[row] + share.out * seg.out.upper[row] + inner;
            line.lower[row] =
                share.work * own.lower[row] + share.in * seg.in.lower[row] + share.out * seg.out.lower[row];
            line.final[row] = share.work * own.final[row] + share.in * seg.in.final[row] +
                              share.out * seg.out.final[row] + (seg.in.final[row] > 0 ? share.message_in : 0) +
                              (seg.out.final[row] > 0 ? share.message_out : 0);
        }
    }

    // What each device may do as one of the leader's, and as the leader.
    void prepare(const LoadAsk& ask) {
        const auto& devices = sets_.members[ask.set];
        const int n = static_cast<int>(devices.size());
        if (static_cast<int>(roles_.size()) < n) roles_.resize(n);
        const double period = ask.period;
        for (int k = 0; k < n; ++k) {
            const int device = devices[k];
            Role& role = roles_[k];
            role.leads = ask.leader == kAnyLeader ? problem_.full(device) == ask.full : ask.leader == k;
            // Where any may lead all pairs are alike, and who leads matters to no other device.
            const int other = ask.leader == kAnyLeader ? (device == 0 ? 1 : 0) : devices[ask.leader];
            const double rate = problem_.per_byte(other, device), message = problem_.latency(other, device);
            const double second = 1 / problem_.devices[device].speed;
            const Ends ends = ends_of(ask, device, other);
            Lines& worker = role.worker;
            worker.used = 0;
            if (problem_.alone()) {
                add(worker, ask, device, {second, rate, rate, message, message}, period - ends.send - ends.receive);
            } else {
                add(worker, ask, device, {second, 0, 0, 0, 0}, period);
                if (problem_.full(device)) {
                    add(worker, ask, device, {0, rate, 0, message, 0}, period - ends.receive);
                    add(worker, ask, device, {0, 0, rate, 0, message}, period - ends.send);
                } else if (!problem_.network.shared) {
                    add(worker, ask, device, {0, rate, rate, message, message}, period - ends.send - ends.receive);
                }
            }
            fill(worker.cost, ask, device,
                 ask.full ? Share{0, rate, 0, message, 0} : Share{0, rate, rate, message, message}, kNever);
            if (!role.leads) continue;
            role.leader.used = 0;
            add(role.leader, ask, device, {second, 0, 0, 0, 0}, period);
            const Ends own = ends_of(ask, device, device);
            role.fixed = problem_.network.shared ? medium_fixed(ask, device) : own.send + (ask.full ? 0 : own.receive);
        }
        reach(ask, n);
    }

    void add(Lines& lines, const LoadAsk& ask, int device, const Share& share, double room) {
        if (static_cast<int>(lines.conditions.size()) <= lines.used) lines.conditions.emplace_back();
        fill(lines.conditions[lines.used++], ask, device, share, room + 1e-12 * ask.period);
    }

    static bool fits(const Lines& lines, int lo, int hi) {
        for (int at = 0; at < lines.used; ++at)
            if (lines.conditions[at].of(lo, hi) > lines.conditions[at].room) return false;
        return true;
    }

    // By k: the rows [low, high] at which the first k devices can end, so that those behind them can do the rest.
    void reach(const LoadAsk& ask, int n) {
        const int rows = segment(ask).rows;
        low_.assign(n + 1, rows), high_.assign(n + 1, 0);
        std::vector<int>& all = window_row_;
        all.resize(rows + 1);
        for (int row = 0; row <= rows; ++row) all[row] = row;
        const auto able = [&](int k, int lo, int hi) {
            return fits(roles_[k].worker, lo, hi) || (roles_[k].leads && fits(roles_[k].leader, lo, hi));
        };
        for (int k = n - 1; k >= 0; --k) {
            const int stop = low_[k + 1];
            low_[k] =
                *std::partition_point(all.begin(), all.begin() + stop, [&](int lo) { return !able(k, lo, stop); });
        }
        for (int k = 0; k < n; ++k) {
            const int start = high_[k];
            if (start == rows || able(k, start, rows)) {
                high_[k + 1] = rows;
                continue;
            }
            high_[k + 1] = *std::partition_point(all.begin() + start + 1, all.begin() + rows, [&](int hi) {
                return able(k, start, hi);
            }) - 1;
        }
    }

    // The shortest path with its leader and bounds, measured; infinite where there is none.
    LoadDivision shortest(const LoadAsk& ask, const Paths& paths) {
        const int rows = segment(ask).rows, n = static_cast<int>(sets_.members[ask.set].size());
        if (low_[0] > 0 || high_[n] < rows) return {};
        const int counts = paths.most == kNoCount ? 1 : paths.most + 1, layers = 2 * counts;
        if (static_cast<int>(now_.size()) < layers) now_.resize(layers), next_.resize(layers), from_.resize(layers);
        for (int layer = 0; layer < layers; ++layer) {
            now_[layer].assign(rows + 1, kNever), next_[layer].resize(rows + 1);
            if (static_cast<int>(from_[layer].size()) < n) from_[layer].resize(n);
        }
        now_[0][0] = 0;
        const double* floor = paths.floor == kNoFloor ? nullptr : &paths.floor;
        for (int k = 0; k < n; ++k) {
            Role& role = roles_[k];
            for (int layer = 0; layer < layers; ++layer) {
                auto& from = from_[layer][k];
                from.resize(rows + 1);
                for (int row = low_[k + 1]; row <= high_[k + 1]; ++row) {
                    next_[layer][row] = row <= high_[k] && row >= low_[k] ? now_[layer][row] : kNever;
                    from[row] = {row, layer};
                }
            }
            for (int layer = 0; layer < layers; ++layer) {
                const int more = paths.most == kNoCount ? layer : layer + 1;
                if (paths.most == kNoCount || more % counts != 0)
                    extend(role.worker, role.worker.cost, 0, nullptr, k, layer, more);
                if (layer >= counts || !role.leads) continue;
                if (!floor || *floor <= 0) name(role.fixed, k, layer, layer + counts);
                extend(role.leader, paths.computing ? role.leader.conditions[0] : none(rows), role.fixed, floor, k,
                       layer, layer + counts);
            }
            if (ask.leader == k)  // it is this one or none
                for (int layer = 0; layer < counts; ++layer)
                    std::fill(next_[layer].begin(), next_[layer].end(), kNever);
            std::swap(now_, next_);
        }
        int best = counts;
        for (int layer = counts; layer < layers; ++layer)
            if (now_[layer][rows] < now_[best][rows]) best = layer;
        if (now_[best][rows] == kNever) return {};
        LoadDivision found;
        found.bounds.assign(n + 1, rows);
        for (int k = n - 1, row = rows, layer = best; k >= 0; --k) {
            const Step step = from_[layer][k][row];
            if (layer >= counts && step.layer < counts) found.leader = k;
            layer = step.layer, row = step.row;
            found.bounds[k] = row;
        }
        measure(ask, found);
        return found;
    }

    // A line of zeros.
    const Line& none(int rows) {
        kept_zero_.upper.assign(rows + 1, 0), kept_zero_.lower.assign(rows + 1, 0),
            kept_zero_.final.assign(rows + 1, 0);
        return kept_zero_;
    }
    Line kept_zero_;

    // Device k leads without rows of its own.
    void name(double fixed, int k, int source, int target) {
        for (int row = std::max(low_[k], low_[k + 1]); row <= std::min(high_[k], high_[k + 1]); ++row)
            if (now_[source][row] + fixed < next_[target][row])
                next_[target][row] = now_[source][row] + fixed, from_[target][k][row] = {row, source};
    }

    // Gives device k a strip behind every division in now_[source], into next_[target]; with a floor one that keeps so
    // much output.
    void extend(const Lines& lines, const Line& cost, double fixed, const double* floor, int k, int source,
                int target) {
        const auto& now = now_[source];
        auto& next = next_[target];
        auto& from = from_[target][k];
        const int rows = static_cast<int>(cost.upper.size()) - 1, last = std::min(high_[k], rows - 1);
        window_row_.resize(rows + 1), window_value_.resize(rows + 1);
        int head = 0, tail = 0, row = low_[k];
        const auto enough = [&](int lo, int hi) { return !floor || kept_.of(lo, hi) >= *floor; };
        for (int stop = std::max(low_[k + 1], low_[k] + 1); stop <= std::min(high_[k + 1], rows - 1); ++stop) {
            for (; row < stop && row <= last && enough(row, stop); ++row) {
                if (now[row] == kNever) continue;
                const double value = now[row] - cost.lower[row];
                while (tail > head && window_value_[tail - 1] >= value) --tail;
                window_row_[tail] = row, window_value_[tail] = value;
                ++tail;
            }
            while (head < tail && !fits(lines, window_row_[head], stop)) ++head;
            if (head == tail) continue;
            const double value = window_value_[head] + cost.upper[stop] + fixed;
            if (value < next[stop]) next[stop] = value, from[stop] = {window_row_[head], source};
        }
        if (high_[k + 1] < rows) return;
        for (int lo = last; lo >= low_[k] && fits(lines, lo, rows); --lo) {
            const double value = now[lo] + cost.final[lo] + fixed;
            if (value < next[rows] && enough(lo, rows)) next[rows] = value, from[rows] = {lo, source};
        }
    }

    // Full duplex: what the leader receives is all output less its own, and a message from every device beside it.
    LoadDivision receiving(const LoadAsk& ask) {
        const auto& devices = sets_.members[ask.set];
        const auto& seg = segment(ask);
        const int n = static_cast<int>(devices.size());
        LoadDivision best;
        const auto leaders = leaders_of(ask);
        // The ends' share differs with the leader: one leader at a time where there are such, else all at once.
        const bool apart = problem_.source >= 0 || problem_.sink >= 0 || !problem_.network.uniform;
        for (std::size_t at = 0; at < (apart ? leaders.size() : 1); ++at) {
            LoadAsk one = ask;
            if (apart) one.leader = leaders[at];
            const int leader = devices[leaders[at]];
            if (apart) prepare(one);
            if (!problem_.network.uniform) {
                keep(best, by_rate(one));
                continue;
            }
            const double rate = problem_.per_byte(0, 1), message = seg.inner_out ? problem_.latency(0, 1) : 0;
            fill(kept_, one, leader, {0, 0, rate, 0, 0}, kNever);
            const double room = ask.period * kAbout - ask.before - ends_of(one, leader, leader).receive;
            const double all = seg.out.final[0] * rate;
            for (int most = n - 1; most >= 0; --most) {
                const double floor = std::max(0.0, all - (room - message * most));
                LoadDivision found = shortest(one, {false, floor, message > 0 ? most : kNoCount});
                if (found.value < kNever && found.tight <= ask.period * kNear) keep(best, std::move(found));
                if (message == 0) break;
            }
        }
        return best;
    }

    std::vector<int> leaders_of(const LoadAsk& ask) const {
        std::vector<int> found;
        for (int k = 0; k < static_cast<int>(sets_.members[ask.set].size()); ++k)
            if (roles_[k].leads) found.push_back(k);
        return found;
    }

    static void keep(LoadDivision& best, LoadDivision found) {
        if (found.value < best.value) best = std::move(found);
    }

    // Likewise where every pair has a rate of its own: every trade of sending against receiving that no other beats.
    LoadDivision by_rate(const LoadAsk& ask) {
        struct Trade {
            double sends, receives;
            int row, from;  // of the trade before
        };
        const auto& devices = sets_.members[ask.set];
        const auto& seg = segment(ask);
        const int rows = seg.rows, n = static_cast<int>(devices.size()), leader = devices[ask.leader];
        const Ends ends = ends_of(ask, leader, leader);
        const double send_room = ask.period * kAbout - ends.send - ask.behind;
        const double receive_room = ask.period * kAbout - ends.receive - ask.before;
        std::vector<std::vector<std::vector<Trade>>> at(n + 1, std::vector<std::vector<Trade>>(rows + 1));
        at[0][0].push_back({0, 0, 0, 0});
        const auto add = [&](std::vector<Trade>& trades, const Trade& trade) {
            if (trade.sends > send_room || trade.receives > receive_room) return;
            for (const Trade& other : trades)
                if (other.sends <= trade.sends && other.receives <= trade.receives) return;
            trades.push_back(trade);  // those that it beats stay: others name them by number
        };
        for (int k = 0; k < n; ++k) {
            const bool leads = k == ask.leader;
            const double rate = problem_.per_byte(leader, devices[k]), message = problem_.latency(leader, devices[k]);
            for (int lo = low_[k]; lo <= high_[k]; ++lo)
                for (int hi = std::max(lo, low_[k + 1]); hi <= high_[k + 1] && !at[k][lo].empty(); ++hi) {
                    if (lo < hi && !fits(leads ? roles_[k].leader : roles_[k].worker, lo, hi)) {
                        if (hi == rows) break;
                        hi = rows - 1;  // the last strip is priced by itself
                        continue;
                    }
                    const double in = lo < hi && !leads ? seg.in.of(lo, hi) : 0;
                    const double out = lo < hi && !leads ? seg.out.of(lo, hi) : 0;
                    for (int from = 0; from < static_cast<int>(at[k][lo].size()); ++from) {
                        const Trade& trade = at[k][lo][from];
                        add(at[k + 1][hi], {trade.sends + in * rate + (in > 0 ? message : 0),
                                            trade.receives + out * rate + (out > 0 ? message : 0), lo, from});
                    }
                }
        }
        const Trade* best = nullptr;
        for (const Trade& trade : at[n][rows])
            if (!best || trade.sends < best->sends) best = &trade;
        if (!best) return {};
        LoadDivision found;
        found.leader = ask.leader;
        found.bounds.assign(n + 1, rows);
        for (int k = n - 1; k >= 0; --k) {
            found.bounds[k] = best->row;
            best = &at[k][best->row][best->from];
        }
        measure(ask, found);
        return found;
    }

    // Shared without overlap: each leader's strip between the least transfers in front of it and behind it.
    LoadDivision between(const LoadAsk& ask) {
        const int rows = segment(ask).rows, n = static_cast<int>(sets_.members[ask.set].size());
        walk_front(rows, n), walk_back(rows, n);
        LoadDivision best;
        double least = kNever;
        int leader = 0, from = 0, to = 0;
        for (int k = 0; k < n; ++k) {
            const Role& role = roles_[k];
            if (!role.leads) continue;
            const Ends ends = ends_of(ask, sets_.members[ask.set][k], sets_.members[ask.set][k]);
            const double room = ask.period * kAbout - ends.send - ends.receive - ask.before - ask.behind;
            const Line& computing = role.leader.conditions[0];
            for (int lo = low_[k]; lo <= high_[k]; ++lo) {
                if (front_[k][lo] == kNever) continue;
                for (int hi = std::max(lo, low_[k + 1]); hi <= high_[k + 1]; ++hi) {
                    const double sends = front_[k][lo] + back_[k + 1][hi];
                    const double value = sends + role.fixed;
                    if (value < least && sends + (lo < hi ? computing.of(lo, hi) : 0) <= room)
                        least = value, leader = k, from = lo, to = hi;
                }
            }
        }
        if (least == kNever) return best;
        best.leader = leader;
        best.bounds.assign(n + 1, rows);
        best.bounds[leader] = from, best.bounds[leader + 1] = to;
        for (int k = leader - 1, row = from; k >= 0; --k) row = best.bounds[k] = from_[0][k][row].row;
        for (int k = leader + 1, row = to; k < n; ++k) row = best.bounds[k + 1] = onwards_[k][row];
        measure(ask, best);
        return best;
    }

    // By k and row: the least transfers of the first k devices, none of them leading, that end there.
    void walk_front(int rows, int n) {
        if (now_.empty()) now_.resize(1), next_.resize(1), from_.resize(1);
        if (static_cast<int>(from_[0].size()) < n) from_[0].resize(n);
        front_.resize(std::max<std::size_t>(front_.size(), n + 1));
        now_[0].assign(rows + 1, kNever), next_[0].assign(rows + 1, kNever);
        now_[0][0] = 0;
        for (int k = 0; k <= n; ++k) {
            front_[k] = now_[0];
            if (k == n) return;
            from_[0][k].resize(rows + 1);
            for (int row = 0; row <= rows; ++row) next_[0][row] = now_[0][row], from_[0][k][row] = {row, 0};
            extend(roles_[k].worker, roles_[k].worker.cost, 0, nullptr, k, 0, 0);
            std::swap(now_[0], next_[0]);
        }
    }

    // By k and row: the least of the devices from k on that begin there.
    void walk_back(int rows, int n) {
        back_.resize(std::max<std::size_t>(back_.size(), n + 1)),
            onwards_.resize(std::max<std::size_t>(onwards_.size(), n));
        back_[n].assign(rows + 1, kNever);
        back_[n][rows] = 0;
        for (int k = n - 1; k >= 0; --k) {
            const Lines& lines = roles_[k].worker;
            const auto& behind = back_[k + 1];
            auto& here = back_[k];
            here = behind;
            onwards_[k].resize(rows + 1);
            for (int row = 0; row <= rows; ++row) onwards_[k][row] = row;
            int head = 0, tail = 0;  // stops that a strip can have, the least first: they fall with its first row
            for (int lo = rows - 1; lo >= 0; --lo) {
                if (const int hi = lo + 1; hi < rows && behind[hi] < kNever) {
                    const double value = behind[hi] + lines.cost.upper[hi];
                    while (tail > head && window_value_[tail - 1] >= value) --tail;
                    window_row_[tail] = hi, window_value_[tail] = value;
                    ++tail;
                }
                while (head < tail && !fits(lines, lo, window_row_[head])) ++head;
                if (head < tail && window_value_[head] - lines.cost.lower[lo] < here[lo])
                    here[lo] = window_value_[head] - lines.cost.lower[lo], onwards_[k][lo] = window_row_[head];
                if (fits(lines, lo, rows) && lines.cost.final[lo] < here[lo])
                    here[lo] = lines.cost.final[lo], onwards_[k][lo] = rows;
            }
        }
    }
};

}  // namespace downset
