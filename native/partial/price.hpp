// What a segment in strips costs. Oracle: tests/partial/oracles/price.py, by the program of
// downset/partial/strip_program.py.
#pragma once

#include <algorithm>
#include <cstdint>
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
        : network_(network), segment_(segment), pieces_(program.pieces()), runs_(program.runs()),
          last_(pieces_.size(), -1), readers_(pieces_.size()) {
        for (std::size_t step = 0; step < runs_.size(); ++step) {
            for (const auto piece : runs_[step].writes) last_[piece] = step;
            for (const auto piece : runs_[step].reads) {
                last_[piece] = step;
                ++readers_[piece];
            }
        }
    }

    StripPrice price() {
        StripPrice price;
        price.operators = runs_.size();
        auto live = segment_.live_beside;
        for (const auto nbytes : segment_.input_bytes) live += nbytes;
        for (std::size_t step = 0; step < runs_.size(); ++step) {
            const auto& one = runs_[step];
            std::int64_t written = 0;
            for (const auto piece : one.writes) written += pieces_[piece].nbytes;
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
    const std::vector<StripPiece>& pieces_;
    const std::vector<StripRun>& runs_;
    std::vector<std::int64_t> last_,
        readers_;  // by piece: the last operator that makes or reads it, how often it is read

    bool ends(std::int64_t piece, std::size_t step) const {
        return last_[piece] == static_cast<std::int64_t>(step) && !pieces_[piece].kept;
    }

    // How much of its result an operator makes where something that it reads lies.
    std::int64_t taken(const StripRun& one, std::size_t step) const {
        const auto& result = pieces_[one.writes[0]];
        const auto inputs = static_cast<std::int64_t>(segment_.inputs.size());
        if (one.apart && result.kept) return 0;
        for (const auto over : one.over)
            if (ends(over, step) && !(over < inputs && segment_.inputs_apart[over]) &&
                pieces_[over].nbytes == result.nbytes && !(network_.only_reader && readers_[over] > 1))
                return result.nbytes;
        if (one.lagged < 0 || !ends(one.lagged, step)) return 0;
        if (one.lagged < inputs && !segment_.inputs_alone[one.lagged]) return 0;
        const auto lag = network_.aligned_bytes(8 * one.lag);
        return std::max<std::int64_t>(std::min(pieces_[one.lagged].nbytes, result.nbytes - lag), 0);
    }

    std::int64_t freed(const StripRun& one, std::size_t step) {
        std::int64_t nbytes = 0;
        for (const auto* list : {&one.reads, &one.writes})
            for (const auto piece : *list)
                if (ends(piece, step)) {
                    nbytes += pieces_[piece].nbytes;
                    last_[piece] = -1;  // once
                }
        return nbytes;
    }
};

inline StripPrice price_strips(const StripNetwork& network, const StripSegment& segment, std::int64_t strips,
                               const std::vector<std::int64_t>& recomputed, bool even) {
    require(strips >= 1 && strips <= (std::int64_t{1} << 20), "strips: ", strips, " is not a number of strips");
    std::vector<bool> again(segment.stop - segment.first, false);
    for (const auto operator_index : recomputed)
        if (operator_index >= segment.first && operator_index < segment.stop)
            again[operator_index - segment.first] = true;
    for (const auto tensor : segment.results)
        for (auto operator_index = segment.first; operator_index < segment.stop; ++operator_index) {
            const auto& outputs = network.form.ops[operator_index].outputs;
            if (std::find(outputs.begin(), outputs.end(), tensor) != outputs.end())
                again[operator_index - segment.first] = false;
        }
    const StripRows rows(network, segment, strips, again, even);
    const StripProgram program(network, segment, rows, again);
    if (!program.possible()) return {false};
    auto price = StripPricing(network, segment, program).price();
    price.unknown = program.unknown();
    return price;
}

}  // namespace downset
