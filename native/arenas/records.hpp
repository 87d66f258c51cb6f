// Records: buffers of so many bytes that live in certain steps. All that the arena planners and the planners of shared
// objects see of a network; defined by downset/memory/records.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "check.hpp"

namespace downset {

using Offset = std::int64_t;
using Interval = std::pair<std::int64_t, std::int64_t>;  // of steps, half-open
using Pieces = std::vector<Interval>;                    // of a lifetime with gaps, ascending

inline Offset round_up(Offset value, Offset alignment) { return (value + alignment - 1) / alignment * alignment; }

struct Records {
    std::vector<Offset> nbytes, alignment;
    std::vector<Offset> pinned;  // an offset, or -1
    std::vector<Pieces> active;

    int count() const { return static_cast<int>(nbytes.size()); }

    // What every function here relies on; all sums and differences then fit into 64 bits.
    void check() const {
        require(nbytes.size() < kMostRecords, "records: there are ", nbytes.size());
        require_size("alignment", alignment.size(), nbytes.size());
        require_size("pinned", pinned.size(), nbytes.size());
        require_size("active", active.size(), nbytes.size());
        require_at_least<Offset>("nbytes", nbytes, 0);
        require_at_least<Offset>("alignment", alignment, 1);
        require_at_least<Offset>("pinned", pinned, -1);
        Offset room = kMost - std::max<Offset>(0, pinned.empty() ? 0 : *std::max_element(pinned.begin(), pinned.end()));
        for (const auto* list : {&nbytes, &alignment})
            for (const Offset value : *list) {
                require(value <= room, "records: offsets may come to more than 2^61 bytes");
                room -= value;
            }
        for (const Pieces& pieces : active) {
            require(!pieces.empty(), "active: a record never lives");
            std::int64_t last = -kMost;
            for (const auto& [start, stop] : pieces) {
                require(last <= start && start < stop && stop <= kMost, "active: [", start, ", ", stop,
                        ") is not an interval behind the one before it");
                last = stop;
            }
        }
    }

private:
    static constexpr Offset kMost = Offset{1} << 61;
    static constexpr std::size_t kMostRecords = std::size_t{1} << 30;
};

}  // namespace downset
