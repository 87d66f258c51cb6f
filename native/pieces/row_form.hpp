// A network as integers along its rows, and the rows that a segment touches. The twin of
// downset/graph/row_form.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "check.hpp"

namespace downset {

struct Rows {
    std::int64_t start = 0, stop = 0;
    bool empty() const { return start >= stop; }
    std::int64_t size() const { return empty() ? 0 : stop - start; }
    void cover(Rows other) {
        if (other.empty()) return;
        if (empty()) {
            *this = other;
        } else {
            start = std::min(start, other.start);
            stop = std::max(stop, other.stop);
        }
    }
};

inline std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    const auto q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

struct RowInput {
    std::int64_t tensor, scale, per, low, high;  // per 0: read whole
    Rows read(Rows result_rows, std::int64_t rows) const {
        if (per == 0) return {0, rows};
        auto start = floor_div(scale * result_rows.start + low, per);
        auto stop = floor_div(scale * (result_rows.stop - 1) + high, per) + 1;
        start = std::min(std::max<std::int64_t>(start, 0), rows - 1);
        return {start, std::max(std::min(stop, rows), start + 1)};
    }
};

struct RowOp {
    std::vector<RowInput> inputs;
    std::vector<std::int64_t> outputs;
    std::int64_t rows, macs_per_row;
    bool whole;
};

// inputs: five integers for each, as in RowInput; numbers: rows, MACs a row, whole.
struct RowForm {
    using Lists = std::vector<std::vector<std::int64_t>>;
    std::vector<RowOp> ops;
    std::vector<std::int64_t> rows, outputs;  // by tensor; tensors that leave the network

    RowForm(const Lists& op_inputs, const Lists& op_outputs, const Lists& numbers,
            std::vector<std::int64_t> tensor_rows, std::vector<std::int64_t> network_outputs)
        : rows(std::move(tensor_rows)), outputs(std::move(network_outputs)) {
        require_size("outputs of operators", op_outputs.size(), op_inputs.size());
        require_size("numbers of operators", numbers.size(), op_inputs.size());
        require_range("rows", rows, 0, kMost);
        require_indices("outputs", outputs, rows.size());
        for (std::size_t i = 0; i < op_inputs.size(); ++i) {
            require_size("numbers of an operator", numbers[i].size(), 3);
            require_range("numbers of an operator", {numbers[i][0]}, 0, kMost);
            require_at_least<std::int64_t>("numbers of an operator", numbers[i], 0);
            require_indices("outputs of an operator", op_outputs[i], rows.size());
            RowOp op{{}, op_outputs[i], numbers[i][0], numbers[i][1], numbers[i][2] != 0};
            require(op_inputs[i].size() % 5 == 0, "inputs of an operator: they are not five numbers each");
            for (std::size_t k = 0; k < op_inputs[i].size(); k += 5) {
                const RowInput input{op_inputs[i][k], op_inputs[i][k + 1], op_inputs[i][k + 2], op_inputs[i][k + 3],
                                     op_inputs[i][k + 4]};
                require_indices("inputs of an operator", std::vector{input.tensor}, rows.size());
                require_range("map of an input", {input.scale, input.per}, 0, kMost);
                require(input.per == 0 || input.scale > 0, "map of an input: it does not go on");
                require_range("map of an input", {input.low, input.high}, -kMost, kMost);
                op.inputs.push_back(input);
            }
            ops.push_back(std::move(op));
        }
    }

private:
    static constexpr std::int64_t kMost = std::int64_t{1} << 30;  // products of two stay far below 2^63

    static void require_range(const char* list, const std::vector<std::int64_t>& values, std::int64_t least,
                              std::int64_t most) {
        for (const std::int64_t value : values)
            require(least <= value && value <= most, list, ": ", value, " is out of range");
    }
};

}  // namespace downset
