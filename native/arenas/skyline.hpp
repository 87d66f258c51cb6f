// The height that is reached at each step, and records placed above it: O(log steps) each, whatever lives at once.
// Oracle: tests/arenas/oracles/skyline.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "arenas/ranks.hpp"
#include "arenas/records.hpp"
#include "check.hpp"

namespace downset {

// Heights by step, which only grow. A tree: node n is the parent of 2n and 2n + 1.
class Skyline {
public:
    explicit Skyline(std::int32_t steps) {
        while (leaves_ < static_cast<std::size_t>(steps)) leaves_ *= 2;
        within_.resize(2 * leaves_);
        whole_.resize(2 * leaves_);
    }
    // The highest step of [low, high).
    Offset highest(std::int32_t low, std::int32_t high) const {
        Offset height = 0;
        visit(
            low, high, [&](std::size_t node) { height = std::max(height, within_[node]); },
            [&](std::size_t node) { height = std::max(height, whole_[node]); });
        return height;
    }
    // Raises the steps of [low, high) that are lower to this height.
    void raise(std::int32_t low, std::int32_t high, Offset height) {
        visit(
            low, high,
            [&](std::size_t node) {
                within_[node] = std::max(within_[node], height);
                whole_[node] = std::max(whole_[node], height);
            },
            [&](std::size_t node) { within_[node] = std::max(within_[node], height); });
    }

private:
    std::size_t leaves_ = 1;
    std::vector<Offset> within_, whole_;  // by node: the highest of its steps, and what all of them reach

    // The nodes that cover [low, high), and those above its ends.
    template <class Cover, class Above>
    void visit(std::int32_t low, std::int32_t high, Cover cover, Above above) const {
        std::size_t left = leaves_ + low, right = leaves_ + high;
        const std::size_t first = left, last = right - 1;
        for (; left < right; left /= 2, right /= 2) {
            if (left & 1) cover(left++);
            if (right & 1) cover(--right);
        }
        for (std::size_t node = first / 2; node > 0; node /= 2) above(node);
        for (std::size_t node = last / 2; node > 0; node /= 2) above(node);
    }
};

constexpr Offset kMostOffset = Offset{1} << 61;

// Those of the sequence whose offset is -1, in turn, each above everything that it meets.
inline std::vector<Offset> place_above(const Records& records, const std::vector<int>& sequence,
                                       std::vector<Offset> offsets) {
    require_indices("sequence", sequence, records.nbytes.size());
    require_size("offsets", offsets.size(), records.nbytes.size());
    for (const Offset offset : offsets)
        require(offset >= -1 && offset < kMostOffset, "offsets: a record is at ", offset);
    const Ranks rank(records.active);
    Skyline skyline(rank.count());
    const auto put = [&](int record) {
        for (auto [low, high] : records.active[record])
            skyline.raise(rank(low), rank(high), offsets[record] + records.nbytes[record]);
    };
    for (int record = 0; record < records.count(); ++record)
        if (offsets[record] >= 0) put(record);
    for (int record : sequence) {
        if (offsets[record] >= 0) continue;
        Offset top = 0;
        for (auto [low, high] : records.active[record]) top = std::max(top, skyline.highest(rank(low), rank(high)));
        offsets[record] = round_up(top, records.alignment[record]);
        put(record);
    }
    return offsets;
}

}  // namespace downset
