// Placement in several arenas at scale. Oracle: tests/arenas/oracles/spread.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "arenas/placed.hpp"
#include "arenas/placement.hpp"
#include "arenas/ranks.hpp"
#include "arenas/records.hpp"
#include "check.hpp"

namespace downset {

// Several arenas, each record at the lowest offset it finds there. With capacities: the first arena that has room, or
// nothing at all if none has; `choices` are empty, or the arenas that each record may lie in, in turn. Without: any
// number of arenas of `block` bytes, where the total grows least, the first among equals.
inline std::pair<std::vector<int>, std::vector<Offset>> spread(const Records& records, const std::vector<int>& sequence,
                                                               const std::vector<Offset>& capacities, Offset block,
                                                               const std::vector<std::vector<int>>& choices) {
    const auto count = records.nbytes.size();
    require_indices("sequence", sequence, count);
    if (!choices.empty()) require_size("choices", choices.size(), count);
    for (const auto& some : choices) require_indices("choices", some, capacities.size());
    std::vector<int> everywhere(capacities.size());
    std::iota(everywhere.begin(), everywhere.end(), 0);
    std::vector<int> arena_of(count, -1);
    std::vector<Offset> offsets(count, 0), heights;
    const Ranks rank(records.active);
    const auto width = PlacedByTime::width_for(rank, records.active);
    std::vector<PlacedByTime> arenas;
    for (std::size_t i = 0; i < capacities.size(); ++i) arenas.emplace_back(rank.count(), width);
    for (int record : sequence) {
        const auto pieces = ranked(rank, records.active[record]);
        const Offset size = records.nbytes[record];
        int chosen = -1;
        Offset chosen_at = 0, least = capacities.empty() ? size : 1;  // a new block grows the total by all of it
        for (const int arena : choices.empty() ? everywhere : choices[record]) {
            if (least <= 0) break;
            const Offset offset = gap_for(arenas[arena], pieces, size, records.alignment[record], Gap::lowest);
            if (offset + size > (capacities.empty() ? block : capacities[arena])) continue;
            const Offset grown = capacities.empty() ? std::max<Offset>(0, offset + size - heights[arena]) : 0;
            if (chosen >= 0 ? grown < least : grown <= least) {
                chosen = arena;
                chosen_at = offset;
                least = grown;
            }
        }
        if (chosen < 0) {
            if (!capacities.empty() || size > block) return {};
            chosen = static_cast<int>(arenas.size());
            arenas.emplace_back(rank.count(), width);
            everywhere.push_back(chosen);
            heights.push_back(0);
        }
        arena_of[record] = chosen;
        offsets[record] = chosen_at;
        if (capacities.empty()) heights[chosen] = std::max(heights[chosen], chosen_at + size);
        for (auto [low, high] : pieces) arenas[chosen].insert(low, high, chosen_at, chosen_at + size, record);
    }
    return {arena_of, offsets};
}

}  // namespace downset
