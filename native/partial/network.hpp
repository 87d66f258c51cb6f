// What pricing segments in strips asks of a network, in addition to its row form. Made by
// downset/partial/native_form.py.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "check.hpp"
#include "pieces/row_form.hpp"

namespace downset {

// How the kernel of a window goes through its result, as `memory.overlaps` says it; `none`: no overlap.
struct StripWalk {
    enum class Order { none, pixel, channel, four_pixels, written_first };
    Order order = Order::none;
    std::int64_t unit, batches, kernel_rows, row_dilation;  // unit: bytes of an element
    std::int64_t read_columns, made_columns, kernel_columns, column_stride, column_dilation, left, depth, channels;
    std::int64_t least_rows;  // with fewer rows of the input another kernel runs
};

// How an operator is computed for some rows, as `rewrites.strips.given_rows` says it.
struct StripOp {
    enum class Given { exact, window, transposed, factor, pad };
    Given given = Given::exact;
    std::int64_t stride, reach, begin, end, factor;
    bool adds;                // more rows than wanted cannot be made
    std::int64_t first_read;  // the position of the first input among those with rows, or -1
    // Pads that the file cannot state are an operator of their own: bits of a padded row (0: never), columns' pads.
    std::int64_t padded_row_bits, left, right;
    bool same_columns;
    bool makes_output;                      // of the graph
    std::int64_t persistent_bytes;          // what the runtime keeps for each copy of it
    bool cut_off;                           // where a strip's pads are not SAME's, rows of SAME are cut off: no Pad
    bool view;                              // its result is the bytes of its first input, if both are as many
    std::vector<std::int64_t> overwritten;  // positions of inputs that it may make its result in
    StripWalk walk{};
};

// What the memory model allows, as `memory.models` says it.
struct StripRules {
    bool only_reader, outputs_apart, inputs_apart, counts_scratch;
};

struct StripNetwork {
    using Lists = std::vector<std::vector<std::int64_t>>;
    RowForm form;
    std::vector<StripOp> ops;
    std::vector<std::int64_t> row_bits;
    std::int64_t alignment, moving_persistent_bytes;  // of a slice, a join or a pad
    StripRules rules;
    // An operator on rows: its index, rows made, pads above and below, whether it reads a padded copy, rows of inputs.
    using Call = std::vector<std::int64_t>;
    std::map<Call, std::int64_t> scratch;  // bytes that its kernel asks for while it runs, where they are known

    StripNetwork(RowForm network, const Lists& numbers, const Lists& overwritten, const Lists& walks,
                 std::vector<std::int64_t> bits, std::int64_t align, std::int64_t moving_persistent,
                 StripRules memory_rules)
        : form(std::move(network)), row_bits(std::move(bits)), alignment(align),
          moving_persistent_bytes(moving_persistent), rules(memory_rules) {
        require_size("numbers of operators", numbers.size(), form.ops.size());
        require_size("overwritten inputs", overwritten.size(), form.ops.size());
        require_size("walks", walks.size(), form.ops.size());
        require_size("bits of rows", row_bits.size(), form.rows.size());
        require_at_least<std::int64_t>("bits of rows", row_bits, 0);
        require(alignment >= 1, "alignment: ", alignment, " is not at least 1");
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            const auto& n = numbers[i];
            require_size("numbers of an operator", n.size(), 16);
            require(n[0] >= 0 && n[0] <= 4, "numbers of an operator: ", n[0], " is not a way to make rows");
            const auto reads = static_cast<std::int64_t>(form.ops[i].inputs.size());
            require(n[1] >= 1 && n[2] >= 1, "numbers of an operator: a window without a stride or a reach");
            require(n[7] >= -1 && n[7] < reads, "numbers of an operator: input ", n[7], " does not exist");
            require_indices("overwritten inputs", overwritten[i], form.ops[i].inputs.size());
            ops.push_back({static_cast<StripOp::Given>(n[0]), n[1], n[2], n[3], n[4], n[5], n[6] != 0, n[7], n[8], n[9],
                           n[10], n[11] != 0, n[12] != 0, n[13], n[14] != 0, n[15] != 0, overwritten[i],
                           walk(walks[i], ops.size())});
            require(!ops.back().view || (n[7] >= 0 && form.ops[i].outputs.size() == 1),
                    "view: an operator without a first input, or with other results");
            require(!ops.back().cut_off || form.ops[i].outputs.size() == 1, "cut off: an operator with other results");
        }
    }

    void set_scratch(Call call, std::int64_t nbytes) {
        require(nbytes >= 0, "scratch: ", nbytes, " is not a number of bytes");
        scratch.insert_or_assign(std::move(call), nbytes);
    }

    StripWalk walk(const std::vector<std::int64_t>& n, std::size_t operator_index) const {
        if (n.empty()) return {};
        require_size("numbers of a walk", n.size(), 14);
        require(n[0] >= 1 && n[0] <= 4, "numbers of a walk: ", n[0], " is not an order of a walk");
        for (std::size_t i = 1; i < n.size(); ++i)
            require(n[i] >= (i == 10 ? 0 : 1), "numbers of a walk: ", n[i], " at ", i, " is too small");
        require(n[0] != 2 || n[12] >= n[11], "numbers of a walk: fewer channels than are read");
        require(form.ops[operator_index].inputs.size() >= 1 && form.ops[operator_index].outputs.size() == 1,
                "walk: of no window");
        return {static_cast<StripWalk::Order>(n[0]),
                n[1],
                n[2],
                n[3],
                n[4],
                n[5],
                n[6],
                n[7],
                n[8],
                n[9],
                n[10],
                n[11],
                n[12],
                n[13]};
    }

    std::int64_t aligned_bytes(std::int64_t bits) const {
        return ((bits + 7) / 8 + alignment - 1) / alignment * alignment;
    }
};

// A tensor that a segment reads.
struct StripInput {
    std::int64_t tensor, nbytes;
    std::int64_t root;   // the input whose bytes it shares, or itself
    std::int64_t reads;  // by operators outside the segment
    // The tensor for which its bytes were taken: whether it is that one; else how often operators read that.
    bool spans;
    std::int64_t spanning_reads;
    bool given, kept, alone;  // given: an input of the graph; alone: no other tensor lies there
};

// A segment, and what is live around it. Its tensors are numbered from 0, its inputs first: what a price takes depends
// on the segment and not on the network.
struct StripSegment {
    std::int64_t first, stop;
    std::vector<StripInput> inputs;
    std::vector<std::int64_t> results;
    std::vector<bool> results_counted;
    std::int64_t live_beside;
    std::vector<RowOp> ops{};
    std::vector<std::int64_t> rows{}, row_bits{};  // by tensor

    // `inputs` and `results` by the numbers that tensors have in the network.
    StripSegment(const StripNetwork& network, std::int64_t from, std::int64_t to, std::vector<StripInput> read,
                 std::vector<std::int64_t> outputs, std::vector<bool> counted, std::int64_t beside)
        : first(from), stop(to), inputs(std::move(read)), results(std::move(outputs)),
          results_counted(std::move(counted)), live_beside(beside) {
        const auto count = static_cast<std::int64_t>(network.ops.size());
        require(0 <= first && first < stop && stop <= count, "segment: ", first, " to ", stop, " does not exist");
        require_indices("results of a segment", results, network.row_bits.size());
        require_size("results that count", results_counted.size(), results.size());
        require(!results.empty(), "segment: it has no results");
        std::unordered_map<std::int64_t, std::int64_t> numbers;
        const auto number = [&](std::int64_t tensor) {
            const auto [place, added] = numbers.try_emplace(tensor, static_cast<std::int64_t>(rows.size()));
            if (added) {
                rows.push_back(network.form.rows[tensor]);
                row_bits.push_back(network.row_bits[tensor]);
            }
            return place->second;
        };
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            auto& input = inputs[i];
            require(input.tensor >= 0 && input.tensor < static_cast<std::int64_t>(network.row_bits.size()),
                    "inputs of a segment: ", input.tensor, " does not exist");
            require(input.root >= 0 && input.root < static_cast<std::int64_t>(inputs.size()) &&
                        inputs[input.root].root == input.root,
                    "inputs of a segment: ", i, " lies in ", input.root, ", which has no bytes of its own");
            input.tensor = number(input.tensor);
        }
        for (auto operator_index = first; operator_index < stop; ++operator_index) {
            ops.push_back(network.form.ops[operator_index]);
            for (auto& input : ops.back().inputs) {
                require(numbers.count(input.tensor) != 0, "segment: operator ", operator_index,
                        " reads what is not there");
                input.tensor = number(input.tensor);
            }
            for (auto& tensor : ops.back().outputs) tensor = number(tensor);
        }
        for (auto& tensor : results) {
            require(numbers.count(tensor) != 0, "segment: result ", tensor, " is made by nobody");
            tensor = number(tensor);
        }
    }
};

}  // namespace downset
