// What a segment in strips costs. Oracles: `memory.liveness` of the rewritten network for bytes, and for the rest
// tests/partial/oracles/price.py, by the program of
// downset/partial/strip_program.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "partial/network.hpp"
#include "partial/rows.hpp"
#include "partial/strip_program.hpp"

namespace downset {

struct StripPrice {
    bool possible = true;
    std::int64_t peak_bytes = 0, apart_bytes = 0, macs = 0, copied_bytes = 0, operators = 0, persistent_bytes = 0;
    std::vector<StripNetwork::Call> unknown{};  // without their scratch it says nothing
};

// The bytes of the pieces of a program, operator by operator.
class StripPricing {
public:
    StripPricing(const StripNetwork& network, const StripSegment& segment, const StripProgram& program)
        : network_(network), segment_(segment), program_(program), pieces_(program.pieces()), runs_(program.runs()),
          root_(pieces_.size()), last_(pieces_.size(), -1), readers_(pieces_.size()), kept_(pieces_.size()) {
        std::iota(root_.begin(), root_.end(), 0);
        for (std::size_t i = 0; i < segment.inputs.size(); ++i) {
            root_[i] = segment.inputs[i].root;
            readers_[i] = segment.inputs[i].reads;
        }
        for (std::size_t step = 0; step < runs_.size(); ++step) {
            const auto& one = runs_[step];
            if (is_view(one)) root_[program.writes(one)[0]] = root_[program.reads(one)[0]];
            for (const auto piece : program.writes(one)) last_[root_[piece]] = step;
            for (const auto piece : program.reads(one)) {
                last_[root_[piece]] = step;
                ++readers_[piece];
            }
        }
        for (std::size_t piece = 0; piece < pieces_.size(); ++piece)
            if (pieces_[piece].kept) kept_[root_[piece]] = true;
    }

    StripPrice price() {
        StripPrice price;
        price.operators = runs_.size();
        auto live = segment_.live_beside;
        for (const auto& input : segment_.inputs) live += input.nbytes;
        for (std::size_t step = 0; step < runs_.size(); ++step) {
            const auto& one = runs_[step];
            std::int64_t written = 0;
            for (const auto piece : program_.writes(one))
                if (root_[piece] == piece) written += pieces_[piece].nbytes;
            live += written;
            price.apart_bytes = std::max(price.apart_bytes, live + one.scratch);
            price.peak_bytes = std::max(price.peak_bytes, live + one.scratch - taken(one, step));
            price.macs += one.macs;
            price.persistent_bytes += one.computes ? one.persistent_bytes : network_.moving_persistent_bytes;
            if (!one.computes) price.copied_bytes += written;
            live -= freed(one, step);
        }
        return price;
    }

private:
    const StripNetwork& network_;
    const StripSegment& segment_;
    const StripProgram& program_;
    const std::vector<StripPiece>& pieces_;
    const std::vector<StripRun>& runs_;
    // By piece: the piece whose bytes it shares, itself where it has its own; how often it is read. By such a root: the
    // last operator that makes or reads one of its pieces, and whether one of them is kept.
    std::vector<std::int64_t> root_, last_, readers_;
    std::vector<bool> kept_;

    // The input of the segment that a piece is; none for others.
    const StripInput* input(std::int64_t piece) const {
        return piece < static_cast<std::int64_t>(segment_.inputs.size()) ? &segment_.inputs[piece] : nullptr;
    }

    // Whether the result is the bytes of what the operator reads first, as `memory.storages` says it.
    bool is_view(const StripRun& one) const {
        const auto from = program_.reads(one)[0], written = program_.writes(one)[0];
        if (!one.view || pieces_[from].exact_bytes != pieces_[written].exact_bytes) return false;
        const bool output = one.makes_output && pieces_[written].kept;
        const auto* read = input(from);
        const bool given = read && read->given;
        return !(output && (network_.rules.outputs_apart || given)) && !(network_.rules.inputs_apart && given);
    }

    bool ends(std::int64_t piece, std::size_t step) const {
        return last_[root_[piece]] == static_cast<std::int64_t>(step) && !kept_[root_[piece]];
    }

    // Whether no operator but one reads the tensor for which the bytes were taken.
    bool root_is_read_once(std::int64_t piece) const {
        const auto* read = input(root_[piece]);
        return (read && !read->spans ? read->spanning_reads : readers_[root_[piece]]) <= 1;
    }

    // How much of its result an operator makes where something that it reads lies.
    std::int64_t taken(const StripRun& one, std::size_t step) const {
        const auto written = program_.writes(one)[0];
        const auto& result = pieces_[written];
        const auto& rules = network_.rules;
        if (root_[written] != written) return 0;
        if (rules.outputs_apart && one.makes_output && result.kept) return 0;
        for (const auto over : program_.over(one)) {
            const auto root = root_[over];
            if ((input(root) && input(root)->given) || kept_[root] || pieces_[root].nbytes != result.nbytes ||
                pieces_[over].exact_bytes != result.exact_bytes || (rules.only_reader && readers_[over] > 1))
                continue;
            if (ends(over, step) && !(rules.only_reader && !root_is_read_once(over))) return result.nbytes;
            if (rules.only_reader) break;  // the runtime looks at no further input
        }
        if (one.lagged < 0 || !ends(one.lagged, step)) return 0;
        if (input(one.lagged) && !input(one.lagged)->alone) return 0;
        const auto lag = network_.aligned_bytes(8 * one.lag);
        return std::max<std::int64_t>(std::min(pieces_[one.lagged].nbytes, result.nbytes - lag), 0);
    }

    std::int64_t freed(const StripRun& one, std::size_t step) {
        std::int64_t nbytes = 0;
        for (const auto list : {program_.reads(one), program_.writes(one)})
            for (const auto piece : list)
                if (ends(piece, step)) {
                    nbytes += pieces_[root_[piece]].nbytes;
                    last_[root_[piece]] = -1;  // once
                }
        return nbytes;
    }
};

inline StripPrice price_strips(const StripNetwork& network, const StripSegment& segment, std::int64_t strips,
                               const std::vector<std::int64_t>& recomputed, bool even) {
    require(strips >= 1 && strips <= (std::int64_t{1} << 20), "strips: ", strips, " is not a number of strips");
    std::vector<bool> again(segment.ops.size(), false);
    for (const auto operator_index : recomputed)
        if (operator_index >= segment.first && operator_index < segment.stop)
            again[operator_index - segment.first] = true;
    for (std::size_t index = 0; index < segment.ops.size(); ++index)
        for (const auto tensor : segment.ops[index].outputs)
            if (std::find(segment.results.begin(), segment.results.end(), tensor) != segment.results.end())
                again[index] = false;
    const StripRows rows(segment, strips, again, even);
    const StripProgram program(network, segment, rows, again);
    if (!program.possible()) return {false};
    auto price = StripPricing(network, segment, program).price();
    price.unknown = program.unknown();
    return price;
}

}  // namespace downset
