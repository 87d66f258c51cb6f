// Records in arenas and in objects.
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "arenas/capacity_search.hpp"
#include "arenas/ejection.hpp"
#include "arenas/placement.hpp"
#include "arenas/records.hpp"
#include "arenas/skyline.hpp"
#include "arenas/spread.hpp"
#include "arenas/strip.hpp"
#include "bindings/common.hpp"
#include "objects/assign.hpp"
#include "objects/exact.hpp"
#include "objects/maxima.hpp"
#include "outcome.hpp"

namespace downset {
namespace {

// {offsets (empty: none found), outcome, nodes}
std::tuple<Int64s, Outcome, std::int64_t> arena_within(const Records& records, Offset capacity, double seconds,
                                                       std::int64_t node_limit) {
    const ArenaProblem problem(records);
    CapacitySearch search(problem);
    const Outcome outcome = search.run(capacity, seconds, node_limit);
    return {outcome == Outcome::kSolved ? search.offsets() : Int64s{}, outcome, search.nodes()};
}

// {offsets, height, steps}
std::tuple<Int64s, Offset, std::int64_t> arena_lower(const Records& records, Int64s offsets, Offset bound,
                                                     double seconds, std::int64_t step_limit, std::int64_t visit_limit,
                                                     std::uint64_t seed) {
    EjectionSearch search(records, std::move(offsets), seed);
    search.run(bound, seconds, step_limit, visit_limit);
    return {search.offsets(), search.height(), search.steps()};
}

// {object of each record (empty: none found below the incumbent), bound, states}
std::tuple<std::vector<int>, Offset, std::int64_t> least_objects(const Records& records, Int64s maxima,
                                                                 Offset incumbent, double seconds,
                                                                 std::int64_t state_limit) {
    auto result = shared_objects(ObjectsProblem(records, std::move(maxima)), incumbent, seconds, state_limit);
    return {std::move(result.object_of), result.bound, result.states};
}

}  // namespace

void bind_arenas(nb::module_& module) {
    nb::class_<Records>(
        module, "Records",
        "Buffers that live in certain steps. `pinned`: an offset, or -1; `active`: ascending, half-open.")
        .def(
            "__init__",
            [](Records* self, Int64s nbytes, Int64s alignment, Int64s pinned, std::vector<Pieces> active) {
                Records records{std::move(nbytes), std::move(alignment), std::move(pinned), std::move(active)};
                records.check();
                new (self) Records(std::move(records));
            },
            "nbytes"_a, "alignment"_a, "pinned"_a, "active"_a)
        .def("__len__", &Records::count);
    module.def("arena_within", &arena_within, "records"_a, "capacity_bytes"_a, "time_limit_s"_a, "node_limit"_a,
               Unlocked(), "(Offsets if SOLVED, how the search ended, placements tried).");
    module.def("arena_lower", &arena_lower, "records"_a, "offsets"_a, "bound_bytes"_a, "time_limit_s"_a, "step_limit"_a,
               "visit_limit"_a, "seed"_a, Unlocked(),
               "(Offsets, height in bytes, placements tried): the placement given, or a lower one.");
    module.def("place_in_order", &place_in_order, "records"_a, "sequence"_a, "gap"_a, "time_limit_s"_a, Unlocked(),
               "The offset of each record in its lowest or its smallest gap; -1: not in the sequence, or not in time.");
    module.def("place_above", &place_above, "records"_a, "sequence"_a, "offsets"_a, Unlocked(),
               "The offsets; those of the sequence at -1 lie in turn above everything that they meet.");
    module.def("spread", &spread, "records"_a, "sequence"_a, "capacities_bytes"_a, "block_bytes"_a, "choices"_a,
               Unlocked(), "(Arena, offset) of each record; ([], []) where one finds no room.");
    module.def("fill_strip", &fill_strip, "records"_a, "time_limit_s"_a, Unlocked(),
               "The offset of each record by best fit; -1: not in time.");
    module.def("assign_in_order", &assign_in_order, "records"_a, "sequence"_a, "first"_a, "time_limit_s"_a, Unlocked(),
               "The object of each record; -1: not in the sequence, or not in time.");
    module.def("positional_maxima", &positional_maxima, "records"_a, Unlocked(),
               "The largest i-th size of all steps, for each i.");
    module.def("shared_objects", &least_objects, "records"_a, "maxima_bytes"_a, "incumbent_bytes"_a, "time_limit_s"_a,
               "state_limit"_a, Unlocked(), "(Object of each record or [], bound in bytes, states).");
}

}  // namespace downset
