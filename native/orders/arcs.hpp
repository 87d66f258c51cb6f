// A graph whose arcs are chains of segments, and its reduction by series and parallel arcs.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "orders/fixed_costs.hpp"
#include "orders/problem.hpp"
#include "orders/segments.hpp"

namespace downset {

// Operator v is an arc from node 2v to node 2v+1, a precedence an arc without segments. One source comes before all
// others, and one sink after them. Arcs in series become one; so do parallel arcs of fixed operators, and an arc
// without segments parallel to any other. O(operators + precedences + segments moved).
class ArcGraph {
public:
    struct Arc {
        int from, to;  // from: -1 where the arc is gone
        Chain chain;
        bool fixed;  // every segment of the chain is
    };

    ArcGraph(const OrderProblem& problem, const FixedCosts& fixed, Links& links)
        : links_(links), ends_(2 * problem.count + 2) {
        arcs_.reserve(4 * static_cast<std::size_t>(problem.count) + 2);
        between_.reserve(4 * static_cast<std::size_t>(problem.count) + 2);
        for (int v = 0; v < problem.count; ++v) {
            const auto& cost = fixed.costs[v];
            connect(2 * v, 2 * v + 1, {{cost.hill, cost.drop, v, v, cost.fixed}}, cost.fixed);
            for (const int u : problem.lists.predecessors[v]) connect(2 * u + 1, 2 * v, {}, true);
            if (problem.lists.predecessors[v].empty()) connect(source(), 2 * v, {}, true);
            if (problem.successors[v].empty()) connect(2 * v + 1, sink(), {}, true);
        }
        ready_.clear();
        for (int node = source() - 1; node >= 0; --node) ready_.push_back(node);
        reduce();
    }

    int nodes() const { return static_cast<int>(ends_.size()); }
    int source() const { return nodes() - 2; }
    int sink() const { return nodes() - 1; }
    const std::vector<Arc>& arcs() const { return arcs_; }

    // Puts one arc of fixed segments in the place of these.
    void replace(const Ints& arcs, int from, int to, Chain chain) {
        for (const int arc : arcs) disconnect(arc);
        connect(from, to, std::move(chain), true);
    }
    void reduce() {
        while (!ready_.empty()) {
            const int node = ready_.back();
            ready_.pop_back();
            if (ends_[node].in == 1 && ends_[node].out == 1) series(node);
        }
    }

private:
    struct Ends {
        int in = 0, out = 0;
        std::int64_t in_sum = 0, out_sum = 0;  // of the arcs' numbers: with one arc left, it
    };
    Links& links_;
    std::vector<Ends> ends_;
    std::vector<Arc> arcs_;
    std::unordered_map<std::uint64_t, int> between_, open_;  // arcs by their ends: fixed ones, and others
    Ints ready_;

    static std::uint64_t key(int from, int to) { return std::uint64_t(std::uint32_t(from)) << 32 | std::uint32_t(to); }

    void connect(int from, int to, Chain chain, bool fixed) {
        ready_.push_back(from);
        ready_.push_back(to);
        const auto there = between_.find(key(from, to));
        if (there != between_.end()) {
            Arc& arc = arcs_[there->second];
            if (chain.empty()) return;
            if (arc.chain.empty() || fixed) {
                arc.chain = arc.chain.empty() ? std::move(chain) : links_.merged(arc.chain, chain);
                arc.fixed = fixed;
                if (!fixed) {
                    open_[key(from, to)] = there->second;
                    between_.erase(there);
                }
                return;
            }
        }
        if (chain.empty() && open_.contains(key(from, to))) return;
        const int arc = static_cast<int>(arcs_.size());
        arcs_.push_back({from, to, std::move(chain), fixed});
        (fixed ? between_ : open_)[key(from, to)] = arc;
        ends_[from].out += 1;
        ends_[from].out_sum += arc;
        ends_[to].in += 1;
        ends_[to].in_sum += arc;
    }
    // Takes an arc out, and its chain with it.
    Chain disconnect(int index) {
        Arc& arc = arcs_[index];
        auto& table = arc.fixed ? between_ : open_;
        const auto there = table.find(key(arc.from, arc.to));
        if (there != table.end() && there->second == index) table.erase(there);
        ends_[arc.from].out -= 1;
        ends_[arc.from].out_sum -= index;
        ends_[arc.to].in -= 1;
        ends_[arc.to].in_sum -= index;
        arc.from = -1;
        return std::move(arc.chain);
    }
    void series(int node) {
        const int first = static_cast<int>(ends_[node].in_sum), second = static_cast<int>(ends_[node].out_sum);
        const int from = arcs_[first].from, to = arcs_[second].to;
        const bool fixed = arcs_[first].fixed && arcs_[second].fixed;
        Chain chain = disconnect(first), rest = disconnect(second);
        if (chain.empty()) chain.swap(rest);
        for (const Segment& segment : rest) links_.append(chain, segment);
        connect(from, to, std::move(chain), fixed);
    }
};

}  // namespace downset
