// A block of fused units divided exactly into integer rows, and stages of several such blocks.
//
// Inside a block the devices lie in a fixed order. For a limit T on computing, the least communication C(T) is a shortest
// path over row boundaries; MACs and bytes of strip [lo, hi) are upper[hi] - lower[lo], so each device costs one sliding
// minimum. The leader's strip stays where it is. Where all pairs of devices are alike, the best leader is found on the
// way: a second layer holds the divisions that have named theirs.
//
// C falls in T. So T + C(T) is bounded on every interval of T and its least value found by bisection; and whether it can
// be had within B is told by T = B, B - C(B), …, which falls to the largest T with T + C(T) <= B, or below all divisions.
#pragma once

#include <chrono>
#include <unordered_map>

#include "pipeline_problem.hpp"

namespace downset {

constexpr int kAnyLeader = -1;

class PipelineBlocks {
  public:
    struct Division {
        double transfer = kNever, longest = 0;  // seconds of communication, and of the busiest device's computing
        int leader = 0;                         // position among the set's devices
        std::vector<int> bounds;
    };
    // Of the least T + C(T): some division has `value`, at `limit` of computing; none is below `above`.
    struct Known {
        double value = kNever, limit = kNever, above = 0;
        bool exact() const { return above >= value * kBelow; }
    };

    PipelineBlocks(const PipelineProblem& problem, const DeviceSets& sets, double seconds, std::int64_t state_limit)
        : problem_(problem), sets_(sets), state_limit_(state_limit),
          deadline_(std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                           std::chrono::duration<double>(std::max(0.0, seconds)))),
          known_(sets.count), byte_seconds_per_mac_(problem.segments.size(), -1.0) {}

    std::int64_t states() const { return states_; }
    bool stopped() const { return stopped_; }
    bool out_of_time() {
        ++states_;
        if ((states_ & 63) == 0 && std::chrono::steady_clock::now() > deadline_) stopped_ = true;
        if (states_ > state_limit_) stopped_ = true;
        return stopped_;
    }

    // The least communication with every device's computing within the limit; infinity where they cannot.
    // `found`, if given, receives transfer, longest and leader, and the row boundaries if `bounds`.
    double least_transfer(int start, int stop, int set, int leader, double limit, Division* found, bool bounds = false) {
        const auto& seg = problem_.segment(start, stop);
        const auto& devices = sets_.members[set];
        if (problem_.macs(start, stop) > capacity(sets_.speed[set], limit)) return kNever;
        const int lead = leader == kAnyLeader ? 0 : leader;  // the fastest leads what one device can do alone
        if (seg.macs_final[0] <= capacity(problem_.speed[devices[lead]], limit)) {
            if (found) {
                *found = {0, seg.macs_final[0] / problem_.speed[devices[lead]], lead, {}};
                if (bounds)
                    for (int k = 0; k <= static_cast<int>(devices.size()); ++k) found->bounds.push_back(k > lead ? seg.rows : 0);
            }
            return 0;
        }
        if (devices.size() == 1) return kNever;
        return divided(seg, devices, leader, limit, found, bounds);
    }

    // The least T + C(T) below the cutoff, exactly; value infinite: none below.
    Known least_sum(int start, int stop, int set, int leader, double cutoff) {
        Known& known = known_of(start, stop, set, leader);
        if (known.above >= cutoff || known.exact()) return known.value < cutoff ? known : Known{kNever, kNever, known.above};
        struct Span {
            double low, low_cost, high, high_cost;
        };
        double best = cutoff, best_limit = kNever;
        if (known.value < best) best = known.value, best_limit = known.limit;
        Division found;
        const auto look = [&](double limit) {
            const double transfer = least_transfer(start, stop, set, leader, limit, &found);
            if (transfer < kNever && found.longest + transfer < best * kBelow) best = found.longest + transfer, best_limit = limit;
            if (transfer == kNever) found.longest = limit;
            return transfer;
        };
        const double alone = problem_.segment(start, stop).macs_final[0] /
                             (leader == kAnyLeader ? sets_.fastest[set] : problem_.speed[sets_.members[set][leader]]);
        if (alone < best) best = best_limit = alone;
        if (sets_.members[set].size() > 1) {
            const double end = std::min(best, alone);
            const double end_cost = look(end);
            const double end_really = found.longest;
            const double least = problem_.macs(start, stop) / sets_.speed[set];
            if (end_cost < kNever && least + end_cost < best * kBelow) {
                const double start_cost = look(least);
                std::vector<Span> spans{{least, start_cost, end_really, end_cost}};
                while (!spans.empty()) {
                    const Span span = spans.back();
                    spans.pop_back();
                    if (span.low + span.high_cost >= best * kBelow || span.high <= span.low * kAbout) continue;
                    if (span.low_cost == span.high_cost) continue;
                    if (out_of_time()) return {kNever, kNever, 0};
                    const double middle = (span.low + span.high) / 2;
                    const double cost = look(middle);
                    const double really = found.longest;
                    spans.push_back({middle, cost, span.high, span.high_cost});
                    spans.push_back({span.low, span.low_cost, std::min(really, middle), cost});
                }
            }
        }
        known.above = best;
        if (best < cutoff) known.value = best, known.limit = best_limit;
        return best < cutoff ? known : Known{kNever, kNever, best};
    }

    // Whether some division has T + C(T) within the budget: the value of one, or infinity.
    double sum_within(int start, int stop, int set, int leader, double budget) {
        Known& known = known_of(start, stop, set, leader);
        if (known.value <= budget) return known.value;
        if (known.above >= budget) return kNever;
        double limit = budget;
        Division found;
        while (!out_of_time()) {
            const double transfer = least_transfer(start, stop, set, leader, limit, &found);
            if (transfer == kNever) break;
            if (found.longest + transfer <= budget * kAbout) {
                known.value = found.longest + transfer, known.limit = limit;
                return known.value;
            }
            const double next = budget - transfer;
            if (next >= limit) break;  // rounding
            limit = next;
        }
        if (!stopped_) known.above = std::max(known.above, budget);
        return kNever;
    }

    Known& known_of(int start, int stop, int set, int leader) {
        const int at = problem_.index(start, stop);
        if (leader == kAnyLeader) {
            if (known_[set].empty()) known_[set].resize(problem_.segments.size());
            return known_[set][at];
        }
        return known_led_[(static_cast<std::int64_t>(at) * sets_.count + set) * static_cast<int>(problem_.speed.size()) + leader];
    }

    // The least sum of several blocks (two at least), one after another on the same devices under one leader, if it is
    // below the cutoff: a shortest path over least sums, worked out only where a path seems short enough.
    double several(int start, int stop, int set, int& leader, double cutoff, std::vector<std::pair<int, int>>* path) {
        if (leader != kAnyLeader) return path_sum(start, stop, set, leader, cutoff, path);
        // Each block led by whom it likes best is a bound; then one leader for all.
        if (path_sum(start, stop, set, kAnyLeader, cutoff, nullptr) == kNever) return kNever;
        double best = kNever;
        for (int one = 0; one < static_cast<int>(sets_.members[set].size()) && !stopped_; ++one) {
            const double value = path_sum(start, stop, set, one, std::min(best, cutoff), path);
            if (value < best) best = value, leader = one;
        }
        return best;
    }

    // Likewise with a leader for each block: a bound.
    double several_led_freely(int start, int stop, int set, double cutoff) {
        return path_sum(start, stop, set, kAnyLeader, cutoff, nullptr);
    }

    // No stage of several blocks on the set sums to less, as far as is known: the shortest path over bounds. Worked out
    // once for a set, and again after `forget_bounds`.
    double several_bound(int start, int stop, int set) {
        if (several_bounds_.empty()) several_bounds_.resize(sets_.count);
        auto& bounds = several_bounds_[set];
        if (bounds.empty()) {
            const int lines = problem_.cuts + 1;
            std::vector<double> one(lines * lines, kNever), any(lines * lines, kNever);
            bounds.assign(lines * lines, kNever);
            for (int from = problem_.cuts - 1; from >= 0; --from)
                for (int to = from + 1; to <= problem_.cuts; ++to) {
                    double least = kNever;
                    for (int middle = from + 1; middle < to; ++middle)
                        least = std::min(least, one[from * lines + middle] + any[middle * lines + to]);
                    bounds[from * lines + to] = least;
                    one[from * lines + to] = std::max(known_of(from, to, set, kAnyLeader).above,
                                                      sum_bound(from, to, sets_.speed[set], sets_.fastest[set]));
                    any[from * lines + to] = std::min(one[from * lines + to], least);
                }
        }
        return bounds[problem_.index(start, stop)];
    }
    void forget_bounds() { several_bounds_.clear(); }

    // Seconds on the network for each MAC that is not the leader's, at least: the best ratio of any strip.
    double seconds_per_mac(int start, int stop) {
        double& ratio = byte_seconds_per_mac_[problem_.index(start, stop)];
        if (ratio >= 0) return ratio;
        const auto& seg = problem_.segment(start, stop);
        ratio = problem_.per_byte.size() > 1 && seg.macs_final[0] > 0 ? strip_ratio(seg) * problem_.per_byte[0][1] : 0;
        return ratio;
    }

    // No division of the segment over devices of this speed together, the fastest of them leading, sums to less.
    double sum_bound(int start, int stop, double speed, double fastest) {
        const double macs = problem_.macs(start, stop);
        if (!problem_.uniform) return macs / speed;
        return std::min(macs / fastest, macs / speed + seconds_per_mac(start, stop) * macs * (1 - fastest / speed));
    }

  private:
    const PipelineProblem& problem_;
    const DeviceSets& sets_;
    std::int64_t state_limit_, states_ = 0;
    std::chrono::steady_clock::time_point deadline_;
    bool stopped_ = false;
    std::vector<std::vector<Known>> known_;  // by set, segment: any leader
    std::unordered_map<std::int64_t, Known> known_led_;
    std::vector<double> byte_seconds_per_mac_;
    std::vector<std::vector<double>> several_bounds_;  // by set, segment
    // by layer: 1 where the leader has been named
    std::vector<double> now_[2], next_[2], window_value_;
    std::vector<int> window_row_, low_, high_;
    struct Step {
        int row, layer;
    };
    std::vector<std::vector<Step>> from_[2];

    static double capacity(double speed, double limit) { return limit * speed * kAbout; }

    double divided(const PipelineSegment& seg, const std::vector<int>& devices, int leader, double limit, Division* found, bool bounds) {
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
            const double cost = device == head ? 0 : problem_.per_byte[head][device];
            const double fixed = device == head ? 0 : 2 * problem_.latency[head][device];
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
        if (result == kNever || !found) return result;
        found->transfer = result;
        found->longest = 0;
        found->leader = any ? 0 : leader;
        if (bounds) found->bounds.assign(n + 1, rows);
        for (int k = n - 1, r = rows, layer = 1; k >= 0; --k) {
            const Step step = from_[layer][k][r];
            if (step.row < r) {
                const double work = r == rows ? seg.macs_final[step.row] : seg.macs_upper[r] - seg.macs_lower[step.row];
                found->longest = std::max(found->longest, work / problem_.speed[devices[k]]);
            }
            if (step.layer != layer) found->leader = k;
            layer = step.layer;
            r = step.row;
            if (bounds) found->bounds[k] = r;
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
                const auto begin = seg.macs_final.begin();
                low_[k] = static_cast<int>(std::partition_point(begin, begin + rows, [&](double macs) { return macs > room; }) - begin);
            } else {
                const auto begin = seg.macs_lower.begin();
                const double made = seg.macs_upper[stop];
                low_[k] = static_cast<int>(std::partition_point(begin, begin + stop, [&](double macs) { return made - macs > room; }) - begin);
            }
        }
        if (low_[0] > 0) return false;
        for (int k = 0; k < n; ++k) {
            const double room = capacity(problem_.speed[devices[k]], limit);
            const int start = high_[k];
            if (start == rows || seg.macs_final[start] <= room) {
                high_[k + 1] = rows;
                continue;
            }
            const auto begin = seg.macs_upper.begin();
            const double lower = seg.macs_lower[start];
            high_[k + 1] = static_cast<int>(std::partition_point(begin + start + 1, begin + rows,
                                                                 [&](double macs) { return macs - lower <= room; }) - begin) - 1;
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
                const double value = now[row] - cost * seg.io_lower[row];
                while (tail > head && window_value_[tail - 1] >= value) --tail;
                window_row_[tail] = row, window_value_[tail] = value;
                ++tail;
            }
            while (head < tail && seg.macs_upper[r] - seg.macs_lower[window_row_[head]] > room) ++head;
            if (head == tail) continue;
            const double value = window_value_[head] + cost * seg.io_upper[r] + fixed;
            if (value < next[r]) next[r] = value, from[r] = {window_row_[head], source};
        }
        if (high_[k + 1] < rows) return;
        for (int r = last; r >= low_[k] && seg.macs_final[r] <= room; --r) {
            const double value = now[r] + cost * seg.io_final[r] + fixed;
            if (value < next[rows]) next[rows] = value, from[rows] = {r, source};
        }
    }

    double path_sum(int start, int stop, int set, int leader, double cutoff, std::vector<std::pair<int, int>>* path) {
        const int length = stop - start, line = length + 1;
        const double fastest = leader == kAnyLeader ? sets_.fastest[set] : problem_.speed[sets_.members[set][leader]];
        std::vector<double> weight(line * line, kNever);
        std::vector<char> exact(weight.size(), 0);
        for (int a = 0; a < length; ++a)
            for (int b = a + 1; b <= length; ++b) {
                if (a == 0 && b == length) continue;
                const auto& known = known_of(start + a, start + b, set, kAnyLeader);
                weight[a * line + b] = std::max(known.above, sum_bound(start + a, start + b, sets_.speed[set], fastest));
            }
        std::vector<double> distance(line);
        std::vector<int> previous(line);
        while (true) {
            std::fill(distance.begin(), distance.end(), kNever);
            distance[0] = 0;
            for (int b = 1; b <= length; ++b)
                for (int a = 0; a < b; ++a)
                    if (distance[a] + weight[a * line + b] < distance[b])
                        distance[b] = distance[a] + weight[a * line + b], previous[b] = a;
            if (distance[length] >= cutoff * kBelow || stopped_) return kNever;
            bool all = true;
            for (int b = length; b > 0; b = previous[b]) {
                const int edge = previous[b] * line + b;
                if (exact[edge]) continue;
                all = false;
                // What the other blocks of this path leave is all that this one may take.
                const double left = cutoff - (distance[length] - weight[edge]);
                const Known known = least_sum(start + previous[b], start + b, set, leader, left);
                if (stopped_) return kNever;
                if (known.value < kNever) weight[edge] = known.value, exact[edge] = 1;
                else weight[edge] = std::max(known.above, left);
                break;
            }
            if (!all) continue;
            if (path) {
                path->clear();
                for (int b = length; b > 0; b = previous[b]) path->insert(path->begin(), {start + previous[b], start + b});
            }
            return distance[length];
        }
    }

    // The least bytes a MAC of any strip, by Dinkelbach's method: lower the ratio until no strip is below it.
    static double strip_ratio(const PipelineSegment& seg) {
        const int rows = seg.rows;
        double ratio = seg.io_final[0] / seg.macs_final[0];
        for (int round = 0; round < 50; ++round) {
            double least = 0, better = ratio;  // of bytes - ratio · MACs
            double base = -kNever;
            int base_row = 0;
            const auto offer = [&](double nbytes, double macs) {
                const double value = nbytes - ratio * macs;
                if (macs > 0 && value < least) least = value, better = std::max(0.0, nbytes / macs);
            };
            for (int hi = 1; hi < rows; ++hi) {
                const double here = seg.io_lower[hi - 1] - ratio * seg.macs_lower[hi - 1];
                if (here > base) base = here, base_row = hi - 1;
                offer(seg.io_upper[hi] - seg.io_lower[base_row], seg.macs_upper[hi] - seg.macs_lower[base_row]);
            }
            for (int lo = 0; lo < rows; ++lo) offer(seg.io_final[lo], seg.macs_final[lo]);
            if (better >= ratio * (1 - 1e-12)) break;
            ratio = better;
        }
        return ratio * (1 - 1e-9);
    }
};

}  // namespace downset
