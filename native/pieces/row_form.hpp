// A network as integers along its rows, and the rows that a segment touches. The twin of downset.rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

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
    Rows read(Rows made, std::int64_t rows) const {
        if (per == 0) return {0, rows};
        auto start = floor_div(scale * made.start + low, per);
        auto stop = floor_div(scale * (made.stop - 1) + high, per) + 1;
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
    std::vector<std::int64_t> rows;

    RowForm(const Lists& inputs, const Lists& outputs, const Lists& numbers, std::vector<std::int64_t> tensor_rows)
        : rows(std::move(tensor_rows)) {
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            RowOp op{{}, outputs[i], numbers[i][0], numbers[i][1], numbers[i][2] != 0};
            for (std::size_t k = 0; k + 4 < inputs[i].size(); k += 5)
                op.inputs.push_back(
                    {inputs[i][k], inputs[i][k + 1], inputs[i][k + 2], inputs[i][k + 3], inputs[i][k + 4]});
            ops.push_back(std::move(op));
        }
    }
};

}  // namespace downset
