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
#include <array>
#include <vector>

#include "pipelines/loads/stage_loads.hpp"

namespace downset {

class RowPaths : public StageLoads {
public:
    explicit RowPaths(const LoadProblem& problem) : StageLoads(problem), roles_(problem.devices.size()) {}

protected:
    static constexpr double kNoFloor = -1;
    static constexpr int kNoCount = -1;

    // Strips and the room for them.
    struct Line {
        const double *upper = nullptr, *lower = nullptr, *final = nullptr;
        double room = kNever;

        Line() = default;
        Line(const StripCosts& strips, double room_for_strips)
            : upper(strips.upper.data()), lower(strips.lower.data()), final(strips.final.data()),
              room(room_for_strips) {}
        bool fits(int lo, int hi) const { return upper[hi] - lower[lo] <= room; }  // of strips above the last row
        bool fits_last(int lo) const { return final[lo] <= room; }
    };
    struct Share {
        double work, in, out, message_in, message_out;  // seconds a unit of work, a byte, a message
    };
    struct Lines {
        std::array<Line, 3> conditions;
        int used = 0;
        const StripCosts* cost = nullptr;
        std::array<StripCosts, 3> tables;  // of the conditions, where they are sums
        StripCosts cost_table;
    };
    struct Role {
        Lines worker, leader;
        bool apart = true;  // a leader has conditions of its own; else those of a worker
        double fixed = 0;   // of a leader
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

    std::vector<Role> roles_;  // by position in a set; lines point into it, so that it never grows
    StripCosts kept_;          // the leader's own output
    std::vector<std::vector<double>> now_, next_;
    std::vector<std::vector<std::vector<Step>>> from_;
    std::vector<int> low_, high_, window_row_;
    std::vector<double> window_value_;

    void fill(StripCosts& strips, const LoadAsk& ask, int device, const Share& share) const {
        const auto& seg = segment(ask);
        const auto& own = work(ask, device);
        const int rows = seg.rows;
        strips.upper.resize(rows + 1), strips.lower.resize(rows + 1), strips.final.resize(rows + 1);
        const double inner = (seg.inner_in ? share.message_in : 0) + (seg.inner_out ? share.message_out : 0);
        for (int row = 0; row <= rows; ++row) {
            strips.upper[row] =
                share.work * own.upper[row] + share.in * seg.in.upper[row] + share.out * seg.out.upper[row] + inner;
            strips.lower[row] =
                share.work * own.lower[row] + share.in * seg.in.lower[row] + share.out * seg.out.lower[row];
            strips.final[row] = share.work * own.final[row] + share.in * seg.in.final[row] +
                                share.out * seg.out.final[row] + (seg.in.final[row] > 0 ? share.message_in : 0) +
                                (seg.out.final[row] > 0 ? share.message_out : 0);
        }
    }

    // What each device may do as one of the leader's, and as the leader.
    void prepare(const LoadAsk& ask) {
        const auto& devices = sets_.members[ask.set];
        const int n = static_cast<int>(devices.size());
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
            fill(worker.cost_table, ask, device,
                 ask.full ? Share{0, rate, 0, message, 0} : Share{0, rate, rate, message, message});
            worker.cost = &worker.cost_table;
            if (!role.leads) continue;
            role.leader.used = 0;
            add(role.leader, ask, device, {second, 0, 0, 0, 0}, period);
            const Ends own = ends_of(ask, device, device);
            role.fixed = problem_.network.shared ? medium_fixed(ask, device) : own.send + (ask.full ? 0 : own.receive);
        }
        reach(ask, n);
    }

    void add(Lines& lines, const LoadAsk& ask, int device, const Share& share, double room) {
        StripCosts& strips = lines.tables[lines.used];
        fill(strips, ask, device, share);
        lines.conditions[lines.used++] = Line(strips, room + 1e-12 * ask.period);
    }

    static bool fits(const Lines& lines, int lo, int hi, int rows) {
        return hi == rows ? fits_last(lines, lo) : fits_above(lines, lo, hi);
    }
    // A strip that ends above the last row.
    static bool fits_above(const Lines& lines, int lo, int hi) {
        return lines.conditions[0].fits(lo, hi) && (lines.used < 2 || lines.conditions[1].fits(lo, hi)) &&
               (lines.used < 3 || lines.conditions[2].fits(lo, hi));
    }
    static bool fits_last(const Lines& lines, int lo) {
        return lines.conditions[0].fits_last(lo) && (lines.used < 2 || lines.conditions[1].fits_last(lo)) &&
               (lines.used < 3 || lines.conditions[2].fits_last(lo));
    }

    // By k: the rows [low, high] at which the first k devices can end, so that those behind them can do the rest.
    void reach(const LoadAsk& ask, int n) {
        const int rows = segment(ask).rows;
        low_.assign(n + 1, rows), high_.assign(n + 1, 0);
        const auto able = [&](int k, int lo, int hi) {
            const Role& role = roles_[k];
            return fits(role.worker, lo, hi, rows) || (role.apart && role.leads && fits(role.leader, lo, hi, rows));
        };
        // The first row of [from, to) for which it holds, `to` if there is none; for all rows behind it holds as well.
        const auto first_row = [](int from, int to, const auto& holds) {
            while (from < to) {
                const int middle = from + (to - from) / 2;
                if (holds(middle))
                    to = middle;
                else
                    from = middle + 1;
            }
            return from;
        };
        for (int k = n - 1; k >= 0; --k)
            low_[k] = first_row(0, low_[k + 1], [&](int lo) { return able(k, lo, low_[k + 1]); });
        if (low_[0] > 0) return;
        for (int k = 0; k < n; ++k) {
            const int start = high_[k];
            if (start == rows || able(k, start, rows))
                high_[k + 1] = rows;
            else
                high_[k + 1] = first_row(start + 1, rows, [&](int hi) { return !able(k, start, hi); }) - 1;
        }
    }

    // The shortest path with its leader and bounds, measured; infinite where there is none.
    LoadDivision shortest(const LoadAsk& ask, const Paths& paths) {
        LoadDivision division;
        path(ask, paths, division);
        if (division.value < kNever) measure(ask, division);
        return division;
    }

    // The shortest path: its length, and its leader and bounds if it is finite.
    void path(const LoadAsk& ask, const Paths& paths, LoadDivision& division) {
        const int rows = segment(ask).rows, n = static_cast<int>(sets_.members[ask.set].size());
        division.value = kNever;
        if (low_[0] > 0 || high_[n] < rows) return;
        const int counts = paths.most == kNoCount ? 1 : paths.most + 1, layers = 2 * counts;
        if (static_cast<int>(now_.size()) < layers) now_.resize(layers), next_.resize(layers), from_.resize(layers);
        for (int layer = 0; layer < layers; ++layer) {
            now_[layer].resize(rows + 1), next_[layer].resize(rows + 1);
            if (static_cast<int>(from_[layer].size()) < n) from_[layer].resize(n);
            now_[layer][0] = layer == 0 ? 0 : kNever;
        }
        int first_leader = n, last_leader = -1;
        for (int k = 0; k < n; ++k)
            if (roles_[k].leads) first_leader = std::min(first_leader, k), last_leader = k;
        if (last_leader < 0) return;
        // Whether a path may be in a layer behind the first k devices: its leader is among the others, or among them.
        const auto alive = [&](int layer, int k) { return layer < counts ? k <= last_leader : k > first_leader; };
        const double* floor = paths.floor == kNoFloor ? nullptr : &paths.floor;
        for (int k = 0; k < n; ++k) {
            const Role& role = roles_[k];
            for (int layer = 0; layer < layers; ++layer)
                if (alive(layer, k + 1)) pass_by(k, layer, alive(layer, k));
            for (int layer = 0; layer < layers; ++layer) {
                if (!alive(layer, k)) continue;
                const int more = paths.most == kNoCount ? layer : layer + 1;
                if (alive(layer, k + 1) && (paths.most == kNoCount || more % counts != 0))
                    extend(role.worker, role.worker.cost, 0, nullptr, k, layer, more);
                if (layer >= counts || !role.leads) continue;
                if (!floor || *floor <= 0) name(role.fixed, k, layer, layer + counts);
                extend(role.apart ? role.leader : role.worker, paths.computing ? &role.leader.tables[0] : nullptr,
                       role.fixed, floor, k, layer, layer + counts);
            }
            std::swap(now_, next_);
        }
        int best = counts;
        for (int layer = counts; layer < layers; ++layer)
            if (now_[layer][rows] < now_[best][rows]) best = layer;
        if (now_[best][rows] == kNever) return;
        division.value = now_[best][rows];
        division.bounds.assign(n + 1, rows);
        for (int k = n - 1, row = rows, layer = best; k >= 0; --k) {
            const Step step = from_[layer][k][row];
            if (layer >= counts && step.layer < counts) division.leader = k;
            layer = step.layer, row = step.row;
            division.bounds[k] = row;
        }
    }

    // Device k without rows; `reached`: whether any path is in this layer.
    void pass_by(int k, int layer, bool reached) {
        const auto& now = now_[layer];
        auto& next = next_[layer];
        auto& from = from_[layer][k];
        from.resize(next.size());
        for (int row = low_[k + 1]; row <= high_[k + 1]; ++row) {
            next[row] = reached && row <= high_[k] && row >= low_[k] ? now[row] : kNever;
            from[row] = {row, layer};
        }
    }

    // Device k leads without rows of its own.
    void name(double fixed, int k, int source, int target) {
        for (int row = std::max(low_[k], low_[k + 1]); row <= std::min(high_[k], high_[k + 1]); ++row)
            if (now_[source][row] + fixed < next_[target][row])
                next_[target][row] = now_[source][row] + fixed, from_[target][k][row] = {row, source};
    }

    // Gives device k a strip behind every division in now_[source], into next_[target]; with a floor one that keeps so
    // much output. Without a cost strips cost nothing.
    void extend(const Lines& lines, const StripCosts* cost, double fixed, const double* floor, int k, int source,
                int target) {
        const double* now = now_[source].data();
        double* next = next_[target].data();
        Step* from = from_[target][k].data();
        const int rows = static_cast<int>(next_[target].size()) - 1, last = std::min(high_[k], rows - 1);
        window_row_.resize(rows + 1), window_value_.resize(rows + 1);
        int* window_row = window_row_.data();
        double* window_value = window_value_.data();
        const double *lower = cost ? cost->lower.data() : nullptr, *upper = cost ? cost->upper.data() : nullptr;
        int head = 0, tail = 0, row = low_[k];
        const auto enough = [&](int lo, int hi) { return !floor || kept_.of(lo, hi) >= *floor; };
        const int end = std::min(high_[k + 1], rows - 1);
        for (int stop = std::max(low_[k + 1], low_[k] + 1); stop <= end; ++stop) {
            for (; row < stop && row <= last && enough(row, stop); ++row) {
                if (now[row] == kNever) continue;
                const double value = lower ? now[row] - lower[row] : now[row];
                while (tail > head && window_value[tail - 1] >= value) --tail;
                window_row[tail] = row, window_value[tail] = value;
                ++tail;
            }
            while (head < tail && !fits_above(lines, window_row[head], stop)) ++head;
            if (head == tail) continue;
            const double value = window_value[head] + (upper ? upper[stop] : 0) + fixed;
            if (value < next[stop]) next[stop] = value, from[stop] = {window_row[head], source};
        }
        if (high_[k + 1] < rows) return;
        for (int lo = last; lo >= low_[k] && fits_last(lines, lo); --lo) {
            const double value = now[lo] + (cost ? cost->final[lo] : 0) + fixed;
            if (value < next[rows] && enough(lo, rows)) next[rows] = value, from[rows] = {lo, source};
        }
    }
};

}  // namespace downset
