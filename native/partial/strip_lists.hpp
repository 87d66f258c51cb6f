// The pieces of tensors and the operators of a segment in strips, in lists that many programs use one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
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
    std::size_t size() const { return static_cast<std::size_t>(last - first); }
    std::int64_t operator[](std::size_t place) const { return first[place]; }
};

struct StripRun {
    std::size_t reads, writes, over, stop;  // where those of each kind begin
    std::int64_t lagged = -1, lag = 0;      // a piece that the result may overlap, this far below it
    std::int64_t macs = 0, persistent_bytes = 0, scratch = 0;
    bool computes = false, view = false, makes_output = false;
};

// The lists of a program. They take the memory that the thread's last program had: asking the system for it took longer
// than writing the program.
struct StripLists {
    std::vector<StripPiece> pieces;
    std::vector<StripRun> runs;
    std::vector<std::int64_t> ids;
};

class LentStripLists : public StripLists {
public:
    LentStripLists() : StripLists(std::exchange(spare(), {})) {
        pieces.clear();
        runs.clear();
        ids.clear();
    }
    ~LentStripLists() { spare() = std::move(static_cast<StripLists&>(*this)); }
    LentStripLists(const LentStripLists&) = delete;
    LentStripLists& operator=(const LentStripLists&) = delete;

private:
    static StripLists& spare() {
        thread_local StripLists lists;
        return lists;
    }
};

}  // namespace downset
