// The pieces of tensors and the operators of a segment in strips, in lists that many programs use one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pieces/row_form.hpp"

namespace downset {

struct StripPiece {
    std::int64_t tensor;
    Rows rows;
    std::int64_t nbytes, exact_bytes;  // aligned, not aligned
    bool kept = false;
};

// Pieces, by their positions in one list of all operators: an operator has no list of its own.
struct StripIds {
    const std::int64_t *first, *last;
    const std::int64_t* begin() const { return first; }
    const std::int64_t* end() const { return last; }
    std::int64_t operator[](std::size_t place) const { return first[place]; }
};

struct StripRun {
    std::size_t reads, writes, over, stop;  // where those of each kind begin
    std::int64_t lagged = -1, lag = 0;      // a piece that the result may overlap, this far below it
    std::int64_t macs = 0, persistent_bytes = 0, scratch = 0;
    bool computes = false, view = false, makes_output = false;
};

// The lists of a program. The next one of the same thread clears them and uses their memory again: asking the system
// for it took longer than writing the program. So a thread holds one program at a time.
struct StripLists {
    std::vector<StripPiece> pieces;
    std::vector<StripRun> runs;
    std::vector<std::int64_t> ids;

    static StripLists& of_thread() {
        thread_local StripLists lists;
        lists.pieces.clear();
        lists.runs.clear();
        lists.ids.clear();
        return lists;
    }
};

}  // namespace downset
