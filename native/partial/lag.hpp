// How far below its input the result of a window in strips has to begin: the twin of `lag_bytes` in
// downset/memory/overlaps.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "partial/network.hpp"

namespace downset {

// Rows of padding above and below a strip.
struct Sides {
    std::int64_t top = 0, bottom = 0;
};

class Lags {
public:
    // The lag of one strip in bytes, or -1 where no overlap is allowed. A padded strip holds its padding.
    std::int64_t of(const StripOp& op, std::int64_t made_from, std::int64_t read_rows, std::int64_t made_rows,
                    Sides sides, bool padded) {
        const auto& walk = op.walk;
        if (walk.order == StripWalk::Order::none) return -1;
        const auto top = padded ? 0 : sides.top;
        const auto rows = read_rows + (padded ? sides.top + sides.bottom : 0);
        if (rows < walk.least_rows) return -1;
        const std::array<std::int64_t, 5> key{made_from, rows, made_rows, top, padded};
        for (const auto& [other, lag] : known_)
            if (other == key) return lag;
        const auto columns = walk.read_columns + (padded ? op.left + op.right : 0);
        const auto lag = least(op, rows, columns, made_rows, top, padded ? 0 : walk.left);
        known_.push_back({key, lag});
        return lag;
    }

private:
    struct Known {
        std::array<std::int64_t, 5> key;
        std::int64_t lag;
    };
    std::vector<Known> known_;  // few strips differ
    std::vector<std::int64_t> lowest_, ahead_;

    // By row (or column) of the result, the first one of the input that it reads, or -1.
    static std::int64_t first(std::int64_t place, std::int64_t size, std::int64_t stride, std::int64_t dilation,
                              std::int64_t kernel, std::int64_t pad) {
        const auto begin = place * stride - pad;
        const auto inside = begin < 0 ? begin + (-begin + dilation - 1) / dilation * dilation : begin;
        return inside < std::min(size, begin + kernel * dilation) ? inside : -1;
    }

    std::int64_t least(const StripOp& op, std::int64_t rows, std::int64_t columns, std::int64_t made_rows,
                       std::int64_t top, std::int64_t left) {
        const auto& walk = op.walk;
        const auto count = walk.batches * made_rows * walk.made_columns;
        constexpr std::int64_t kNothing = std::numeric_limits<std::int32_t>::max();
        lowest_.clear();
        for (std::int64_t batch = 0; batch < walk.batches; ++batch)
            for (std::int64_t row = 0; row < made_rows; ++row) {
                const auto from = first(row, rows, op.stride, walk.row_dilation, walk.kernel_rows, top);
                for (std::int64_t column = 0; column < walk.made_columns; ++column) {
                    const auto beside =
                        first(column, columns, walk.column_stride, walk.column_dilation, walk.kernel_columns, left);
                    const auto image = from < 0 || beside < 0 ? kNothing : from * columns + beside;
                    lowest_.push_back(batch * rows * columns + image);
                }
            }
        const auto depth = walk.depth, channels = walk.channels;
        std::int64_t most = 0;
        if (walk.order == StripWalk::Order::four_pixels) {
            const auto whole = count / 4 * 4;
            for (std::int64_t written = 0; written < count;) {
                const auto size = written < whole ? 4 : 1;
                most = std::max(most, (written + size) * (channels - depth));
                if (channels > 1) most = std::max(most, (written + size) * channels - 1 - written * depth);
                written += size;
            }
            return walk.unit * most;
        }
        ahead_ = lowest_;
        for (auto place = count - 1; place > 0; --place) ahead_[place - 1] = std::min(ahead_[place - 1], ahead_[place]);
        // What all later positions read must lie above all that is written by then.
        for (std::int64_t place = 0; place + 1 < count; ++place)
            most = std::max(most, (place + 1) * channels - ahead_[place + 1] * depth);
        std::int64_t in_position = 0;
        if (walk.order == StripWalk::Order::channel)
            for (std::int64_t written = 1; written < channels; ++written)
                in_position = std::max(in_position, written - written / (channels / depth));
        for (std::int64_t place = 0; place < count; ++place) {
            if (walk.order == StripWalk::Order::written_first)
                most = std::max(most, (place + 1) * channels - lowest_[place] * depth);
            else if (channels > 1 && walk.order == StripWalk::Order::pixel)
                most = std::max(most, (place + 1) * channels - 1 - lowest_[place] * depth);
            else if (channels > 1)
                most = std::max(most, place * channels + in_position - lowest_[place] * depth);
        }
        return walk.unit * most;
    }
};

}  // namespace downset
