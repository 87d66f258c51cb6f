// Parts of a graph of arcs between two nodes, that do not lie on every way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "orders/arcs.hpp"

namespace downset {

// The arcs between two nodes: every way to one of them passes `from`, and every way from one of them passes `to`.
struct Region {
    int from, to;
    Ints arcs;
};

// Regions that hold no others and whose ends do not lie on every way from the source to the sink, of at most
// `segment_limit` segments. By dominators (Cooper, Harvey and Kennedy, 2001); none where finding these takes too long.
class Regions {
public:
    explicit Regions(const ArcGraph& graph) : graph_(graph), in_(graph.nodes()), out_(graph.nodes()) {
        for (std::size_t arc = 0; arc < graph.arcs().size(); ++arc)
            if (const auto& it = graph.arcs()[arc]; it.from >= 0) {
                out_[it.from].push_back(static_cast<int>(arc));
                in_[it.to].push_back(static_cast<int>(arc));
            }
        sort_nodes();
    }

    std::vector<Region> find(int segment_limit) {
        std::vector<Region> regions;
        const auto before = dominators(true), after = dominators(false);
        if (before.empty() || after.empty()) return regions;
        std::vector<bool> always(graph_.nodes(), false), taken(graph_.nodes(), false);
        for (int node = graph_.sink(); node >= 0; node = before[node]) always[node] = true;
        for (auto turn = order_.rbegin(); turn != order_.rend(); ++turn) {  // inner regions start later
            const int from = *turn, to = after[from];
            if (to < 0 || always[from] || before[to] != from || out_[from].size() < 2) continue;
            if (auto region = between(from, to, segment_limit, taken)) regions.push_back(std::move(*region));
        }
        return regions;
    }

private:
    const ArcGraph& graph_;
    std::vector<Ints> in_, out_;
    Ints order_, place_;  // nodes in a topological order, and by node its place there

    void sort_nodes() {
        Ints waits(graph_.nodes(), 0);
        for (int node = 0; node < graph_.nodes(); ++node) waits[node] = static_cast<int>(in_[node].size());
        place_.assign(graph_.nodes(), -1);
        order_.assign(1, graph_.source());
        for (std::size_t turn = 0; turn < order_.size(); ++turn) {
            place_[order_[turn]] = static_cast<int>(turn);
            for (const int arc : out_[order_[turn]])
                if (--waits[graph_.arcs()[arc].to] == 0) order_.push_back(graph_.arcs()[arc].to);
        }
    }
    // By node: the last other node on every way from the source to it, or with `forward` false the first one on every
    // way from it to the sink; -1: none. Empty where it takes too many steps.
    Ints dominators(bool forward) const {
        Ints nearest(graph_.nodes(), -1);
        std::int64_t steps = 64 * static_cast<std::int64_t>(order_.size()) + (1 << 20);
        const auto sooner = [&](int one, int other) {
            return forward ? place_[one] < place_[other] : place_[one] > place_[other];
        };
        for (std::size_t turn = 1; turn < order_.size(); ++turn) {
            const int node = order_[forward ? turn : order_.size() - 1 - turn];
            int common = -1;
            for (const int arc : forward ? in_[node] : out_[node]) {
                int other = forward ? graph_.arcs()[arc].from : graph_.arcs()[arc].to;
                if (common < 0) common = other;
                while (common != other) {
                    if (--steps < 0) return {};
                    int& later = sooner(common, other) ? other : common;
                    later = nearest[later];
                }
            }
            nearest[node] = common;
        }
        return nearest;
    }
    std::optional<Region> between(int from, int to, int segment_limit, std::vector<bool>& taken) const {
        Region region{from, to, {}};
        Ints waiting{from}, inside;
        int segments = 0;
        while (!waiting.empty()) {
            const int node = waiting.back();
            waiting.pop_back();
            for (const int arc : out_[node]) {
                const int next = graph_.arcs()[arc].to;
                region.arcs.push_back(arc);
                segments += static_cast<int>(graph_.arcs()[arc].chain.size());
                if (segments > segment_limit || taken[next == to ? from : next]) return {};
                if (next != to && std::find(inside.begin(), inside.end(), next) == inside.end()) {
                    inside.push_back(next);
                    waiting.push_back(next);
                }
            }
        }
        taken[from] = true;
        for (const int node : inside) taken[node] = true;
        return region;
    }
};

}  // namespace downset
