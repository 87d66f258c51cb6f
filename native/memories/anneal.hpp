// A search over orders: blocks of operators move, and a quick residency says what each order costs. Oracle:
// tests/memories/oracles/machine.py, for the least cost of each order found.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "deadline.hpp"
#include "memories/belady.hpp"

namespace downset {

// Pseudo-random numbers that every platform repeats (xorshift64*).
class Draws {
public:
    explicit Draws(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0x1234567ull) {
        if (!state_) state_ = 1;
    }
    std::uint64_t next() {
        state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
        return state_ * 0x2545F4914F6CDD1Dull;
    }
    int below(int count) { return static_cast<int>((next() >> 33) % static_cast<std::uint64_t>(count)); }
    double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

private:
    std::uint64_t state_;
};

struct OrdersFound {
    std::vector<std::pair<Cost, Ints>> best;  // different orders, the cheapest first
    std::int64_t tried = 0;
};

class OrderAnneal {
public:
    // `groups[g]`: operators that run one directly after the other, in this sequence; each operator is in one group.
    OrderAnneal(const MemoriesProblem& problem, std::vector<Ints> groups, std::uint64_t seed)
        : quick_(problem), groups_(std::move(groups)), count_(static_cast<int>(groups_.size())), before_(count_),
          after_(count_), place_(count_), draws_(seed) {
        Ints group_of(problem.count, -1);
        for (int g = 0; g < count_; ++g)
            for (const int v : groups_[g]) {
                require(v >= 0 && v < problem.count && group_of[v] < 0, "groups: operator ", v,
                        " is unknown or comes twice");
                group_of[v] = g;
            }
        for (int v = 0; v < problem.count; ++v) {
            require(group_of[v] >= 0, "groups: operator ", v, " is in none");
            for (const int u : problem.predecessors[v])
                if (group_of[u] != group_of[v])
                    before_[group_of[v]].push_back(group_of[u]), after_[group_of[u]].push_back(group_of[v]);
        }
    }

    // The sequence of operators of a sequence of groups.
    Ints steps_of(const Ints& order) const {
        Ints steps;
        for (const int g : order) steps.insert(steps.end(), groups_[g].begin(), groups_[g].end());
        return steps;
    }

    // `tries` orders of groups from `start` on, at falling temperatures; at most `few` of the best are kept. `limit`
    // ends the run earlier, at the temperature that it had then.
    OrdersFound run(Ints start, std::int64_t tries, int few, double seconds, std::int64_t limit) {
        const Deadline deadline(seconds);
        OrdersFound orders;
        Ints order = std::move(start), other;
        Cost cost = quick_.run(steps_of(order), kUnlimited);
        keep(orders, cost, order, few);
        const double hot = kHot * static_cast<double>(cost) + 1;
        double heat = hot;
        for (std::int64_t turn = 0; turn < std::min(tries, limit) && cost > 0 && count_ > 1; ++turn) {
            if (turn % 256 == 0) {
                if (deadline.passed()) break;
                heat = hot * std::pow(kCold, static_cast<double>(turn) / static_cast<double>(tries));
            }
            ++orders.tried;
            if (!move(order, other)) continue;
            const double allowed = static_cast<double>(cost) - heat * std::log(1.0 - draws_.unit());
            const Cost limit = static_cast<Cost>(std::min(allowed, 1e17)) + 1;
            const Cost next = quick_.run(steps_of(other), limit);
            if (next >= limit) continue;
            if (next < cost || orders.best.size() < static_cast<std::size_t>(few)) keep(orders, next, other, few);
            std::swap(order, other);
            cost = next;
        }
        return orders;
    }

private:
    static constexpr Cost kUnlimited = Cost{1} << 60;
    static constexpr int kLongest = 9;
    static constexpr double kHot = 0.01, kCold = 0.03;  // heat as a share of the cost; of the heat at the end

    Belady quick_;
    std::vector<Ints> groups_;
    int count_;
    std::vector<Ints> before_, after_;  // by group: those that it waits for, and those that wait for it
    Ints place_;
    Draws draws_;

    // `other`: the order with one block of groups elsewhere; whether a block can move.
    bool move(const Ints& order, Ints& other) {
        const int count = count_, size = 1 + draws_.below(std::min(kLongest, count - 1));
        const int begin = draws_.below(count - size + 1), stop = begin + size;
        for (int p = 0; p < count; ++p) place_[order[p]] = p;
        int low = 0, high = count;  // the block may begin from `low` on, and end at `high`
        for (int p = begin; p < stop; ++p) {
            for (const int u : before_[order[p]])
                if (place_[u] < begin) low = std::max(low, place_[u] + 1);
            for (const int w : after_[order[p]])
                if (place_[w] >= stop) high = std::min(high, place_[w]);
        }
        const int choices = high - size - low;  // without where it is now
        if (choices <= 0) return false;
        int target = low + draws_.below(choices);
        if (target >= begin) ++target;
        other = order;
        if (target < begin)
            std::rotate(other.begin() + target, other.begin() + begin, other.begin() + stop);
        else
            std::rotate(other.begin() + begin, other.begin() + stop, other.begin() + target + size);
        return true;
    }

    static void keep(OrdersFound& orders, Cost cost, const Ints& order, int few) {
        auto& best = orders.best;
        if (static_cast<int>(best.size()) == few && cost >= best.back().first) return;
        const std::pair<Cost, Ints> one{cost, order};
        const auto place = std::lower_bound(best.begin(), best.end(), one);
        if (place != best.end() && *place == one) return;
        best.insert(place, one);
        if (static_cast<int>(best.size()) > few) best.pop_back();
    }
};

}  // namespace downset
