// Live pieces, and how a runtime places them.
#include <cstdint>
#include <vector>

#include "arenas/breadth_turns.hpp"
#include "bindings/common.hpp"
#include "memory/litert_sequence.hpp"
#include "memory/sweeps.hpp"

namespace downset {
namespace {

LivePieces live_pieces(const Int64Array& low, const Int64Array& high, const Int64Array& record,
                       const Int64Array& nbytes) {
    LivePieces pieces{listed(low), listed(high), listed(record), listed(nbytes)};
    pieces.check();
    return pieces;
}

}  // namespace

void bind_memory(nb::module_& module) {
    nb::class_<LivePieces>(module, "LivePieces",
                           "Pieces of lifetimes, [low, high), and the record that each is of; bytes by record.")
        .def(
            "__init__",
            [](LivePieces* self, const Int64Array& low, const Int64Array& high, const Int64Array& record,
               const Int64Array& nbytes) { new (self) LivePieces(live_pieces(low, high, record, nbytes)); },
            "low"_a, "high"_a, "record"_a, "nbytes"_a,
            nb::sig("def __init__(self, low: array.array[int], high: array.array[int], record: array.array[int], "
                    "nbytes: array.array[int]) -> None"))
        .def("breadths", &breadths, Unlocked(), "(Steps, ascending; the bytes that live from each on).")
        .def("padded_breadth", &padded_breadth, "unit"_a, Unlocked(),
             "The least end of records whose offsets are multiples of `unit`, by the steps alone.")
        .def(
            "collisions",
            [](const LivePieces& self, const Int64Array& offsets, std::int64_t most) {
                const Int64s begins = listed(offsets);
                nb::gil_scoped_release unlocked;
                return collisions(self, begins, most);
            },
            "offsets"_a, "most"_a,
            nb::sig("def collisions(self, offsets: array.array[int], most: int) -> list[tuple[int, int, int]]"),
            "(Step, record that holds the bytes, record that comes to live on them), the first `most`.")
        .def("breadth_turns", &breadth_turns, "later_step_first"_a, Unlocked(),
             "By record: the turn in which greedy by breadth first names it.");
    module.def("litert_sequence", &litert_sequence, "steps"_a, "tensors"_a, "nbytes"_a, "whole"_a, Unlocked(),
               "The tensors in the sequence in which LiteRT's planner places them.");
}

}  // namespace downset
