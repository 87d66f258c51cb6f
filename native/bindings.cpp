// Bindings only: integers in, integers out. Each search is a header beside this file, specified by a Python twin or
// oracle that the tests hold it to. Every function takes its limits as arguments and runs without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arenas/capacity_search.hpp"
#include "arenas/local_search.hpp"
#include "arenas/placement.hpp"
#include "arenas/strip.hpp"
#include "objects/assign.hpp"
#include "objects/exact.hpp"
#include "orders/beam.hpp"
#include "orders/best_first.hpp"
#include "orders/bound.hpp"
#include "pieces/search.hpp"
#include "pipelines/search.hpp"
#include "stages/lattice.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using downset::Bytes;
using downset::Ints;
using downset::OrderProblem;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

std::int64_t order_peak(const OrderProblem& problem, const Ints& steps) { return problem.peak(steps); }

// {1 solved | 0 none below the incumbent | -1 slice over | -2 out of memory}
int advance(downset::BestFirst& search, Bytes bound, Bytes incumbent, double seconds, std::int64_t states) {
    using Outcome = downset::BestFirst::Outcome;
    switch (search.advance(bound, incumbent, seconds, states)) {
        case Outcome::kSolved: return 1;
        case Outcome::kNone: return 0;
        case Outcome::kOpen: return -1;
        default: return -2;
    }
}

using Sizes = std::vector<std::int64_t>;

std::tuple<Sizes, std::int64_t, std::int64_t> arena_local_search(
    Sizes nbytes, Sizes alignments, Sizes pinned,
    const std::vector<std::vector<downset::ArenaProblem::Interval>>& active,
    const std::vector<std::vector<int>>& sequences, std::int64_t bound, double seconds, std::int64_t round_limit,
    std::uint64_t seed) {
    const downset::ArenaProblem problem(std::move(nbytes), std::move(alignments), std::move(pinned), active);
    const auto found = downset::local_search(problem, sequences, bound, seconds, round_limit, seed);
    return {found.offsets, found.height, found.rounds};
}

std::tuple<std::vector<int>, std::int64_t, std::int64_t> shared_objects(Sizes nbytes,
                                                                        std::vector<downset::Pieces> active,
                                                                        Sizes maxima, std::int64_t incumbent,
                                                                        double seconds, std::int64_t state_limit) {
    const downset::ObjectsProblem problem(std::move(nbytes), std::move(active), std::move(maxima));
    const auto found = downset::shared_objects(problem, incumbent, seconds, state_limit);
    return {found.object_of, found.bound, found.states};
}

// {offsets (empty: none found), 1 placed | 0 impossible | -1 limit, nodes}
std::tuple<Sizes, int, std::int64_t> arena_within(
    Sizes nbytes, Sizes alignments, Sizes pinned,
    const std::vector<std::vector<downset::ArenaProblem::Interval>>& active, std::int64_t capacity, double seconds,
    std::int64_t node_limit) {
    const downset::ArenaProblem problem(std::move(nbytes), std::move(alignments), std::move(pinned), active);
    downset::CapacitySearch search(problem, active);
    const auto outcome = search.run(capacity, seconds, node_limit);
    using Outcome = downset::CapacitySearch::Outcome;
    if (outcome == Outcome::kPlaced) return {search.offsets(), 1, search.nodes()};
    return {{}, outcome == Outcome::kImpossible ? 0 : -1, search.nodes()};
}

// {period (infinity: none below the incumbent), bound, finished, states, stages as (leader, blocks as (start, stop, row
// boundaries), devices)}; of the least latency: the period of that plan.
using PipelineStages =
    std::vector<std::tuple<int, std::vector<std::tuple<int, int, std::vector<int>>>, std::vector<int>>>;
using PipelineFound = std::tuple<double, double, bool, std::int64_t, PipelineStages>;

PipelineFound pipeline_found(const downset::PipelineSearch& search, downset::PipelineSearch::Found found) {
    PipelineStages stages;
    for (auto& stage : found.second)
        stages.emplace_back(stage.leader, std::move(stage.blocks), std::move(stage.devices));
    return {found.first, search.bound(), search.finished(), search.states(), std::move(stages)};
}

PipelineFound least_period(const downset::PipelineProblem& problem, double incumbent, double seconds,
                           std::int64_t state_limit) {
    downset::require(!std::isnan(incumbent), "incumbent: it is not a number of seconds");
    downset::PipelineSearch search(problem, seconds, state_limit);
    auto found = search.run(incumbent);
    return pipeline_found(search, std::move(found));
}

PipelineFound least_latency(const downset::PipelineProblem& problem, double seconds, std::int64_t state_limit) {
    downset::PipelineSearch search(problem, seconds, state_limit);
    auto found = search.least_latency();
    return pipeline_found(search, std::move(found));
}

// {1 found | 0 impossible | -1 limit, a cost that has to be allowed}
std::tuple<int, std::int64_t> pieces_within(downset::PieceSearch& search, std::int64_t threshold, double seconds) {
    using Outcome = downset::PieceSearch::Outcome;
    const auto outcome = search.within(threshold, seconds);
    return {outcome == Outcome::kFound ? 1 : outcome == Outcome::kImpossible ? 0 : -1, search.next()};
}

void bind_pipelines(nb::module_& module) {
    using namespace downset;
    nb::class_<PipelineSegment>(module, "PipelineSegment")
        .def(nb::init<int, const PipelineSegment::Lists&, const PipelineSegment::Lists&>(), "rows"_a, "macs"_a,
             "moved_bytes"_a);
    nb::class_<PipelineChain>(module, "PipelineChain")
        .def(nb::init<const PipelineChain::Segments&, Sizes, Sizes>(), "segments"_a, "macs_before"_a,
             "handover_bytes"_a);
    using Table = std::vector<std::vector<double>>;
    nb::class_<PipelineNetwork>(module, "PipelineNetwork")
        .def(nb::init<Table, Table, bool, bool, bool>(), "per_byte_s"_a, "latency_s"_a, nb::kw_only(), "uniform"_a,
             "overlap"_a, "shared"_a);
    nb::class_<PipelineProblem>(module, "PipelineProblem")
        .def(nb::init<PipelineChain, const std::vector<PipelineProblem::Device>&, PipelineNetwork, double, bool,
                      const std::vector<PipelineProblem::Forbidden>&>(),
             "chain"_a, "devices"_a, "network"_a, nb::kw_only(), "latency_limit_s"_a, "several_blocks"_a,
             "forbidden"_a);
    module.def("pipeline_least_period", &least_period, "problem"_a, nb::kw_only(), "incumbent_s"_a, "time_limit_s"_a,
               "state_limit"_a, Unlocked());
    module.def("pipeline_least_latency", &least_latency, "problem"_a, nb::kw_only(), "time_limit_s"_a, "state_limit"_a,
               Unlocked());
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "The searches of downset, compiled.";
    // orders/problem.hpp
    nb::class_<OrderProblem>(module, "OrderProblem")
        .def("__init__",
             [](OrderProblem* self, std::vector<Ints> predecessors, std::vector<Bytes> nbytes,
                std::vector<Ints> producers, std::vector<Ints> consumers, std::vector<bool> kept,
                std::vector<Ints> in_place, Bytes floor) {
                 new (self) OrderProblem({std::move(predecessors), std::move(nbytes), std::move(producers),
                                          std::move(consumers), std::move(kept), std::move(in_place)},
                                         floor);
             })
        .def("reversed", &OrderProblem::reversed);
    module.def("order_peak", &order_peak, Unlocked());
    // orders/best_first.hpp
    nb::class_<downset::BestFirst>(module, "BestFirst")
        .def(nb::init<const OrderProblem&, std::int64_t>())
        .def("advance", &advance, Unlocked())
        .def_prop_ro("bound", &downset::BestFirst::bound)
        .def_prop_ro("expanded", &downset::BestFirst::expanded)
        .def_prop_ro("steps", &downset::BestFirst::steps);
    // orders/beam.hpp
    module.def("greedy", &downset::greedy, Unlocked());
    module.def("beam", &downset::beam, Unlocked());
    // arenas/capacity_search.hpp
    module.def("arena_within", &arena_within, Unlocked());
    // arenas/local_search.hpp
    module.def("arena_local_search", &arena_local_search, Unlocked());
    // arenas/placement.hpp
    module.def("place_in_order", &downset::place_in_order, Unlocked());
    module.def("spread", &downset::spread, Unlocked());
    // arenas/strip.hpp
    module.def("fill_strip", &downset::fill_strip, Unlocked());
    // objects/assign.hpp
    module.def("assign_in_order", &downset::assign_in_order, Unlocked());
    // objects/exact.hpp
    module.def("shared_objects", &shared_objects, Unlocked());
    bind_pipelines(module);
    // orders/bound.hpp
    module.def("closure_bound", &downset::closure_bound, Unlocked());
    // pieces/search.hpp
    using Lists = downset::PieceSearch::Lists;
    nb::class_<downset::PieceSearch>(module, "PieceSearch")
        .def(nb::init<Lists, Lists, Lists, Sizes, Sizes, Lists, std::vector<int>, int, int, std::int64_t>(), Unlocked())
        .def("within", &pieces_within, Unlocked())
        .def("refine", &downset::PieceSearch::refine, Unlocked())
        .def("pieces", &downset::PieceSearch::pieces)
        .def("costs", &downset::PieceSearch::costs)
        .def("states", &downset::PieceSearch::states)
        .def("pairs", &downset::PieceSearch::pairs);
    // stages/lattice.hpp
    nb::class_<downset::StageLattice>(module, "StageLattice")
        .def(nb::init<std::vector<downset::Mask>, int, int, bool, double, std::int64_t>(), Unlocked())
        .def("complete", &downset::StageLattice::complete)
        .def("states", &downset::StageLattice::states)
        .def("pairs", &downset::StageLattice::pairs)
        .def("stages", &downset::StageLattice::stages)
        .def("weigh", &downset::StageLattice::weigh, Unlocked())
        .def("schedules", &downset::StageLattice::schedules, Unlocked())
        .def("solve", &downset::StageLattice::solve, Unlocked());
}
