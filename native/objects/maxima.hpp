// The positional maxima of records (memory-management paper, section 3): the i-th is the largest i-th size of all
// steps. Oracle: tests/arenas/oracles/objects.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "arenas/ranks.hpp"
#include "arenas/records.hpp"

namespace downset {

// How many records live at each step, and the most. A tree: node n is the parent of 2n and 2n + 1.
class LiveCounts {
public:
    explicit LiveCounts(std::int32_t steps) {
        while (leaves_ < static_cast<std::size_t>(steps)) leaves_ *= 2;
        most_.resize(2 * leaves_);
        added_.resize(2 * leaves_);
    }
    void add(std::int32_t low, std::int32_t high) {
        std::size_t left = leaves_ + low, right = leaves_ + high;
        const std::size_t first = left, last = right - 1;
        for (; left < right; left /= 2, right /= 2) {
            if (left & 1) add_whole(left++);
            if (right & 1) add_whole(--right);
        }
        for (const std::size_t leaf : {first, last})
            for (std::size_t node = leaf / 2; node > 0; node /= 2)
                most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + added_[node];
    }
    std::int32_t most() const { return most_[1]; }

private:
    std::size_t leaves_ = 2;                  // so that there is a node above each
    std::vector<std::int32_t> most_, added_;  // by node: the most at one of its steps, and what was added to all
    void add_whole(std::size_t node) {
        ++most_[node];
        ++added_[node];
    }
};

// Records are added largest first: the first with which i live at one step has the size of the i-th maximum.
// O(n log n).
inline std::vector<Offset> positional_maxima(const Records& records) {
    std::vector<int> largest_first(records.nbytes.size());
    std::iota(largest_first.begin(), largest_first.end(), 0);
    std::stable_sort(largest_first.begin(), largest_first.end(),
                     [&](int one, int other) { return records.nbytes[one] > records.nbytes[other]; });
    const Ranks rank(records.active);
    LiveCounts live(rank.count());
    std::vector<Offset> maxima;
    for (const int record : largest_first) {
        for (auto [low, high] : records.active[record]) live.add(rank(low), rank(high));
        if (live.most() > static_cast<std::int32_t>(maxima.size())) maxima.push_back(records.nbytes[record]);
    }
    return maxima;
}

}  // namespace downset
