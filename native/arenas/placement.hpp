// Placement in one arena at scale: records one after the other into their smallest or lowest gap.
// Oracle: `place_in_order` in tests/arenas/oracles/gaps.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "arenas/placed.hpp"
#include "arenas/ranks.hpp"
#include "arenas/records.hpp"
#include "check.hpp"
#include "deadline.hpp"

namespace downset {

// Which gap takes a record. `unrounded`: of two gaps the later one, if from where the record would begin there is less
// room than in the other from where that one begins, as in LiteRT's arena.
enum class Gap { smallest, lowest, unrounded };

// Where a record of so many bytes goes: into this gap, or above everything it meets.
inline Offset gap_for(PlacedByTime& placed, const PlacedList::Ranked& pieces, Offset nbytes, Offset alignment,
                      Gap gap) {
    Offset best = -1, best_room = 0, cursor = 0;
    placed.overlapping(pieces, [&](Offset begin, Offset end, std::int32_t) {
        if (begin - cursor >= nbytes) {  // seldom: the branch is nearly free
            const Offset offset = round_up(cursor, alignment), room = begin - offset;
            if (room >= nbytes && (best < 0 || room < best_room)) {
                best = offset;
                best_room = gap == Gap::unrounded ? begin - cursor : room;
                if (gap == Gap::lowest) return true;
            }
        }
        cursor = std::max(cursor, end);
        return false;
    });
    return best >= 0 ? best : round_up(cursor, alignment);
}

inline PlacedList::Ranked ranked(const Ranks& rank, const Pieces& active) {
    PlacedList::Ranked pieces;
    for (auto [low, high] : active) pieces.emplace_back(rank(low), rank(high));
    return pieces;
}

inline std::vector<Offset> place_in_order(const Records& records, const std::vector<int>& sequence, int gap,
                                          double seconds) {
    require(gap >= 0 && gap <= 2, "gap: ", gap, " is none of the three");
    const Deadline deadline(seconds);
    require_indices("sequence", sequence, records.nbytes.size());
    std::vector<Offset> offsets = records.pinned;
    const Ranks rank(records.active);
    PlacedByTime placed(rank, records.active);
    const auto put = [&](int record, const PlacedList::Ranked& pieces) {
        for (auto [low, high] : pieces)
            placed.insert(low, high, offsets[record], offsets[record] + records.nbytes[record], record);
    };
    for (int i = 0; i < records.count(); ++i)
        if (offsets[i] >= 0) put(i, ranked(rank, records.active[i]));
    std::size_t tried = 0;
    for (int record : sequence) {
        if (offsets[record] >= 0) continue;
        if (++tried % 16 == 0 && deadline.passed()) break;
        const auto pieces = ranked(rank, records.active[record]);
        offsets[record] =
            gap_for(placed, pieces, records.nbytes[record], records.alignment[record], static_cast<Gap>(gap));
        put(record, pieces);
    }
    return offsets;
}

}  // namespace downset
