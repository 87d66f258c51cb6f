// Strip packing by best fit: the lowest stretch of steps takes the longest record that lies within it.
// Oracle: tests/arenas/oracles/strip.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "arenas/ranks.hpp"
#include "arenas/records.hpp"
#include "deadline.hpp"

namespace downset {

using RankedLife = std::pair<std::int32_t, std::int32_t>;  // of ranks of steps, half-open

// The longest unplaced record, the earliest among equals, that starts in [from, until) and stops by `until`.
class LongestFitting {
public:
    // `ranked`: the lifetimes in ranks of steps, of which there are `ranks`.
    LongestFitting(const Pieces& lifetimes, const std::vector<RankedLife>& ranked, std::int32_t ranks,
                   const std::vector<char>& waiting)
        : first_leaf_(ranks + 1, 0) {
        for (std::size_t i = 0; i < ranked.size(); ++i) first_leaf_[ranked[i].first + 1] += waiting[i];
        for (std::int32_t rank = 0; rank < ranks; ++rank) first_leaf_[rank + 1] += first_leaf_[rank];
        while (leaves_ < first_leaf_.back()) leaves_ *= 2;
        nodes_.resize(2 * leaves_);
        for (auto& leaf : first_leaf_) leaf += leaves_;
        auto next = first_leaf_;
        for (std::size_t i = 0; i < ranked.size(); ++i)
            if (waiting[i])
                nodes_[next[ranked[i].first]++] = {lifetimes[i].second - lifetimes[i].first, ranked[i].second,
                                                   static_cast<int>(i)};
        for (std::size_t node = leaves_ - 1; node > 0; --node) nodes_[node] = joined(node);
    }

    int take(std::int32_t from, std::int32_t until) {
        best_ = Node{};
        // The nodes that cover the range, from the leaves up: what a stretch holds lies close together.
        for (auto low = first_leaf_[from], high = first_leaf_[until]; low < high; low /= 2, high /= 2) {
            if (low & 1) search(low++, until);
            if (high & 1) search(--high, until);
        }
        if (best_.longest == 0) return -1;
        nodes_[at_] = Node{};
        for (std::size_t node = at_ / 2; node > 0; node /= 2) nodes_[node] = joined(node);
        return best_.earliest;
    }

private:
    struct Node {
        std::int64_t longest = 0;
        std::int32_t first_stop = std::numeric_limits<std::int32_t>::max();
        int earliest = -1;  // among the longest
    };
    std::vector<std::size_t> first_leaf_;  // by rank: of what starts then or later
    std::vector<Node> nodes_;              // a tree: node n is the parent of 2n and 2n + 1
    std::size_t leaves_ = 1, at_ = 0;
    Node best_;

    static bool better(const Node& one, const Node& other) {
        return one.longest > other.longest || (one.longest == other.longest && one.earliest < other.earliest);
    }
    Node joined(std::size_t node) const {
        const Node &left = nodes_[2 * node], &right = nodes_[2 * node + 1];
        const Node& longer = better(right, left) ? right : left;
        return {longer.longest, std::min(left.first_stop, right.first_stop), longer.earliest};
    }
    // Branches that hold nothing longer, or as long and earlier, or nothing that stops in time, are not entered.
    void search(std::size_t node, std::int32_t until) {
        const Node& it = nodes_[node];
        if (it.longest == 0 || it.first_stop > until || !better(it, best_)) return;
        if (node >= leaves_) {
            best_ = it;
            at_ = node;
            return;
        }
        const bool right_first = nodes_[2 * node].longest < nodes_[2 * node + 1].longest;
        search(2 * node + right_first, until);
        search(2 * node + !right_first, until);
    }
};

// Strip packing by best fit. Lifetimes are taken whole, gaps included. -1: the time was over before.
inline std::vector<Offset> fill_strip(const Records& records, double seconds) {
    const Deadline deadline(seconds);
    const auto& [nbytes, alignment, pinned, active] = records;
    const auto count = nbytes.size();
    Pieces lifetimes;
    for (const Pieces& pieces : active) lifetimes.emplace_back(pieces.front().first, pieces.back().second);
    std::vector<Offset> offsets = pinned;
    std::vector<char> waiting(count, 0);
    std::vector<int> pins;
    std::size_t left = 0;
    const Ranks rank(active);
    std::vector<RankedLife> ranked;
    std::int32_t begin = rank.count(), end = 0;
    for (std::size_t i = 0; i < count; ++i) {
        ranked.emplace_back(rank(lifetimes[i].first), rank(lifetimes[i].second));
        if (pinned[i] >= 0) {
            pins.push_back(static_cast<int>(i));
            continue;
        }
        waiting[i] = 1;
        ++left;
        begin = std::min(begin, ranked[i].first);
        end = std::max(end, ranked[i].second);
    }
    std::sort(pins.begin(), pins.end(),
              [&offset_of = pinned](int a, int b) { return std::pair(offset_of[a], a) < std::pair(offset_of[b], b); });
    LongestFitting fitting(lifetimes, ranked, rank.count(), waiting);

    // Segments cover [begin, end). By the rank where one begins: where it stops (-1: none begins there), its level.
    std::vector<std::int32_t> stop_of(rank.count(), -1), before(rank.count() + 1, -1);  // what stops at a rank
    std::vector<Offset> level_of(rank.count(), 0);
    using Entry = std::pair<Offset, std::int32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    const auto set = [&](std::int32_t start, std::int32_t stop, Offset level) {
        if (start >= stop) return;
        stop_of[start] = stop;
        level_of[start] = level;
        before[stop] = start;
        queue.emplace(level, start);
    };
    if (left) set(begin, end, 0);
    for (std::size_t visited = 1; left; ++visited) {
        if (visited % 64 == 0 && deadline.passed()) break;
        const auto [level, start] = queue.top();
        queue.pop();
        const auto stop = stop_of[start];
        if (stop < 0 || level_of[start] != level) continue;
        const int record = fitting.take(start, stop);
        if (record >= 0) {
            const auto [first, last] = lifetimes[record];
            Offset offset = round_up(level, alignment[record]);
            for (int pin : pins) {
                if (lifetimes[pin].first >= last || first >= lifetimes[pin].second ||
                    offset >= pinned[pin] + nbytes[pin])
                    continue;
                if (offset + nbytes[record] <= pinned[pin]) break;
                offset = round_up(pinned[pin] + nbytes[pin], alignment[record]);
            }
            offsets[record] = offset;
            --left;
            const auto [from, until] = ranked[record];
            set(start, from, level);
            set(from, until, offset + nbytes[record]);
            set(until, stop, level);
            continue;
        }
        // Nothing fits: lift the segment to its lower neighbour and join it with what is as high then.
        Offset reached = std::numeric_limits<Offset>::max();
        if (start > begin) reached = std::min(reached, level_of[before[start]]);
        if (stop < end) reached = std::min(reached, level_of[stop]);
        auto joined_start = start, joined_stop = stop;
        if (stop < end && level_of[stop] == reached) {
            joined_stop = stop_of[stop];
            stop_of[stop] = -1;
        }
        if (start > begin && level_of[before[start]] == reached) {
            joined_start = before[start];
            stop_of[start] = -1;
        }
        set(joined_start, joined_stop, reached);
    }
    return offsets;
}

}  // namespace downset
