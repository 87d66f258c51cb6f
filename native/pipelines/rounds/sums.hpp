// What a block, or several one after another on the same devices, takes at least; remembered, and bounded before that.
//
// Communication C falls in the limit T on computing (rows.hpp). So T + C(T) is bounded on every interval of T
// and its least value found by bisection; and whether it can be had within B is decided by T = B, B - C(B), …, which
// falls to the largest T with T + C(T) <= B, or below all divisions.
#pragma once

#include <utility>
#include <vector>

#include "pipelines/rounds/cut_path.hpp"
#include "pipelines/rounds/rows.hpp"
#include "pipelines/set_search.hpp"

namespace downset {

class BlockSums : public RoundRows {
public:
    // Of the least T + C(T): some division has `value`, at `limit` of computing; none is below `above`.
    struct Known {
        double value = kNever, limit = kNever, above = 0;
        bool exact() const { return above >= value * kBelow; }
    };

    BlockSums(const LoadProblem& problem, WorkLimit& work)
        : RoundRows(problem), work_(work), known_(problem.sets.led_count),
          bytes_per_mac_(problem.chain.segments.size(), -1.0), least_rate_(problem.sets.led_count, 0.0) {
        for (int set = 1; set < sets_.count; ++set)
            for (int leader = kAnyLeader; leader < static_cast<int>(sets_.members[set].size()); ++leader)
                least_rate_[sets_.led(set, leader)] = rate_of(sets_.members[set], leader);
    }

    bool stopped() const { return work_.stopped(); }
    bool out_of_time() { return work_.spend(); }

    // The largest T with T + C(T) within the budget: the limit, and its division. False: there is none (or no time).
    bool largest_within(int start, int stop, int set, int leader, double budget, double& limit, Division& division) {
        limit = budget;
        while (!out_of_time()) {
            const double transfer = least_transfer(start, stop, set, leader, limit, &division);
            if (transfer == kNever) return false;
            if (division.longest + transfer <= budget * kAbout) return true;
            const double next = budget - transfer;
            if (next >= limit) return false;  // rounding
            limit = next;
        }
        return false;
    }

    // The limits around the least of max(T, C(T) + wait), none above `high`: C falls.
    std::pair<double, double> around_crossing(int start, int stop, int set, int leader, double high, double wait) {
        double low = 0;
        for (int i = 0; i < 60 && low < high * kBelow; ++i) {
            const double middle = (low + high) / 2;
            if (least_transfer(start, stop, set, leader, middle, nullptr) + wait <= middle)
                high = middle;
            else
                low = middle;
        }
        return {low, high};
    }

    // The least T + C(T) below the cutoff, exactly; value infinite: none below.
    Known least_sum(int start, int stop, int set, int leader, double cutoff) {
        Known& fact = known_of(start, stop, set, leader);
        if (fact.above >= cutoff || fact.exact()) return fact.value < cutoff ? fact : Known{kNever, kNever, fact.above};
        double best = std::min(cutoff, fact.value), limit = fact.value < cutoff ? fact.limit : kNever;
        best = lightest(start, stop, set, leader, {.cutoff = best}, limit);
        if (stopped()) return {kNever, kNever, 0};
        fact.above = best;
        if (best < cutoff) fact.value = best, fact.limit = limit;
        return best < cutoff ? fact : Known{kNever, kNever, best};
    }

    // What is asked of `lightest`: the least T + weight · C(T) with T up to `longest` and C(T) up to `most`, if that is
    // below the cutoff.
    struct Weighing {
        double weight = 1, below = kBelow, cutoff = kNever, longest = kNever, most = kNever;
    };

    // The least T + weight · C(T), or the cutoff where none is below; none is below `below` times what is returned.
    // `limit` receives the T of what is returned, if that is below the cutoff.
    double lightest(int start, int stop, int set, int leader, const Weighing& asked, double& limit) {
        const double weight = asked.weight, below = asked.below;
        struct Span {
            double low, low_cost, high, high_cost;
        };
        double best = asked.cutoff;
        Division division;
        const auto look = [&](double trial) {
            const double transfer = least_transfer(start, stop, set, leader, trial, &division);
            if (transfer <= asked.most && transfer < kNever && division.longest + weight * transfer < best * kBelow)
                best = division.longest + weight * transfer, limit = trial;
            if (transfer == kNever) division.longest = trial;
            return transfer;
        };
        const double alone = alone_s(start, stop, sets_.members[set][leader == kAnyLeader ? 0 : leader]);
        if (alone < best && alone <= asked.longest) best = limit = alone;
        if (sets_.members[set].size() < 2) return best;
        const double end = std::min({best, alone, asked.longest});
        const double end_cost = look(end);
        const double end_really = division.longest;
        const double least = problem_.macs(start, stop) / sets_.speed[set];
        if (end_cost == kNever || least + weight * end_cost >= best * below) return best;
        const double start_cost = look(least);
        std::vector<Span> spans{{least, start_cost, end_really, end_cost}};
        while (!spans.empty()) {
            const Span span = spans.back();
            spans.pop_back();
            if (span.low + weight * span.high_cost >= best * below || span.high <= span.low * kAbout) continue;
            if (span.low_cost == span.high_cost) continue;
            if (out_of_time()) return best;
            const double middle = (span.low + span.high) / 2;
            const double cost = look(middle);
            const double really = division.longest;
            spans.push_back({middle, cost, span.high, span.high_cost});
            spans.push_back({span.low, span.low_cost, std::min(really, middle), cost});
        }
        return best;
    }

    // Whether some division has T + C(T) within the budget: the value of one, or infinity.
    double sum_within(int start, int stop, int set, int leader, double budget) {
        Known& fact = known_of(start, stop, set, leader);
        if (fact.value <= budget) return fact.value;
        if (fact.above >= budget) return kNever;
        double limit;
        Division division;
        if (largest_within(start, stop, set, leader, budget, limit, division)) {
            fact.value = division.longest + division.transfer, fact.limit = limit;
            return fact.value;
        }
        if (!stopped()) fact.above = std::max(fact.above, budget);
        return kNever;
    }

    Known& known_of(int start, int stop, int set, int leader) {
        auto& facts = known_[sets_.led(set, leader)];
        if (facts.empty()) facts.resize(problem_.chain.segments.size());
        return facts[problem_.index(start, stop)];
    }

    // The least sum of several blocks (two at least), one after another on the same devices under one leader, if it is
    // below the cutoff: a shortest path over least sums, worked out only where a path seems short enough.
    double several(int start, int stop, int set, int& leader, double cutoff, std::vector<std::pair<int, int>>* path) {
        if (leader != kAnyLeader) return path_sum(start, stop, set, leader, cutoff, path);
        // Each block led by whom it likes best is a bound; then one leader for all.
        if (path_sum(start, stop, set, kAnyLeader, cutoff, nullptr) == kNever) return kNever;
        double best = kNever;
        for (int one = 0; one < static_cast<int>(sets_.members[set].size()) && !stopped(); ++one) {
            const double value = path_sum(start, stop, set, one, std::min(best, cutoff), path);
            if (value < best) best = value, leader = one;
        }
        return best;
    }

    // Likewise under this leader, or with a leader for each block: a bound.
    double several_led(int start, int stop, int set, int leader, double cutoff) {
        return path_sum(start, stop, set, leader, cutoff, nullptr);
    }

    // No stage of several blocks on the set sums to less, as far as is known: the shortest path over bounds. Worked out
    // once for a set and leader, and again after `forget_bounds`.
    double several_bound(int start, int stop, int set, int leader) {
        if (several_bounds_.empty()) several_bounds_.resize(sets_.led_count);
        auto& bounds = several_bounds_[sets_.led(set, leader)];
        if (bounds.empty()) {
            const int lines = problem_.chain.cuts + 1;
            std::vector<double> one(lines * lines, kNever), any(lines * lines, kNever);
            bounds.assign(lines * lines, kNever);
            for (int from = problem_.chain.cuts - 1; from >= 0; --from)
                for (int to = from + 1; to <= problem_.chain.cuts; ++to) {
                    double least = kNever;
                    for (int middle = from + 1; middle < to; ++middle)
                        least = std::min(least, one[from * lines + middle] + any[middle * lines + to]);
                    bounds[from * lines + to] = least;
                    one[from * lines + to] =
                        std::max(known_of(from, to, set, leader).above, sum_bound(from, to, set, leader));
                    any[from * lines + to] = std::min(one[from * lines + to], least);
                }
        }
        return bounds[problem_.index(start, stop)];
    }
    void forget_bounds() { several_bounds_.clear(); }

    // Bytes on the network for each MAC that is not the leader's, at least: the best ratio of any strip.
    double bytes_per_mac(int start, int stop) {
        double& ratio = bytes_per_mac_[problem_.index(start, stop)];
        if (ratio >= 0) return ratio;
        const auto& seg = problem_.segment(start, stop);
        ratio = problem_.device_count() > 1 ? seg.strip_ratio(seg.in_and_out()) : 0;
        return ratio;
    }

    // Seconds a byte between the nearest two of the set.
    double least_rate(int set) const { return least_rate_[sets_.led(set, kAnyLeader)]; }

    // Of the leader, or the fastest.
    double speed_of(int set, int leader) const {
        return leader == kAnyLeader ? sets_.fastest[set] : problem_.devices[sets_.members[set][leader]].peak;
    }

    // No division of the segment over the set sums to less, communication weighted.
    double sum_bound(int start, int stop, int set, int leader, double weight = 1) {
        const double macs = problem_.macs(start, stop), together = sets_.speed[set], alone = speed_of(set, leader);
        const double ratio = bytes_per_mac(start, stop) * least_rate_[sets_.led(set, leader)] * weight;
        return std::min(macs / alone, macs / together + ratio * macs * (1 - alone / together));
    }

private:
    WorkLimit& work_;
    std::vector<std::vector<Known>> known_;            // by set and leader, segment
    std::vector<double> bytes_per_mac_, least_rate_;   // by segment; by set and leader: seconds a byte
    std::vector<std::vector<double>> several_bounds_;  // by set and leader, segment

    // Seconds a byte between the leader and whichever of the devices it is nearest to; of any leader, of all pairs.
    double rate_of(const std::vector<int>& devices, int leader) const {
        double least = kNever;
        for (int first : devices)
            for (int second : devices)
                if (first != second && (leader == kAnyLeader || first == devices[leader]))
                    least = std::min(least, problem_.per_byte(first, second));
        return least == kNever ? 0 : least;
    }

    double path_sum(int start, int stop, int set, int leader, double cutoff, std::vector<std::pair<int, int>>* path) {
        const int length = stop - start, line = length + 1;
        std::vector<double> weight(line * line, kNever);
        std::vector<char> exact(weight.size(), 0);
        for (int a = 0; a < length; ++a)
            for (int b = a + 1; b <= length; ++b) {
                if (a == 0 && b == length) continue;
                double& least = weight[a * line + b];
                least = std::max(known_of(start + a, start + b, set, leader).above,
                                 sum_bound(start + a, start + b, set, leader));
                if (problem_.network.uniform)
                    least = std::max(least, known_of(start + a, start + b, set, kAnyLeader).above);
            }
        while (true) {
            const CutPath shortest(length, weight);
            const auto& [distance, previous] = shortest;
            if (distance[length] >= cutoff * kBelow || stopped()) return kNever;
            bool all = true;
            for (int b = length; b > 0; b = previous[b]) {
                const int edge = previous[b] * line + b;
                if (exact[edge]) continue;
                all = false;
                // What the other blocks of this path leave is all that this one may take.
                const double left = cutoff - (distance[length] - weight[edge]);
                const Known fact = least_sum(start + previous[b], start + b, set, leader, left);
                if (stopped()) return kNever;
                if (fact.value < kNever)
                    weight[edge] = fact.value, exact[edge] = 1;
                else
                    weight[edge] = std::max(fact.above, left);
                break;
            }
            if (!all) continue;
            if (path) {
                path->clear();
                for (int b = length; b > 0; b = previous[b])
                    path->insert(path->begin(), {start + previous[b], start + b});
            }
            return distance[length];
        }
    }
};

}  // namespace downset
