// How many pieces apart vertices can still lie: what the diameter and the chain constraint say together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pieces/network.hpp"

namespace downset {

class PieceLevels {
public:
    using Level = std::int16_t;
    static constexpr Level kFar = 8000, kLow = -8000;

    // By vertex: levels counted from the piece that is being made, as far as they are bounded.
    struct Range {
        std::vector<Level> low, high;
    };

    bool prepared() const { return !most_.empty(); }

    // Nothing decided; what is left lies at 0 or behind.
    Range open(const PieceSet& left) const {
        const auto n = static_cast<std::size_t>(count_);
        Range range{std::vector<Level>(n, kLow), std::vector<Level>(n, kFar)};
        left.each([&](int v) { range.low[v] = 0; });
        return range;
    }

    // Vertex v is in the piece (level 0), or (in = false) in a later one. False: some vertex has no level left.
    bool decide(Range& range, int v, bool in) const {
        const Level* up = &most_[static_cast<std::size_t>(v) * count_];
        const Level* down = &most_by_[static_cast<std::size_t>(v) * count_];
        Level* low = range.low.data();
        Level* high = range.high.data();
        const Level level = in ? 0 : 1;
        Level worst = 0;
        for (int u = 0; u < count_; ++u) {
            low[u] = std::max<Level>(low[u], level - up[u]);
            if (in) high[u] = std::min(high[u], down[u]);
            worst = std::max<Level>(worst, low[u] - high[u]);
        }
        return worst <= 0;
    }

    // most_[u · V + v]: the most by which u's level (counted from the end) can exceed v's: an edge spans one level at
    // most, none against its direction, and a path of more layers than the diameter at least one. Shortest paths.
    // False: no chain of pieces is possible at all.
    bool prepare(const PieceNetwork& net) {
        count_ = net.count;
        const auto n = static_cast<std::size_t>(count_);
        most_.assign(n * n, kFar);
        std::vector<int> longest(n);
        for (int u = 0; u < count_; ++u) {
            most_[u * n + u] = 0;
            std::fill(longest.begin(), longest.end(), -1);
            longest[u] = net.layers[u];
            for (int v = u; v < count_; ++v) {
                if (v > u) {
                    net.predecessors[v].each([&](int before) {
                        if (longest[before] >= 0) longest[v] = std::max(longest[v], longest[before] + net.layers[v]);
                    });
                }
                if (v > u && longest[v] >= 0) {
                    const int least = longest[v] > net.diameter ? (longest[v] - 1) / net.diameter : 0;
                    most_[v * n + u] = static_cast<Level>(std::max<int>(kLow, -least));
                }
            }
            net.successors[u].each([&](int v) { most_[u * n + v] = 1; });
        }
        for (std::size_t k = 0; k < n; ++k)
            for (std::size_t u = 0; u < n; ++u) {
                const Level through = most_[u * n + k];
                if (through >= kFar) continue;
                for (std::size_t v = 0; v < n; ++v)
                    // Around a cycle of less than nothing they would fall for ever.
                    most_[u * n + v] = std::max(kLow, std::min<Level>(most_[u * n + v], through + most_[k * n + v]));
            }
        most_by_.resize(n * n);
        for (std::size_t u = 0; u < n; ++u) {
            if (most_[u * n + u] < 0) return false;
            for (std::size_t v = 0; v < n; ++v) most_by_[v * n + u] = most_[u * n + v];
        }
        return true;
    }

private:
    int count_ = 0;
    std::vector<Level> most_, most_by_;
};

}  // namespace downset
