// Bindings only: integers in, integers out. Each search is a header in the folder of its family, and names the oracle
// that the tests hold it to. Every function takes its limits as arguments and runs without the GIL;
// every argument is checked before a search sees it. An object that searches is for one thread at a time. The types of
// it all for Python: src/downset/_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "arenas/breadth_turns.hpp"
#include "arenas/capacity_search.hpp"
#include "arenas/ejection.hpp"
#include "arenas/placement.hpp"
#include "arenas/records.hpp"
#include "arenas/skyline.hpp"
#include "arenas/spread.hpp"
#include "arenas/strip.hpp"
#include "check.hpp"
#include "deadline.hpp"
#include "memories/anneal.hpp"
#include "memories/joint.hpp"
#include "memories/order_free.hpp"
#include "memories/residency.hpp"
#include "memory/litert_sequence.hpp"
#include "memory/sweeps.hpp"
#include "objects/assign.hpp"
#include "objects/exact.hpp"
#include "objects/maxima.hpp"
#include "orders/beam.hpp"
#include "orders/best_first.hpp"
#include "orders/bound.hpp"
#include "orders/decompose.hpp"
#include "outcome.hpp"
#include "partial/price.hpp"
#include "pieces/search.hpp"
#include "pipelines/event_graph.hpp"
#include "pipelines/loads/search.hpp"
#include "pipelines/rounds/search.hpp"
#include "pipelines/whole_layers.hpp"
#include "stages/lattice.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace downset {
namespace {

using Unlocked = nb::call_guard<nb::gil_scoped_release>;
using Int64s = std::vector<std::int64_t>;

using Int64Array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoubleArray = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto listed(const Array& array) {
    return std::vector(array.data(), array.data() + array.size());
}

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

LivePieces live_pieces(const Int64Array& low, const Int64Array& high, const Int64Array& record,
                       const Int64Array& nbytes) {
    LivePieces pieces{listed(low), listed(high), listed(record), listed(nbytes)};
    pieces.check();
    return pieces;
}

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

void bind_stages(nb::module_& module) {
    nb::class_<StageLattice>(module, "StageLattice",
                             "Downsets of at most 64 operators, their endings, and chains of these.")
        .def(nb::init<const std::vector<Word>&, int, int, bool, double, std::int64_t>(), "predecessors"_a, "max_ops"_a,
             "max_groups"_a, "single_root"_a, "time_limit_s"_a, "pair_limit"_a, Unlocked())
        .def("complete", &StageLattice::complete)
        .def("states", &StageLattice::states)
        .def("pairs", &StageLattice::pairs)
        .def("stages", &StageLattice::stages)
        .def("weigh", &StageLattice::weigh, "costs"_a, Unlocked(),
             "By stage: its most expensive group, the sum of its groups, and how many they are.")
        .def("schedules", &StageLattice::schedules, Unlocked(),
             "How many chains of stages there are, as (high, low) words of 64 bits.")
        .def("solve", &StageLattice::solve, "prices"_a, Unlocked(),
             "(The cheapest chain, its price); a price below 0 forbids a stage, no chain: ([], -1).");
}

// {outcome, a cost that has to be allowed}
std::pair<Outcome, std::int64_t> pieces_within(PieceSearch& search, std::int64_t threshold, double seconds) {
    const Outcome outcome = search.within(threshold, seconds);
    return {outcome, search.next()};
}

void bind_pieces(nb::module_& module) {
    using Lists = RowForm::Lists;
    nb::class_<RowForm>(module, "RowForm",
                        "Operators along rows.\n\nFive integers an input (tensor, scale, per, low, high), three an "
                        "operator (rows, MACs a row, whole).")
        .def(nb::init<const Lists&, const Lists&, const Lists&, Int64s, Int64s>(), "op_inputs"_a, "op_outputs"_a,
             "numbers"_a, "rows"_a, "outputs"_a);
    nb::class_<PieceSearch>(module, "PieceSearch", "Chains of pieces of at most 1024 vertices.")
        .def(nb::init<RowForm, Lists, std::vector<int>, int, int, std::int64_t>(), "form"_a, "vertices"_a, "layers"_a,
             nb::kw_only(), "strips"_a, "diameter"_a, "state_limit"_a, Unlocked())
        .def("within", &pieces_within, "threshold_macs"_a, "time_limit_s"_a, Unlocked(),
             "(How the search ended, a cost that has to be allowed if it is IMPOSSIBLE).")
        .def("refine", &PieceSearch::refine, "threshold_macs"_a, "first"_a, "time_limit_s"_a, Unlocked(),
             "Whether ties among chains within the threshold were settled: by their sum, or as the paper does "
             "(`first`).")
        .def("pieces", &PieceSearch::pieces)
        .def("costs", &PieceSearch::costs)
        .def("states", &PieceSearch::states)
        .def("pairs", &PieceSearch::pairs);
}

// {period (infinity: none below the incumbent), bound, finished, states, stages as (leader, blocks as (start, stop, row
// boundaries), devices)}; of the least latency: the period of that plan.
using PipelineStages =
    std::vector<std::tuple<int, std::vector<std::tuple<int, int, std::vector<int>>>, std::vector<int>>>;
using PipelineFound = std::tuple<double, double, bool, std::int64_t, PipelineStages>;

template <class Search>
PipelineFound pipeline_found(const Search& search, typename Search::Found plan) {
    PipelineStages stages;
    for (auto& stage : plan.second)
        stages.emplace_back(stage.leader, std::move(stage.blocks), std::move(stage.devices));
    return {plan.first, search.bound(), search.finished(), search.states(), std::move(stages)};
}

PipelineFound least_load(const LoadProblem& problem, double incumbent, double seconds, std::int64_t state_limit) {
    require(!std::isnan(incumbent), "incumbent: it is not a number of seconds");
    LoadSearch search(problem, seconds, state_limit);
    auto plan = search.run(incumbent);
    return pipeline_found(search, std::move(plan));
}

PipelineFound least_rounds(const LoadProblem& problem, const RoundAims& aims, double incumbent, double seconds,
                           std::int64_t state_limit) {
    require(!std::isnan(incumbent), "incumbent: it is not a number of seconds");
    RoundSearch search(problem, aims, seconds, state_limit);
    auto plan = search.run(incumbent);
    return pipeline_found(search, std::move(plan));
}

PipelineFound least_latency(const LoadProblem& problem, const RoundAims& aims, double seconds,
                            std::int64_t state_limit) {
    RoundSearch search(problem, aims, seconds, state_limit);
    auto plan = search.least_latency();
    return pipeline_found(search, std::move(plan));
}

// {how it ended, length, stages as (downset behind it, type of its device), states}
std::tuple<Outcome, double, WholeLayerSearch::Stages, std::int64_t> whole_layer_stages(const WholeLayerProblem& problem,
                                                                                       double limit, double seconds) {
    require(limit >= 0, "limit: it is not at least 0 seconds");
    WholeLayerSearch search(problem);
    const auto outcome = search.within(limit, seconds);
    return {outcome, search.length_s(), search.stages(), search.states()};
}

// {possible, peak bytes, peak where nothing overlaps, MACs, copied bytes, operators, persistent bytes, unknown scratch}
std::tuple<bool, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
           std::vector<StripNetwork::Call>>
strips_price(const StripNetwork& network, const StripSegment& segment, std::int64_t strips, const Int64s& recomputed,
             bool even) {
    const auto price = price_strips(network, segment, strips, recomputed, even);
    return {price.possible,     price.peak_bytes, price.apart_bytes,      price.macs,
            price.copied_bytes, price.operators,  price.persistent_bytes, price.unknown};
}

void bind_partial(nb::module_& module) {
    using Lists = RowForm::Lists;
    nb::class_<StripNetwork>(
        module, "StripNetwork",
        "A network that is computed in strips of rows.\n\nSixteen integers an operator: how it "
        "makes rows, stride, reach, begin, end, factor, adds, first input,\nbits of a padded row, "
        "left, right, SAME along columns, graph output, persistent bytes, whether rows are\ncut off, view. "
        "Walks are those of kernels that let results lie over inputs, fourteen integers or none.")
        .def(
            "__init__",
            [](StripNetwork* self, RowForm form, const Lists& numbers, const Lists& overwritten, const Lists& walks,
               Int64s row_bits, std::int64_t alignment, std::int64_t moving_persistent_bytes, bool only_reader,
               bool outputs_apart, bool inputs_apart, bool counts_scratch) {
                new (self)
                    StripNetwork(std::move(form), numbers, overwritten, walks, std::move(row_bits), alignment,
                                 moving_persistent_bytes, {only_reader, outputs_apart, inputs_apart, counts_scratch});
            },
            "form"_a, "numbers"_a, "overwritten"_a, "walks"_a, "row_bits"_a, nb::kw_only(), "alignment"_a,
            "moving_persistent_bytes"_a, "only_reader"_a, "outputs_apart"_a, "inputs_apart"_a, "counts_scratch"_a)
        .def("set_scratch", &StripNetwork::set_scratch, "call"_a, "nbytes"_a,
             "State the scratch of an operator on rows, one of the calls that `strips_price` lists.");
    nb::class_<StripSegment>(module, "StripSegment",
                             "Operators first to stop, and what is live around them.\n\nNine integers an input: "
                             "tensor, bytes, the input whose bytes it shares, reads by operators outside, whether\nit "
                             "is the tensor for which these bytes were taken, else reads of that one, input of the "
                             "graph, kept, alone.")
        .def(
            "__init__",
            [](StripSegment* self, const StripNetwork& network, std::int64_t first, std::int64_t stop,
               const Lists& inputs, Int64s results, std::vector<bool> results_counted, std::int64_t live_beside) {
                std::vector<StripInput> read;
                for (const auto& n : inputs) {
                    require_size("inputs of a segment", n.size(), 9);
                    read.push_back({n[0], n[1], n[2], n[3], n[4] != 0, n[5], n[6] != 0, n[7] != 0, n[8] != 0});
                }
                new (self) StripSegment(network, first, stop, std::move(read), std::move(results),
                                        std::move(results_counted), live_beside);
            },
            "network"_a, "first"_a, "stop"_a, nb::kw_only(), "inputs"_a, "results"_a, "results_counted"_a,
            "live_beside"_a);
    module.def(
        "strips_price", &strips_price, "network"_a, "segment"_a, "strips"_a, "recomputed"_a, "even"_a, Unlocked(),
        "(Possible, peak bytes, peak where nothing overlaps, MACs, copied bytes, operators, persistent bytes,\n"
        "operators on rows of which no scratch is stated). Those are: operator, rows made, pads above and below,\n"
        "whether it reads a padded copy, rows of each input.");
}

void bind_pipelines(nb::module_& module) {
    using Table = std::vector<std::vector<double>>;
    nb::class_<PipelineNetwork>(module, "PipelineNetwork", "Seconds a byte and seconds a transfer by pair of devices.")
        .def(nb::init<Table, Table, bool, bool, bool>(), "per_byte_s"_a, "latency_s"_a, nb::kw_only(), "uniform"_a,
             "overlap"_a, "shared"_a);
}

using LoadTables = nb::ndarray<const double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

LoadSegment load_segment(const LoadTables& tables) {
    require(tables.shape(1) == 3 && tables.shape(2) > 1, "segment: its tables are not three lists of rows");
    return LoadSegment(static_cast<int>(tables.shape(2)) - 1, tables.data(), tables.shape(0));
}

// {arcs of a circle (empty: there is none), distances}
std::pair<Int64s, std::vector<double>> longest_paths(const std::array<Int64Array, 3>& arcs, const DoubleArray& weights,
                                                     const DoubleArray& distance, double least) {
    require(!std::isnan(least), "least gain: it is not a number");
    const EventArcs graph{listed(arcs[0]), listed(arcs[1]), listed(arcs[2]), listed(weights)};
    nb::gil_scoped_release unlocked;
    LongestPaths paths(graph, listed(distance), least);
    return {std::move(paths.cycle), std::move(paths.distance)};
}

void bind_loads(nb::module_& module) {
    module.def(
        "longest_paths", &longest_paths, "arcs"_a, "weights"_a, "distance"_a, "least"_a,
        nb::sig("def longest_paths(arcs: Sequence[numpy.typing.NDArray[numpy.int64]], weights: "
                "numpy.typing.NDArray[numpy.float64], distance: numpy.typing.NDArray[numpy.float64], least: float) "
                "-> tuple[list[int], list[float]]"),
        "(Arcs of a circle of positive weight, [] where there is none; distances.)\n\nArcs are tails, heads and "
        "frames.");
    nb::class_<LoadSegment>(module, "LoadSegment",
                            "Costs of strips: MACs, bytes in and out, the work of each class of devices; each upper, "
                            "lower and\nfinal, by row.")
        .def(
            "__init__",
            [](LoadSegment* self, const LoadTables& tables) { new (self) LoadSegment(load_segment(tables)); },
            "tables"_a, nb::sig("def __init__(self, tables: numpy.typing.NDArray[numpy.float64]) -> None"));
    nb::class_<LoadChain>(module, "LoadChain",
                          "Every segment by its cuts (start, stop); MACs before each cut, bytes over it.")
        .def(nb::init<const LoadChain::Segments&, std::vector<double>, std::vector<double>>(), "segments"_a,
             "macs_before"_a, "crossing_bytes"_a);
    nb::class_<LoadDevice>(module, "LoadDevice", "Type, class of work, work a second, MACs a second, full duplex.")
        .def(nb::init<int, int, double, double, bool>(), "type"_a, "work_class"_a, "speed"_a, "peak"_a, "full"_a);
    nb::class_<LoadProblem>(module, "LoadProblem",
                            "Devices in the order of strips; source and sink are devices, or -1; forbidden are (start, "
                            "stop, device).")
        .def(nb::init<LoadChain, std::vector<LoadDevice>, PipelineNetwork, int, int,
                      const std::vector<LoadProblem::Forbidden>&>(),
             "chain"_a, "devices"_a, "network"_a, nb::kw_only(), "source"_a, "sink"_a, "forbidden"_a);
    nb::class_<RoundAims>(module, "RoundAims", "A limit on latency, and whether a stage may be several blocks.")
        .def(
            "__init__",
            [](RoundAims* self, double latency_limit, bool several_blocks) {
                require(latency_limit >= 0, "latency limit: it is not at least 0 seconds");
                new (self) RoundAims{latency_limit, several_blocks};
            },
            nb::kw_only(), "latency_limit_s"_a, "several_blocks"_a);
    module.def("least_load", &least_load, "problem"_a, nb::kw_only(), "incumbent_s"_a, "time_limit_s"_a,
               "state_limit"_a, Unlocked(),
               "(Period or infinity, bound, whether the search ended, states, stages).\n\nA stage is (leader, blocks, "
               "devices), a block (start, stop, row boundaries).");
    module.def("least_rounds", &least_rounds, "problem"_a, "aims"_a, nb::kw_only(), "incumbent_s"_a, "time_limit_s"_a,
               "state_limit"_a, Unlocked(), "Likewise by the paper's equations.");
    module.def("least_latency", &least_latency, "problem"_a, "aims"_a, nb::kw_only(), "time_limit_s"_a, "state_limit"_a,
               Unlocked(), "Likewise the plan of least latency; its period is given.");
    using Lists = WholeLayerProblem::Lists;
    nb::class_<WholeLayerProblem>(
        module, "WholeLayerProblem",
        "Downsets of vertices from none to all, by size; tensors as (maker or -1, 1 for a result or 0, readers...);\n"
        "seconds by type of device and vertex; the type of each device, rising; by type whether it is full duplex.")
        .def(nb::init<int, const Lists&, const Lists&, std::vector<double>, const std::vector<std::vector<double>>&,
                      const std::vector<int>&, std::vector<int>, bool, bool>(),
             "vertices"_a, "downsets"_a, "tensors"_a, "message_s"_a, "compute_s"_a, "types"_a, nb::kw_only(), "full"_a,
             "overlap"_a, "shared"_a);
    module.def("whole_layer_stages", &whole_layer_stages, "problem"_a, nb::kw_only(), "limit_s"_a, "time_limit_s"_a,
               Unlocked(),
               "(How it ended, the largest load of the best stages within the limit, stages as (downset behind it, "
               "type), states).\n\nOn a shared network: the least seconds of the medium, with every load within the "
               "limit.");
}

// {cost, choices by link: 1 in fast memory, 2 kept there}
using MemoriesFound = std::tuple<Cost, std::vector<int>>;

std::vector<int> coded(const std::vector<AccessChoice>& choices) {
    std::vector<int> codes;
    for (const auto& choice : choices) codes.push_back((choice.fast ? 1 : 0) | (choice.keep ? 2 : 0));
    return codes;
}

MemoriesFound memories_belady(const MemoriesProblem& problem, const Ints& order) {
    problem.check_order(order);
    Belady quick(problem);
    const Cost cost = quick.run(order, AccessChains::kNever);
    return {cost, coded(quick.choices(AccessChains(problem, order)))};
}

// {value or -1, choices, bound, states}
std::tuple<Cost, std::vector<int>, Cost, std::int64_t> memories_residency(const MemoriesProblem& problem,
                                                                          const Ints& order, Cost incumbent, int width,
                                                                          double seconds, std::int64_t state_limit) {
    problem.check_order(order);
    require(width > 0 && width < 1 << 29, "width: ", width, " is not from 1 to below 2**29");
    require(incumbent >= 0 && incumbent < MemoriesProblem::kMost, "incumbent: ", incumbent,
            " is not from 0 to below 2**48");
    const AccessChains chains(problem, order);
    const ResidencySearch search(chains, incumbent, 300);
    const auto result = search.run(incumbent, width, seconds, state_limit);
    return {result.value, coded(result.choices), result.bound, result.states};
}

std::pair<std::vector<std::pair<Cost, Ints>>, std::int64_t> memories_orders(const MemoriesProblem& problem,
                                                                            std::vector<Ints> groups, Ints order,
                                                                            std::uint64_t seed, int few, double seconds,
                                                                            std::int64_t tries, std::int64_t limit) {
    require(few > 0, "few: ", few, " is not at least 1");
    require_order("order", order, static_cast<int>(groups.size()));
    OrderAnneal search(problem, std::move(groups), seed);
    problem.check_order(search.steps_of(order));
    auto result = search.run(std::move(order), tries, few, seconds, limit);
    return {std::move(result.best), result.tried};
}

// {bound, nodes}
std::pair<Cost, std::int64_t> memories_bound(const MemoriesProblem& problem, Cost incumbent, double seconds,
                                             std::int64_t node_limit) {
    OrderFreeBound search(problem);
    const auto result = search.run(incumbent, seconds, node_limit);
    return {result.bound, result.nodes};
}

// {value or -1, order, bound, finished, states}
std::tuple<Cost, Ints, Cost, bool, std::int64_t> memories_joint(const MemoriesProblem& problem, Cost incumbent,
                                                                double seconds, std::int64_t state_limit) {
    require(incumbent >= 0 && incumbent < MemoriesProblem::kMost, "incumbent: ", incumbent,
            " is not from 0 to below 2**48");
    OrderFreeBound rest(problem);
    JointSearch search(problem, rest, incumbent);
    if (!search.fits()) return {-1, {}, 0, false, 0};
    auto result = search.run(seconds, state_limit);
    return {result.value, std::move(result.order), result.bound, result.finished, result.states};
}

void bind_memories(nb::module_& module) {
    nb::class_<MemoriesProblem>(
        module, "MemoriesProblem",
        "Operators, and storages in fast or slow memory.\n\nBy storage: room, load, store, begin, end. By operator: "
        "(storage, whether it is written,\ncost of a direct access or -1).")
        .def(nb::init<std::vector<Ints>, std::vector<Bytes>, const std::vector<std::vector<Cost>>&,
                      const std::vector<std::vector<std::tuple<int, bool, Cost>>>&, Bytes>(),
             "predecessors"_a, "workspace"_a, "storages"_a, "accesses"_a, "fast_bytes"_a);
    module.def("memories_belady", &memories_belady, "problem"_a, "order"_a, Unlocked(),
               "(Cost, choices by link: 1 in fast memory, 2 kept there).");
    module.def("memories_residency", &memories_residency, "problem"_a, "order"_a, "incumbent"_a, "width"_a,
               "time_limit_s"_a, "state_limit"_a, Unlocked(),
               "(Cost below the incumbent or -1, choices by link, bound, states).");
    module.def("memories_orders", &memories_orders, "problem"_a, "groups"_a, "order"_a, "seed"_a, "few"_a,
               "time_limit_s"_a, "tries"_a, "order_limit"_a, Unlocked(),
               "((Cost, order of groups) of the best few orders, orders tried).\n\nOperators of a group run one "
               "directly after the other.");
    module.def("memories_bound", &memories_bound, "problem"_a, "incumbent"_a, "time_limit_s"_a, "node_limit"_a,
               Unlocked(), "(Cost that no order stays below, nodes).");
    module.def("memories_joint", &memories_joint, "problem"_a, "incumbent"_a, "time_limit_s"_a, "state_limit"_a,
               Unlocked(), "(Cost below the incumbent or -1, order, bound, whether the search ended, states).");
}

}  // namespace
}  // namespace downset

NB_MODULE(_native, module) {
    using downset::Outcome;
    module.doc() = "The searches of downset, compiled.";
    nb::enum_<Outcome>(module, "Outcome", "How a search ended.")
        .value("SOLVED", Outcome::kSolved, "What was asked for is found.")
        .value("IMPOSSIBLE", Outcome::kImpossible, "Proof that there is none.")
        .value("LIMIT", Outcome::kLimit, "A limit came first: nothing is settled.")
        .value("OUT_OF_MEMORY", Outcome::kOutOfMemory, "Likewise, and no time will settle it.");
    module.def(
        "interrupt", [](bool interrupted) { downset::interrupted = interrupted; }, "interrupted"_a,
        "Whether the searches that run, and those to come, end at once as if their time were over.");
    downset::bind_orders(module);
    downset::bind_memory(module);
    downset::bind_memories(module);
    downset::bind_arenas(module);
    downset::bind_stages(module);
    downset::bind_pieces(module);
    downset::bind_partial(module);
    downset::bind_pipelines(module);
    downset::bind_loads(module);
}
