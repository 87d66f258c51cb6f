// Longest paths in the event graph of a cyclic schedule, or a circle of positive weight that there is none without.
// Specified by its Python twin in downset/pipelines/scheduling/events.py.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "check.hpp"

namespace downset {

// Arc k leads from tails[k] to heads[k].
struct EventArcs {
    std::vector<std::int64_t> tails, heads, frames;
    std::vector<double> weights;
};

class LongestPaths {
public:
    // `distance`: where each node begins; minus infinity: not reached. Gains of `least` or below are rounding.
    LongestPaths(const EventArcs& arcs, std::vector<double> begins, double least)
        : distance(std::move(begins)), arcs_(arcs), parent_(distance.size(), -1) {
        const std::size_t count = arcs.tails.size();
        require_size("heads", arcs.heads.size(), count);
        require_size("frames", arcs.frames.size(), count);
        require_size("weights", arcs.weights.size(), count);
        require_indices("tails", arcs.tails, distance.size());
        require_indices("heads", arcs.heads, distance.size());
        const std::size_t nodes = distance.size();
        for (std::size_t turn = 0; turn <= nodes; ++turn) {
            if (!lengthen(least)) return;
            if ((turn & (turn + 1)) == 0 || turn % 16 == 15 || turn == nodes) find_cycle();
            if (!cycle.empty()) return;
        }
    }

    std::vector<double> distance;
    std::vector<std::int64_t> cycle;  // its arcs in order; of those met first the one of largest gain for a frame

private:
    const EventArcs& arcs_;
    std::vector<std::int64_t> parent_;  // by node: the arc that gave it its distance

    bool lengthen(double least) {
        bool any = false;
        for (std::size_t arc = 0; arc < arcs_.tails.size(); ++arc) {
            const double offered = distance[arcs_.tails[arc]] + arcs_.weights[arc];
            double& here = distance[arcs_.heads[arc]];
            if (offered > here + least) here = offered, parent_[arcs_.heads[arc]] = arc, any = true;
        }
        return any;
    }

    void find_cycle() {
        std::vector<std::int64_t> seen(distance.size(), -1), arcs;
        double most = 0;
        for (std::size_t start = 0; start < distance.size(); ++start) {
            std::int64_t node = static_cast<std::int64_t>(start);
            while (node >= 0 && seen[node] < 0) {
                seen[node] = static_cast<std::int64_t>(start);
                node = parent_[node] < 0 ? -1 : arcs_.tails[parent_[node]];
            }
            if (node < 0 || seen[node] != static_cast<std::int64_t>(start)) continue;
            arcs.clear();
            double gain = 0;
            std::int64_t frames = 0, tail = node;
            do {
                const std::int64_t arc = parent_[tail];
                arcs.push_back(arc), gain += arcs_.weights[arc], frames += arcs_.frames[arc];
                tail = arcs_.tails[arc];
            } while (tail != node);
            const double rate = gain / static_cast<double>(std::max<std::int64_t>(1, frames));
            if (gain > 0 && rate > most) most = rate, cycle.assign(arcs.rbegin(), arcs.rend());
        }
    }
};

}  // namespace downset
