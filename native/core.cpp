// Bindings only: integers in, integers out. Each search is a header beside this file, specified by a Python twin or
// oracle that the tests hold it to. Every function takes its limits as arguments and runs without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arena_capacity.hpp"
#include "arena_place.hpp"
#include "arena_search.hpp"
#include "arena_strip.hpp"
#include "objects_assign.hpp"
#include "objects_search.hpp"
#include "order_beam.hpp"
#include "order_bound.hpp"
#include "order_search.hpp"
#include "pieces_search.hpp"
#include "pipeline_search.hpp"
#include "stage_search.hpp"

namespace nb = nanobind;

namespace {

using downset::Bytes;
using downset::Ints;
using downset::OrderProblem;

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
    Sizes nbytes, Sizes alignments, Sizes pinned, const std::vector<std::vector<downset::ArenaProblem::Interval>>& active,
    const std::vector<std::vector<int>>& sequences, std::int64_t bound, double seconds, std::int64_t round_limit,
    std::uint64_t seed) {
    const downset::ArenaProblem problem(std::move(nbytes), std::move(alignments), std::move(pinned), active);
    const auto found = downset::local_search(problem, sequences, bound, seconds, round_limit, seed);
    return {found.offsets, found.height, found.rounds};
}

std::tuple<std::vector<int>, std::int64_t, std::int64_t> shared_objects(
    Sizes nbytes, std::vector<downset::Pieces> active, Sizes maxima, std::int64_t incumbent, double seconds,
    std::int64_t state_limit) {
    const downset::ObjectsProblem problem(std::move(nbytes), std::move(active), std::move(maxima));
    const auto found = downset::shared_objects(problem, incumbent, seconds, state_limit);
    return {found.object_of, found.bound, found.states};
}

// {offsets (empty: none found), 1 placed | 0 impossible | -1 limit, nodes}
std::tuple<Sizes, int, std::int64_t> arena_within(
    Sizes nbytes, Sizes alignments, Sizes pinned, const std::vector<std::vector<downset::ArenaProblem::Interval>>& active,
    std::int64_t capacity, double seconds, std::int64_t node_limit) {
    const downset::ArenaProblem problem(std::move(nbytes), std::move(alignments), std::move(pinned), active);
    downset::CapacitySearch search(problem, active);
    const auto outcome = search.run(capacity, seconds, node_limit);
    using Outcome = downset::CapacitySearch::Outcome;
    if (outcome == Outcome::kPlaced) return {search.offsets(), 1, search.nodes()};
    return {{}, outcome == Outcome::kImpossible ? 0 : -1, search.nodes()};
}

// Segments as (rows, MACs upper, lower, final, bytes upper, lower, final), by start * (cuts + 1) + stop.
using SegmentTables = std::tuple<int, Sizes, Sizes, Sizes, Sizes, Sizes, Sizes>;
using StageTables = std::vector<std::tuple<int, std::vector<std::tuple<int, int, std::vector<int>>>, std::vector<int>>>;

// {period (infinity: none below the incumbent), bound, finished, states, stages: leader, blocks (start, stop, row
// boundaries), devices}; with least_latency the plan of least latency and its period.
std::tuple<double, double, bool, std::int64_t, StageTables> pipeline_search(
    int cuts, std::vector<SegmentTables> segments, Sizes macs_before, Sizes handover, std::vector<double> speed,
    std::vector<int> type, std::vector<std::vector<double>> per_byte, std::vector<std::vector<double>> latency,
    bool uniform, bool overlap, bool shared, double latency_limit, bool several_blocks, bool least_latency,
    double incumbent, double seconds, std::int64_t state_limit, const std::vector<std::tuple<int, int, int>>& forbidden) {
    downset::PipelineProblem problem;
    problem.cuts = cuts;
    const auto count = speed.size();
    const auto lines = static_cast<std::size_t>(cuts) + 1;
    bool lawful = cuts > 0 && count > 0 && type.size() == count && per_byte.size() == count && latency.size() == count &&
                  segments.size() == lines * lines && macs_before.size() == lines && handover.size() == lines;
    for (const auto& line : per_byte) lawful &= line.size() == count;
    for (const auto& line : latency) lawful &= line.size() == count;
    for (auto& [rows, a, b, c, d, e, f] : segments) {
        const auto size = static_cast<std::size_t>(rows) + 1;
        if (rows > 0)
            for (const auto* list : {&a, &b, &c, &d, &e, &f}) lawful &= list->size() == size;
        const auto real = [](const Sizes& whole) { return std::vector<double>(whole.begin(), whole.end()); };
        problem.segments.push_back({rows, real(a), real(b), real(c), real(d), real(e), real(f)});
    }
    if (!lawful) throw std::invalid_argument("pipeline problem: lists of different lengths");
    problem.macs_before = std::move(macs_before);
    problem.handover = std::move(handover);
    problem.speed = std::move(speed);
    problem.type = std::move(type);
    problem.per_byte = std::move(per_byte);
    problem.latency = std::move(latency);
    problem.uniform = uniform;
    problem.overlap = overlap;
    problem.shared = shared;
    problem.latency_limit = latency_limit;
    problem.several_blocks = several_blocks;
    problem.forbidden.assign(lines * lines, {});
    for (auto [start, stop, device] : forbidden) {
        if (start < 0 || stop <= start || stop > cuts || device < 0 || device >= static_cast<int>(count))
            throw std::invalid_argument("pipeline problem: a forbidden stage does not exist");
        problem.forbidden[start * lines + stop].push_back(device);
    }
    downset::PipelineSearch search(problem, seconds, state_limit);
    const auto found = least_latency ? search.least_latency() : search.run(incumbent);
    StageTables stages;
    for (const auto& stage : found.second) stages.emplace_back(stage.leader, stage.blocks, stage.devices);
    return {found.first, search.bound(), search.finished(), search.states(), std::move(stages)};
}

// {1 found | 0 impossible | -1 limit, a cost that has to be allowed}
std::tuple<int, std::int64_t> pieces_within(downset::PieceSearch& search, std::int64_t threshold, double seconds) {
    using Outcome = downset::PieceSearch::Outcome;
    const auto outcome = search.within(threshold, seconds);
    return {outcome == Outcome::kFound ? 1 : outcome == Outcome::kImpossible ? 0 : -1, search.next()};
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "The searches of downset, compiled.";
    using Unlocked = nb::call_guard<nb::gil_scoped_release>;
    // order_problem.hpp
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
    // order_search.hpp
    nb::class_<downset::BestFirst>(module, "BestFirst")
        .def(nb::init<const OrderProblem&, std::int64_t>())
        .def("advance", &advance, Unlocked())
        .def_prop_ro("bound", &downset::BestFirst::bound)
        .def_prop_ro("expanded", &downset::BestFirst::expanded)
        .def_prop_ro("steps", &downset::BestFirst::steps);
    // order_beam.hpp
    module.def("greedy", &downset::greedy, Unlocked());
    module.def("beam", &downset::beam, Unlocked());
    // arena_capacity.hpp
    module.def("arena_within", &arena_within, Unlocked());
    // arena_search.hpp
    module.def("arena_local_search", &arena_local_search, Unlocked());
    // arena_place.hpp
    module.def("place_in_order", &downset::place_in_order, Unlocked());
    module.def("spread", &downset::spread, Unlocked());
    // arena_strip.hpp
    module.def("fill_strip", &downset::fill_strip, Unlocked());
    // objects_assign.hpp
    module.def("assign_in_order", &downset::assign_in_order, Unlocked());
    // objects_search.hpp
    module.def("shared_objects", &shared_objects, Unlocked());
    // pipeline_search.hpp
    module.def("pipeline_search", &pipeline_search, Unlocked());
    // order_bound.hpp
    module.def("closure_bound", &downset::closure_bound, Unlocked());
    // pieces_search.hpp
    using Lists = downset::PieceSearch::Lists;
    nb::class_<downset::PieceSearch>(module, "PieceSearch")
        .def(nb::init<Lists, Lists, Lists, Sizes, Sizes, Lists, std::vector<int>, int, int, std::int64_t>(), Unlocked())
        .def("within", &pieces_within, Unlocked())
        .def("refine", &downset::PieceSearch::refine, Unlocked())
        .def("pieces", &downset::PieceSearch::pieces)
        .def("costs", &downset::PieceSearch::costs)
        .def("states", &downset::PieceSearch::states)
        .def("pairs", &downset::PieceSearch::pairs);
    // stage_search.hpp
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
