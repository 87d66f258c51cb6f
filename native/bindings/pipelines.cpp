// Pipelines of devices.
#include <array>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/common.hpp"
#include "check.hpp"
#include "outcome.hpp"
#include "pipelines/event_graph.hpp"
#include "pipelines/loads/search.hpp"
#include "pipelines/rounds/search.hpp"
#include "pipelines/whole_layers.hpp"

namespace downset {
namespace {

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

}  // namespace

void bind_pipelines(nb::module_& module) {
    using Table = std::vector<std::vector<double>>;
    nb::class_<PipelineNetwork>(module, "PipelineNetwork", "Seconds a byte and seconds a transfer by pair of devices.")
        .def(nb::init<Table, Table, bool, bool, bool>(), "per_byte_s"_a, "latency_s"_a, nb::kw_only(), "uniform"_a,
             "overlap"_a, "shared"_a);
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

}  // namespace downset
