// Stages: the endings of every downset, and the cheapest chain of stages over them. Oracle:
// tests/stages/oracles/lattice.py. Operators are 0 … count-1 (at most 64), in a topological order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "check.hpp"
#include "deadline.hpp"

namespace downset {

class StageLattice {
public:
    // Stages have at most `max_groups` groups (connected components) of at most `max_ops` operators. `single_root`:
    // each group is one operator with all its successors, as IOS's published code enumerates them.
    StageLattice(const std::vector<Word>& predecessors, int max_ops, int max_groups, bool single_root, double seconds,
                 std::int64_t pair_limit)
        : count_(static_cast<int>(predecessors.size())), max_ops_(max_ops), max_groups_(max_groups),
          single_root_(single_root), pair_limit_(pair_limit), deadline_(seconds), successors_(count_), above_(count_),
          below_(count_) {
        require(count_ <= kMost, "predecessors: ", count_, " operators; at most ", kMost, " have a place in a mask");
        require(max_ops > 0 && max_groups > 0, "limits of a stage: they are not above 0");
        for (const Word mask : predecessors) {
            const int v = static_cast<int>(predecessors_.size());
            predecessors_.push_back(Set({mask}));
            predecessors_.back().each([&](int u) {
                require(u < v, "predecessors: operators are not in a topological order");
                successors_[u].add(v);
                above_[v] |= above_[u];
                above_[v].add(u);
            });
        }
        for (int v = count_ - 1; v >= 0; --v) below_[v] = successors_[v];
        for (int v = count_ - 1; v >= 0; --v) successors_[v].each([&](int w) { below_[v] |= below_[w]; });
        enumerate_downsets();
        starts_.push_back(0);
        for (std::size_t state = 0; state < downsets_.size() && complete_; ++state) {
            current_ = downsets_[state];
            extend({}, current_, 0);
            starts_.push_back(earlier_.size());
        }
    }

    bool complete() const { return complete_; }  // false: a limit ended the enumeration
    std::int64_t states() const { return static_cast<std::int64_t>(downsets_.size()); }
    std::int64_t pairs() const { return static_cast<std::int64_t>(earlier_.size()); }
    std::vector<Word> stages() const {  // as masks, in the order that they were found
        std::vector<Word> masks;
        for (const Set stage : stages_) masks.push_back(stage.words[0]);
        return masks;
    }

    // By stage, for a cost of each operator: its most expensive group, the sum of its groups, and how many they are.
    std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::vector<int>> weigh(
        std::vector<std::int64_t> costs) const {
        require_size("costs", costs.size(), count_);
        require_at_least<std::int64_t>("costs", costs, 0);
        for (auto& cost : costs) cost = std::min(cost, kDearest);
        std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::vector<int>> measures;
        auto& [longest, total, groups] = measures;
        for (const Set stage : stages_) {
            std::int64_t most = 0, sum = 0;
            int count = 0;
            for (Set rest = stage; !rest.empty(); ++count) {
                Set group, fresh;
                group.add(rest.lowest());
                fresh = group;
                std::int64_t cost = 0;
                while (!fresh.empty()) {
                    const int v = fresh.lowest();
                    cost += costs[v];
                    const Set near = ((predecessors_[v] | successors_[v]) & stage) - group;
                    group |= near;
                    fresh |= near;
                    fresh.remove(v);
                }
                most = std::max(most, cost);
                sum += cost;
                rest -= group;
            }
            longest.push_back(most);
            total.push_back(sum);
            groups.push_back(count);
        }
        return measures;
    }

    // How many chains of stages there are, as (high, low) words of 128 bits; all ones where they do not suffice.
    std::pair<std::uint64_t, std::uint64_t> schedules() const {
        require_complete();
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
        require_complete();
        require_size("prices", prices.size(), stages_.size());
        std::vector<std::int64_t> cost(downsets_.size(), kNone);
        std::vector<std::size_t> choice(downsets_.size(), 0);
        cost[0] = 0;
        for (std::size_t state = 1; state < downsets_.size(); ++state)
            for (std::size_t pair = starts_[state]; pair < starts_[state + 1]; ++pair) {
                const std::int64_t price = prices[stage_of_[pair]], before = cost[earlier_[pair]];
                if (price < 0 || before == kNone) continue;
                const std::int64_t sum = before + std::min(price, kDearest);
                if (sum >= cost[state]) continue;
                cost[state] = sum;
                choice[state] = pair;
            }
        if (cost.back() == kNone) return {{}, -1};
        std::vector<std::int32_t> chain;
        for (std::size_t state = downsets_.size() - 1; state; state = earlier_[choice[state]])
            chain.push_back(stage_of_[choice[state]]);
        return {{chain.rbegin(), chain.rend()}, cost.back()};
    }

private:
    using Set = FixedBits<1>;  // operators of a downset, a stage or a group
    static constexpr int kMost = 64;
    static constexpr auto kNone = std::numeric_limits<std::int64_t>::max();
    static constexpr std::int64_t kDearest = std::int64_t{1} << 56;  // what costs more counts as this: sums of 64 fit

    int count_, max_ops_, max_groups_;
    bool single_root_, complete_ = true;
    std::int64_t pair_limit_;
    Deadline deadline_;
    std::vector<Set> predecessors_, successors_, above_, below_;
    std::vector<Set> downsets_, stages_;
    std::unordered_map<Set, std::int32_t, BitsHash> index_of_, stage_index_;
    // The endings of state s are the pairs starts_[s] … starts_[s + 1]: the stage, and the state before it.
    std::vector<std::size_t> starts_;
    std::vector<std::int32_t> earlier_, stage_of_;
    Set current_;
    std::array<Set, kMost> groups_;  // of what is taken, the first so many
    std::array<Set, kMost * kMost> saved_;

    void require_complete() const { require(complete_, "stages: a limit ended their enumeration"); }

    bool spent(std::int64_t pairs) { return pairs > pair_limit_ || (pairs % 4096 == 0 && deadline_.passed()); }

    // By cardinality, so that every downset comes after those inside it.
    void enumerate_downsets() {
        downsets_.push_back({});
        index_of_[{}] = 0;
        for (std::size_t place = 0; place < downsets_.size(); ++place) {
            if (spent(static_cast<std::int64_t>(place) + 1)) {
                complete_ = false;
                return;
            }
            const Set downset = downsets_[place];
            for (int v = 0; v < count_; ++v) {
                if (downset.has(v) || !predecessors_[v].within(downset)) continue;
                Set larger = downset;
                larger.add(v);
                if (index_of_.emplace(larger, static_cast<std::int32_t>(downsets_.size())).second)
                    downsets_.push_back(larger);
            }
        }
    }

    // Every ending once: the highest undecided operator has all its successors decided, so it may join; left out, it
    // takes everything above it along.
    void extend(Set taken, Set undecided, int groups) {
        if (!complete_ || too_many(undecided, groups)) return;
        if (undecided.empty()) {
            if (!taken.empty() && groups <= max_groups_ && (!single_root_ || rooted(groups))) add(taken);
            return;
        }
        const int v = undecided.highest();
        undecided.remove(v);
        Set* const saved = &saved_[undecided.size() * kMost];  // a row for each depth of the recursion
        std::copy_n(groups_.begin(), groups, saved);
        Set joined;
        joined.add(v);
        int kept = 0;
        for (int group = 0; group < groups; ++group) {
            if (groups_[group].meets(successors_[v]))
                joined |= groups_[group];
            else
                groups_[kept++] = groups_[group];
        }
        if (joined.size() <= max_ops_) {
            groups_[kept] = joined;
            Set larger = taken;
            larger.add(v);
            extend(larger, undecided, kept + 1);
        }
        std::copy_n(saved, groups, groups_.begin());
        extend(taken, undecided - above_[v], groups);
    }

    // Groups above which nothing is undecided stay as they are: more of them than allowed, and no ending comes of it.
    bool too_many(Set undecided, int groups) const {
        if (groups <= max_groups_) return false;
        int closed = 0;
        for (int group = 0; group < groups; ++group) {
            Set above;
            groups_[group].each([&](int v) { above |= predecessors_[v]; });
            closed += !above.meets(undecided);
        }
        return closed > max_groups_;
    }

    bool rooted(int groups) const {
        for (int group = 0; group < groups; ++group) {
            const int root = groups_[group].lowest();
            Set rest = groups_[group] - below_[root];
            rest.remove(root);
            if (!rest.empty()) return false;
        }
        return true;
    }

    void add(Set stage) {
        const auto [entry, fresh] = stage_index_.emplace(stage, static_cast<std::int32_t>(stages_.size()));
        if (fresh) stages_.push_back(stage);
        stage_of_.push_back(entry->second);
        earlier_.push_back(index_of_.at(current_ - stage));
        if (spent(pairs())) complete_ = false;
    }
};

}  // namespace downset
