// Stages: the endings of every downset, and the cheapest chain of stages over them. Specified by its Python twin, class
// StageLattice in downset/stages/endings.py. Operators are 0 … count-1 (at most 64), in a topological order.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace downset {

using Mask = std::uint64_t;

class StageLattice {
public:
    // Stages have at most `max_groups` groups (connected components) of at most `max_ops` operators. `single_root`:
    // each group is one operator with all its successors, as IOS's published code enumerates them.
    StageLattice(std::vector<Mask> predecessors, int max_ops, int max_groups, bool single_root, double seconds,
                 std::int64_t pair_limit)
        : predecessors_(std::move(predecessors)), count_(static_cast<int>(predecessors_.size())), max_ops_(max_ops),
          max_groups_(max_groups), single_root_(single_root), pair_limit_(pair_limit), successors_(count_, 0),
          above_(count_, 0), below_(count_, 0) {
        if (count_ > 64) throw std::invalid_argument("more than 64 operators");
        deadline_ = Clock::now() + std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6));
        for (int v = 0; v < count_; ++v)
            for (Mask rest = predecessors_[v]; rest; rest &= rest - 1) {
                const int u = std::countr_zero(rest);
                if (u >= v) throw std::invalid_argument("operators are not in a topological order");
                successors_[u] |= bit(v);
                above_[v] |= above_[u] | bit(u);
            }
        for (int v = count_ - 1; v >= 0; --v)
            for (Mask rest = successors_[v]; rest; rest &= rest - 1) {
                const int w = std::countr_zero(rest);
                below_[v] |= below_[w] | bit(w);
            }
        enumerate_downsets();
        starts_.push_back(0);
        for (std::size_t state = 0; state < downsets_.size() && complete_; ++state) {
            current_ = downsets_[state];
            extend(0, current_, 0);
            starts_.push_back(earlier_.size());
        }
    }

    bool complete() const { return complete_; }  // false: a limit ended the enumeration
    std::int64_t states() const { return static_cast<std::int64_t>(downsets_.size()); }
    std::int64_t pairs() const { return static_cast<std::int64_t>(earlier_.size()); }
    const std::vector<Mask>& stages() const { return stages_; }

    // By stage, for a cost of each operator: its dearest group, the sum of its groups, and how many they are.
    std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::vector<int>> weigh(
        const std::vector<std::int64_t>& costs) const {
        if (costs.size() != static_cast<std::size_t>(count_)) throw std::invalid_argument("one cost for each operator");
        std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::vector<int>> found;
        auto& [longest, total, groups] = found;
        for (const Mask stage : stages_) {
            std::int64_t most = 0, sum = 0;
            int count = 0;
            for (Mask rest = stage; rest; ++count) {
                Mask group = rest & (~rest + 1), fresh = group;
                std::int64_t cost = 0;
                while (fresh) {
                    const int v = std::countr_zero(fresh);
                    cost += costs[v];
                    const Mask near = (predecessors_[v] | successors_[v]) & stage & ~group;
                    group |= near;
                    fresh = (fresh & (fresh - 1)) | near;
                }
                most = std::max(most, cost);
                sum += cost;
                rest &= ~group;
            }
            longest.push_back(most);
            total.push_back(sum);
            groups.push_back(count);
        }
        return found;
    }

    // How many chains of stages there are, as (high, low) words of 128 bits; all ones where they do not suffice.
    std::pair<std::uint64_t, std::uint64_t> schedules() const {
        using Wide = unsigned __int128;
        std::vector<Wide> ways(downsets_.size(), 0);
        ways[0] = 1;
        for (std::size_t state = 1; state < downsets_.size(); ++state)
            for (std::size_t pair = starts_[state]; pair < starts_[state + 1]; ++pair) {
                const Wide sum = ways[state] + ways[earlier_[pair]];
                ways[state] = sum < ways[state] ? ~Wide{0} : sum;
            }
        return {static_cast<std::uint64_t>(ways.back() >> 64), static_cast<std::uint64_t>(ways.back())};
    }

    // The cheapest chain: stages by index, first to last, and its price; prices below zero forbid a stage. Ties go to
    // the pair enumerated first. No chain: an empty one and -1.
    std::pair<std::vector<std::int32_t>, std::int64_t> solve(const std::vector<std::int64_t>& prices) const {
        if (prices.size() != stages_.size()) throw std::invalid_argument("one price for each stage is needed");
        constexpr auto kNone = std::numeric_limits<std::int64_t>::max();
        std::vector<std::int64_t> cost(downsets_.size(), kNone);
        std::vector<std::size_t> choice(downsets_.size(), 0);
        cost[0] = 0;
        for (std::size_t state = 1; state < downsets_.size(); ++state)
            for (std::size_t pair = starts_[state]; pair < starts_[state + 1]; ++pair) {
                const std::int64_t price = prices[stage_of_[pair]], before = cost[earlier_[pair]];
                if (price < 0 || before == kNone || before + price >= cost[state]) continue;
                cost[state] = before + price;
                choice[state] = pair;
            }
        if (cost.back() == kNone) return {{}, -1};
        std::vector<std::int32_t> chain;
        for (std::size_t state = downsets_.size() - 1; state; state = earlier_[choice[state]])
            chain.push_back(stage_of_[choice[state]]);
        return {{chain.rbegin(), chain.rend()}, cost.back()};
    }

private:
    using Clock = std::chrono::steady_clock;

    std::vector<Mask> predecessors_;
    int count_, max_ops_, max_groups_;
    bool single_root_, complete_ = true;
    std::int64_t pair_limit_;
    std::vector<Mask> successors_, above_, below_;
    Clock::time_point deadline_;
    std::vector<Mask> downsets_, stages_;
    std::unordered_map<Mask, std::int32_t> index_of_, stage_index_;
    // The endings of state s are the pairs starts_[s] … starts_[s + 1]: the stage, and the state before it.
    std::vector<std::size_t> starts_;
    std::vector<std::int32_t> earlier_, stage_of_;
    Mask current_ = 0;
    Mask groups_[64];

    static constexpr Mask bit(int v) { return Mask{1} << v; }

    bool spent(std::int64_t found) { return found > pair_limit_ || (found % 4096 == 0 && Clock::now() > deadline_); }

    // By cardinality, so that every downset comes after those inside it.
    void enumerate_downsets() {
        downsets_.push_back(0);
        index_of_[0] = 0;
        for (std::size_t at = 0; at < downsets_.size(); ++at) {
            if (spent(static_cast<std::int64_t>(at) + 1)) {
                complete_ = false;
                return;
            }
            const Mask downset = downsets_[at];
            for (int v = 0; v < count_; ++v) {
                if ((downset & bit(v)) || (predecessors_[v] & ~downset)) continue;
                if (index_of_.emplace(downset | bit(v), static_cast<std::int32_t>(downsets_.size())).second)
                    downsets_.push_back(downset | bit(v));
            }
        }
    }

    // Every ending once: the highest undecided operator has all its successors decided, so it may join; left out, it
    // takes everything above it along.
    void extend(Mask taken, Mask undecided, int groups) {
        if (!complete_ || too_many(undecided, groups)) return;
        if (!undecided) {
            if (taken && groups <= max_groups_ && (!single_root_ || rooted(groups))) add(taken);
            return;
        }
        const int v = 63 - std::countl_zero(undecided);
        Mask saved[64];
        Mask joined = bit(v);
        int kept = 0;
        for (int group = 0; group < groups; ++group) saved[group] = groups_[group];
        for (int group = 0; group < groups; ++group) {
            if (saved[group] & successors_[v])
                joined |= saved[group];
            else
                groups_[kept++] = saved[group];
        }
        if (std::popcount(joined) <= max_ops_) {
            groups_[kept] = joined;
            extend(taken | bit(v), undecided & ~bit(v), kept + 1);
        }
        for (int group = 0; group < groups; ++group) groups_[group] = saved[group];
        extend(taken, undecided & ~(above_[v] | bit(v)), groups);
    }

    // Groups above which nothing is undecided stay as they are: more of them than allowed, and no ending comes of it.
    bool too_many(Mask undecided, int groups) const {
        if (groups <= max_groups_) return false;
        int closed = 0;
        for (int group = 0; group < groups; ++group) {
            Mask above = 0;
            for (Mask rest = groups_[group]; rest; rest &= rest - 1) above |= predecessors_[std::countr_zero(rest)];
            closed += !(above & undecided);
        }
        return closed > max_groups_;
    }

    bool rooted(int groups) const {
        for (int group = 0; group < groups; ++group) {
            const int root = std::countr_zero(groups_[group]);
            if (groups_[group] & ~(below_[root] | bit(root))) return false;
        }
        return true;
    }

    void add(Mask stage) {
        const auto [at, fresh] = stage_index_.emplace(stage, static_cast<std::int32_t>(stages_.size()));
        if (fresh) stages_.push_back(stage);
        stage_of_.push_back(at->second);
        earlier_.push_back(index_of_.at(current_ & ~stage));
        if (spent(pairs())) complete_ = false;
    }
};

}  // namespace downset
