// A block of fused units divided over a set of devices, exactly, into integer rows.
//
// The devices lie in a fixed order. For a limit T on computing, the least communication C(T) is a shortest path over
// row boundaries; MACs and bytes of strip [lo, hi) are upper[hi] - lower[lo], so each device costs one sliding minimum.
// The leader's strip stays where it is. Where all pairs of devices are alike, the best leader is found on the way: a
// second layer holds the divisions that have named theirs. C falls in T.
#pragma once

#include <algorithm>
#include <vector>

#include "pipelines/device_sets.hpp"

namespace downset {

struct Division {
    double transfer = kNever, longest = 0;  // seconds of communication, and of the busiest device's computing
    int leader = 0;                         // position among the set's devices
    std::vector<int> bounds;
};

class RowDivision {
public:
    RowDivision(const PipelineProblem& problem, const DeviceSets& sets) : problem_(problem), sets_(sets) {}

    // The least communication with every device's computing within the limit; infinity where they cannot.
    // `found`, if given, receives transfer, longest and leader, and the row boundaries if `bounds`.
    double least_transfer(int start, int stop, int set, int leader, double limit, Division* division,
                          bool bounds = false) {
        const auto& seg = problem_.segment(start, stop);
        const auto& devices = sets_.members[set];
        if (problem_.macs(start, stop) > capacity(sets_.speed[set], limit)) return kNever;
        const int lead = leader == kAnyLeader ? 0 : leader;  // the fastest leads what one device can do alone
        if (seg.macs.final[0] <= capacity(problem_.speed[devices[lead]], limit)) {
            if (division) {
                *division = {0, seg.macs.final[0] / problem_.speed[devices[lead]], lead, {}};
                if (bounds)
                    for (int k = 0; k <= static_cast<int>(devices.size()); ++k)
                        division->bounds.push_back(k > lead ? seg.rows : 0);
            }
            return 0;
        }
        if (devices.size() == 1) return kNever;
        return divided(seg, devices, leader, limit, division, bounds);
    }

    // The least bytes a MAC of any strip, by Dinkelbach's method: lower the ratio until no strip is below it.
    template <class Costs>
    static double strip_ratio(int rows, const Costs& strip_macs, const Costs& strip_bytes) {
        double ratio = strip_bytes.final[0] / strip_macs.final[0];
        for (int round = 0; round < 50; ++round) {
            double least = 0, better = ratio;  // of bytes - ratio · MACs
            double base = -kNever;
            int base_row = 0;
            const auto offer = [&](double nbytes, double macs) {
                const double value = nbytes - ratio * macs;
                if (macs > 0 && value < least) least = value, better = std::max(0.0, nbytes / macs);
            };
            for (int hi = 1; hi < rows; ++hi) {
                const double here = strip_bytes.lower[hi - 1] - ratio * strip_macs.lower[hi - 1];
                if (here > base) base = here, base_row = hi - 1;
                offer(strip_bytes.upper[hi] - strip_bytes.lower[base_row],
                      strip_macs.upper[hi] - strip_macs.lower[base_row]);
            }
            for (int lo = 0; lo < rows; ++lo) offer(strip_bytes.final[lo], strip_macs.final[lo]);
            if (better >= ratio * (1 - 1e-12)) return ratio * (1 - 1e-9);
            ratio = better;
        }
        return 0;  // not settled: no bound
    }

protected:
    const PipelineProblem& problem_;
    const DeviceSets& sets_;

private:
    // by layer: 1 where the leader has been named
    std::vector<double> now_[2], next_[2], window_value_;
    std::vector<int> window_row_, low_, high_;
    struct Step {
        int row, layer;
    };
    std::vector<std::vector<Step>> from_[2];

    static double capacity(double speed, double limit) { return limit * speed * kAbout; }

    double divided(const PipelineSegment& seg, const std::vector<int>& devices, int leader, double limit,
                   Division* division, bool bounds) {
        const int rows = seg.rows, n = static_cast<int>(devices.size());
        const bool any = leader == kAnyLeader;
        if (!reach(seg, devices, limit)) return kNever;
        for (int layer = any ? 0 : 1; layer < 2; ++layer) {
            now_[layer].resize(rows + 1), next_[layer].resize(rows + 1);
            if (static_cast<int>(from_[layer].size()) < n) from_[layer].resize(n);
            now_[layer][0] = layer == (any ? 0 : 1) ? 0 : kNever;
        }
        for (int k = 0; k < n; ++k) {
            const int device = devices[k], head = any ? (device == 0 ? 1 : 0) : devices[leader];
            const double room = capacity(problem_.speed[device], limit);
            const double cost = device == head ? 0 : problem_.network.per_byte[head][device];
            const double fixed = device == head ? 0 : 2 * problem_.network.latency[head][device];
            for (int layer = any ? 0 : 1; layer < 2; ++layer) {
                auto& from = from_[layer][k];
                from.resize(rows + 1);
                for (int r = low_[k + 1]; r <= high_[k + 1]; ++r) {
                    next_[layer][r] = r <= high_[k] ? now_[layer][r] : kNever;
                    from[r] = {r, layer};
                }
                extend(seg, room, cost, fixed, k, layer, layer);
            }
            if (any) extend(seg, room, 0, 0, k, 0, 1);
            for (int layer = any ? 0 : 1; layer < 2; ++layer) std::swap(now_[layer], next_[layer]);
        }
        const double result = now_[1][rows];
        if (result == kNever || !division) return result;
        division->transfer = result;
        division->longest = 0;
        division->leader = any ? 0 : leader;
        if (bounds) division->bounds.assign(n + 1, rows);
        for (int k = n - 1, r = rows, layer = 1; k >= 0; --k) {
            const Step step = from_[layer][k][r];
            if (step.row < r) {
                const double work = r == rows ? seg.macs.final[step.row] : seg.macs.upper[r] - seg.macs.lower[step.row];
                division->longest = std::max(division->longest, work / problem_.speed[devices[k]]);
            }
            if (step.layer != layer) division->leader = k;
            layer = step.layer;
            r = step.row;
            if (bounds) division->bounds[k] = r;
        }
        return result;
    }

    // By k: the rows [low, high] at which the first k devices can end, so that those behind them can do the rest.
    bool reach(const PipelineSegment& seg, const std::vector<int>& devices, double limit) {
        const int rows = seg.rows, n = static_cast<int>(devices.size());
        low_.assign(n + 1, rows), high_.assign(n + 1, 0);
        for (int k = n - 1; k >= 0; --k) {
            const double room = capacity(problem_.speed[devices[k]], limit);
            const int stop = low_[k + 1];
            if (stop == rows) {
                const auto begin = seg.macs.final.begin();
                low_[k] = static_cast<int>(
                    std::partition_point(begin, begin + rows, [&](double macs) { return macs > room; }) - begin);
            } else {
                const auto begin = seg.macs.lower.begin();
                const double whole = seg.macs.upper[stop];
                low_[k] = static_cast<int>(
                    std::partition_point(begin, begin + stop, [&](double macs) { return whole - macs > room; }) -
                    begin);
            }
        }
        if (low_[0] > 0) return false;
        for (int k = 0; k < n; ++k) {
            const double room = capacity(problem_.speed[devices[k]], limit);
            const int start = high_[k];
            if (start == rows || seg.macs.final[start] <= room) {
                high_[k + 1] = rows;
                continue;
            }
            const auto begin = seg.macs.upper.begin();
            const double lower = seg.macs.lower[start];
            high_[k + 1] = static_cast<int>(std::partition_point(begin + start + 1, begin + rows,
                                                                 [&](double macs) { return macs - lower <= room; }) -
                                            begin) -
                           1;
        }
        return high_[n] == rows;
    }

    // Gives device k a strip behind every division in now_[source], into next_[target].
    void extend(const PipelineSegment& seg, double room, double cost, double fixed, int k, int source, int target) {
        const auto& now = now_[source];
        auto& next = next_[target];
        auto& from = from_[target][k];
        const int rows = seg.rows, last = std::min(high_[k], rows - 1);
        window_row_.resize(rows + 1), window_value_.resize(rows + 1);
        int head = 0, tail = 0, row = low_[k];
        for (int r = std::max(low_[k + 1], low_[k] + 1); r <= std::min(high_[k + 1], rows - 1); ++r) {
            for (; row < r && row <= last; ++row) {
                if (now[row] == kNever) continue;
                const double value = now[row] - cost * seg.moved.lower[row];
                while (tail > head && window_value_[tail - 1] >= value) --tail;
                window_row_[tail] = row, window_value_[tail] = value;
                ++tail;
            }
            while (head < tail && seg.macs.upper[r] - seg.macs.lower[window_row_[head]] > room) ++head;
            if (head == tail) continue;
            const double value = window_value_[head] + cost * seg.moved.upper[r] + fixed;
            if (value < next[r]) next[r] = value, from[r] = {window_row_[head], source};
        }
        if (high_[k + 1] < rows) return;
        for (int r = last; r >= low_[k] && seg.macs.final[r] <= room; --r) {
            const double value = now[r] + cost * seg.moved.final[r] + fixed;
            if (value < next[rows]) next[rows] = value, from[rows] = {r, source};
        }
    }
};

}  // namespace downset
