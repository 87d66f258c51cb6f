// Orders of least peak.
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/common.hpp"
#include "orders/beam.hpp"
#include "orders/best_first.hpp"
#include "orders/bound.hpp"
#include "orders/decompose.hpp"

namespace downset {

void bind_orders(nb::module_& module) {
    nb::class_<OrderProblem>(module, "OrderProblem",
                             "Operators in a topological order and the storages they touch, as ascending lists.")
        .def(
            "__init__",
            [](OrderProblem* self, std::vector<Ints> predecessors, std::vector<Bytes> nbytes,
               std::vector<Ints> producers, std::vector<Ints> consumers, std::vector<bool> kept,
               std::vector<Ints> in_place, std::vector<std::vector<Bytes>> in_place_bytes, Bytes floor) {
                new (self) OrderProblem(
                    {std::move(predecessors), std::move(nbytes), std::move(producers), std::move(consumers),
                     std::move(kept), std::move(in_place), std::move(in_place_bytes)},
                    floor);
            },
            "predecessors"_a, "nbytes"_a, "producers"_a, "consumers"_a, "kept"_a, "in_place"_a, "in_place_bytes"_a,
            "floor_bytes"_a)
        .def("reversed", &OrderProblem::reversed, "The same orders, read from their ends.");
    module.def("decompose", &decompose, "problem"_a, "relaxed"_a, Unlocked(),
               "(The problem of segments with the same least peak, the operators of each, whether all are fixed).");
    nb::class_<BestFirst>(module, "BestFirst", "A search for an order of least peak that goes on where it stopped.")
        .def(nb::init<const OrderProblem&, std::int64_t>(), "problem"_a, "byte_limit"_a)
        .def("advance", &BestFirst::advance, "bound_bytes"_a, "incumbent_bytes"_a, "time_limit_s"_a, "state_limit"_a,
             Unlocked(), "SOLVED: `steps` is below the incumbent and least of all; IMPOSSIBLE: none is below it.")
        .def_prop_ro("bound", &BestFirst::bound)
        .def_prop_ro("expanded", &BestFirst::expanded)
        .def_prop_ro("steps", &BestFirst::steps);
    module.def("order_peak", &order_peak, "problem"_a, "steps"_a, Unlocked(), "Bytes.");
    module.def("greedy", &greedy, "problem"_a, "time_limit_s"_a, "move_limit"_a, Unlocked(),
               "Always the operator that leaves the least live; [] where a limit is reached.");
    module.def("beam", &beam, "problem"_a, "width"_a, "bound_bytes"_a, "incumbent_bytes"_a, "time_limit_s"_a,
               "state_limit"_a, Unlocked(), "(Order below the incumbent or [], states expanded).");
    module.def("closure_bound", &closure_bound, "problem"_a, "known"_a, "time_limit_s"_a, "member_limit"_a, Unlocked(),
               "Bytes that no order stays below. `known` is any order.");
    module.def("pair_bound", &pair_bound, "problem"_a, "known"_a, "bound_bytes"_a, "time_limit_s"_a, "member_limit"_a,
               Unlocked(), "Bytes that no order stays below, from pairs of operators; at least `bound_bytes`.");
}

}  // namespace downset
