// The turn in which greedy by breadth first names each record. Oracle: tests/arenas/test_arena_laws.py.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "memory/sweeps.hpp"

namespace downset {

// Steps take turns by decreasing breadth; of equal ones the earlier goes first, or the later. A record has the least
// turn of its steps: minima over ranges, by tables of doubled width. O(n log n).
inline std::vector<std::int64_t> breadth_turns(const LivePieces& pieces, bool later_step_first) {
    const auto [steps, totals] = breadths(pieces);
    std::vector<std::int64_t> ranked(steps.size());
    std::iota(ranked.begin(), ranked.end(), 0);
    if (later_step_first) std::reverse(ranked.begin(), ranked.end());
    std::stable_sort(ranked.begin(), ranked.end(),
                     [&totals = totals](std::int64_t one, std::int64_t other) { return totals[one] > totals[other]; });
    std::vector<std::vector<std::int64_t>> tables(1, std::vector<std::int64_t>(steps.size()));
    for (std::size_t turn = 0; turn < ranked.size(); ++turn) tables[0][ranked[turn]] = static_cast<std::int64_t>(turn);
    for (std::size_t half = 1; 2 * half <= steps.size(); half *= 2) {
        const std::vector<std::int64_t>& last = tables.back();
        std::vector<std::int64_t> table(last.size() - half);
        for (std::size_t k = 0; k < table.size(); ++k) table[k] = std::min(last[k], last[k + half]);
        tables.push_back(std::move(table));
    }
    const auto place = [&steps = steps](std::int64_t step) {
        return static_cast<std::size_t>(std::lower_bound(steps.begin(), steps.end(), step) - steps.begin());
    };
    std::vector<std::int64_t> turns(pieces.nbytes.size(), std::numeric_limits<std::int64_t>::max());
    for (std::size_t k = 0; k < pieces.low.size(); ++k) {
        const std::size_t begin = place(pieces.low[k]), end = place(pieces.high[k]);
        const std::vector<std::int64_t>& table = tables[std::bit_width(end - begin) - 1];
        std::int64_t& turn = turns[pieces.record[k]];
        turn = std::min({turn, table[begin], table[end - (std::size_t{1} << (std::bit_width(end - begin) - 1))]});
    }
    return turns;
}

}  // namespace downset
