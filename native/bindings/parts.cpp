// Parts of a network: stages on one device, pieces, and segments in strips.
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/common.hpp"
#include "check.hpp"
#include "outcome.hpp"
#include "partial/price.hpp"
#include "pieces/search.hpp"
#include "stages/lattice.hpp"

namespace downset {
namespace {

// {outcome, a cost that has to be allowed}
std::pair<Outcome, std::int64_t> pieces_within(PieceSearch& search, std::int64_t threshold, double seconds) {
    const Outcome outcome = search.within(threshold, seconds);
    return {outcome, search.next()};
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

}  // namespace

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

}  // namespace downset
