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
#include <vector>

#include "pipelines/loads/stage_loads.hpp"

namespace downset {

class RowPaths : public StageLoads {
public:
    using StageLoads::StageLoads;

protected:
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
    // the most other devices.
    struct Paths {
        bool computing;
        double floor;
        int most;
    };

    std::vector<Role> roles_;
    Line kept_;  // the leader's own output
    std::vector<std::vector<double>> now_, next_;
    std::vector<std::vector<std::vector<Step>>> from_;
    std::vector<int> low_, high_, window_row_;
    std::vector<double> window_value_;

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
        for (int line = 0; line < lines.used; ++line)
            if (lines.conditions[line].of(lo, hi) > lines.conditions[line].room) return false;
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
        LoadDivision division = path(ask, paths);
        if (division.value < kNever) measure(ask, division);
        return division;
    }

    // The shortest path: its length, its leader and bounds.
    LoadDivision path(const LoadAsk& ask, const Paths& paths) {
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
        LoadDivision division;
        division.value = now_[best][rows];
        division.bounds.assign(n + 1, rows);
        for (int k = n - 1, row = rows, layer = best; k >= 0; --k) {
            const Step step = from_[layer][k][row];
            if (layer >= counts && step.layer < counts) division.leader = k;
            layer = step.layer, row = step.row;
            division.bounds[k] = row;
        }
        return division;
    }

    // A line of zeros.
    const Line& none(int rows) {
        nothing_.upper.assign(rows + 1, 0), nothing_.lower.assign(rows + 1, 0), nothing_.final.assign(rows + 1, 0);
        return nothing_;
    }
    Line nothing_;

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
};

}  // namespace downset
