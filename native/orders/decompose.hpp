// Takes an order problem apart where that loses nothing: operators that may run in one fixed sequence become one
// segment, and what is left is a smaller problem with the same least peak.
//
// An operator is *fixed* where the bytes that it allocates, takes over and frees are the same in every order. A chain
// of fixed operators falls apart into segments, each with a hill (the most it holds above its start) and a drop (what
// it leaves). Stopping between two segments is of use only at a valley: `joins` states when it is not. Two chains of
// fixed operators between the same two points merge into one (Abdel-Wahab and Kameda, 1978, for series-parallel
// precedences; Liu, 1987, for trees). All of this holds whatever else runs in between, since nothing else changes what
// a fixed operator takes. A reader of a storage that several operators may be the last to read is not fixed: it stays a
// step of its own, in its place in the chain. A part between two points that is neither is searched for its chain of
// valleys (valleys.hpp), if nothing that several operators may free crosses its border.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "orders/arcs.hpp"
#include "orders/fixed_costs.hpp"
#include "orders/problem.hpp"
#include "orders/regions.hpp"
#include "orders/segments.hpp"
#include "orders/valleys.hpp"

namespace downset {

class Decomposition {
public:
    // `relaxed`: the first maker and the last reader of a storage in the given order are taken for those of every
    // order. What comes out is only a guess.
    Decomposition(const OrderProblem& problem, bool relaxed)
        : problem_(problem), fixed_(problem, relaxed), links_(problem.count), graph_(problem, fixed_, links_),
          problems_(problem, fixed_, links_) {
        while (search_regions()) graph_.reduce();
        for (const auto& arc : graph_.arcs())
            if (arc.from >= 0) segments_.insert(segments_.end(), arc.chain.begin(), arc.chain.end());
        predecessors_ = sort(segments_, graph_.arcs());
    }

    // The problem whose operators are the segments.
    OrderProblem reduced() { return *problems_.of(segments_, predecessors_); }

    // By segment: its operators as they run.
    std::vector<Ints> members() const {
        std::vector<Ints> members;
        for (const Segment& segment : segments_) members.push_back(links_.operators(segment));
        return members;
    }
    // Whether every operator was taken for fixed.
    bool all_fixed() const {
        return std::all_of(fixed_.costs.begin(), fixed_.costs.end(), [](const auto& cost) { return cost.fixed; });
    }

private:
    static constexpr int kRegionSegments = 64;
    static constexpr std::int64_t kRegionStates = 1 << 14, kStates = 1 << 19;
    const OrderProblem& problem_;
    const FixedCosts fixed_;
    Links links_;
    ArcGraph graph_;
    SegmentProblems problems_;
    Chain segments_;  // in a topological order
    std::vector<Ints> predecessors_;
    std::set<std::pair<int, int>> tried_;
    std::int64_t states_ = kStates;

    // Puts chains in the place of the innermost parts; false where there are none left to try.
    bool search_regions() {
        bool replaced = false;
        for (const Region& region : Regions(graph_).find(kRegionSegments)) {
            if (states_ <= 0 || !tried_.emplace(region.from, region.to).second) continue;
            Chain chain, inside;
            std::vector<ArcGraph::Arc> arcs;
            for (const int arc : region.arcs) {
                arcs.push_back(graph_.arcs()[arc]);
                inside.insert(inside.end(), arcs.back().chain.begin(), arcs.back().chain.end());
            }
            auto before = sort(inside, arcs);
            const auto part = problems_.of(inside, std::move(before));
            if (!part) continue;
            Valleys valleys(*part, std::min(states_, kRegionStates));
            const auto stretches = valleys.chain();
            states_ -= valleys.expanded();
            if (!stretches) continue;
            for (const Stretch& stretch : *stretches) {
                Ints operators;
                for (const int step : stretch.steps) {
                    const Ints more = links_.operators(inside[step]);
                    operators.insert(operators.end(), more.begin(), more.end());
                }
                links_.append(chain, links_.segment(stretch.hill, stretch.drop, operators));
            }
            graph_.replace(region.arcs, region.from, region.to, std::move(chain));
            replaced = true;
        }
        return replaced;
    }

    // Sorts the segments of arcs topologically, the one whose first operator comes first where several may follow, and
    // gives the predecessors of each, as far as they are among them.
    std::vector<Ints> sort(Chain& segments, const std::vector<ArcGraph::Arc>& arcs) const {
        const int count = static_cast<int>(segments.size());
        std::unordered_map<int, int> part_of;
        for (int part = 0; part < count; ++part)
            for (const int v : links_.operators(segments[part])) part_of[v] = part;
        std::vector<Ints> before(count), after(count);
        int part = 0;
        for (const auto& arc : arcs)
            for (std::size_t place = 0; arc.from >= 0 && place < arc.chain.size(); ++place, ++part)
                if (place) before[part].push_back(part - 1);
        for (const auto& [v, own] : part_of)
            for (const int u : problem_.lists.predecessors[v])
                if (const auto other = part_of.find(u); other != part_of.end() && other->second != own)
                    before[own].push_back(other->second);
        Ints waits(count, 0), rank(count, -1);
        for (int it = 0; it < count; ++it) {
            std::sort(before[it].begin(), before[it].end());
            before[it].erase(std::unique(before[it].begin(), before[it].end()), before[it].end());
            waits[it] = static_cast<int>(before[it].size());
            for (const int earlier : before[it]) after[earlier].push_back(it);
        }
        using Turn = std::pair<int, int>;  // first operator, segment
        std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
        for (int it = 0; it < count; ++it)
            if (!waits[it]) turns.emplace(segments[it].head, it);
        Chain sorted;
        std::vector<Ints> predecessors;
        while (!turns.empty()) {
            const int it = turns.top().second;
            turns.pop();
            rank[it] = static_cast<int>(sorted.size());
            sorted.push_back(segments[it]);
            predecessors.emplace_back();
            for (const int earlier : before[it]) predecessors.back().push_back(rank[earlier]);
            std::sort(predecessors.back().begin(), predecessors.back().end());
            for (const int later : after[it])
                if (--waits[later] == 0) turns.emplace(segments[later].head, later);
        }
        segments.swap(sorted);
        return predecessors;
    }
};

// {the problem of the segments, the operators of each, whether every operator was taken for fixed}
inline std::tuple<OrderProblem, std::vector<Ints>, bool> decompose(const OrderProblem& problem, bool relaxed) {
    Decomposition parts(problem, relaxed);
    return {parts.reduced(), parts.members(), parts.all_fixed()};
}

}  // namespace downset
