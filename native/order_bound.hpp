// A lower bound on the peak of every order: for each operator v the least that can be live while it runs, over all
// downsets at which it can run. Live bytes are submodular, so each is one minimum cut (a closure problem). Specified by
// its Python twin in downset/orders/bound.py, which enumerates the downsets.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "order_search.hpp"

namespace downset {

// Maximum flow (Dinic) on a small graph that is built anew for every operator.
class Flow {
public:
    static constexpr Bytes kInfinite = std::numeric_limits<Bytes>::max() / 4;

    int add_node() {
        heads_.push_back(-1);
        return static_cast<int>(heads_.size()) - 1;
    }
    void add_edge(int from, int to, Bytes capacity) {
        edges_.push_back({to, heads_[from], capacity});
        heads_[from] = static_cast<int>(edges_.size()) - 1;
        edges_.push_back({from, heads_[to], 0});
        heads_[to] = static_cast<int>(edges_.size()) - 1;
    }
    Bytes run(int source, int sink) {
        Bytes total = 0;
        while (label(source, sink)) {
            cursor_ = heads_;
            while (const Bytes pushed = push(source, sink)) total += pushed;
        }
        return total;
    }

private:
    struct Edge {
        int to, next;
        Bytes capacity;
    };
    std::vector<int> heads_, levels_, cursor_;
    std::vector<Edge> edges_;

    bool label(int source, int sink) {
        levels_.assign(heads_.size(), -1);
        std::vector<int> queue{source};
        levels_[source] = 0;
        for (std::size_t at = 0; at < queue.size(); ++at)
            for (int edge = heads_[queue[at]]; edge >= 0; edge = edges_[edge].next)
                if (edges_[edge].capacity > 0 && levels_[edges_[edge].to] < 0) {
                    levels_[edges_[edge].to] = levels_[queue[at]] + 1;
                    queue.push_back(edges_[edge].to);
                }
        return levels_[sink] >= 0;
    }
    // One augmenting path, without recursion: chains of thousands of operators would exhaust the stack.
    Bytes push(int source, int sink) {
        std::vector<int> path;
        int node = source;
        while (node != sink) {
            int& edge = cursor_[node];
            while (edge >= 0 && !(edges_[edge].capacity > 0 && levels_[edges_[edge].to] == levels_[node] + 1))
                edge = edges_[edge].next;
            if (edge >= 0) {
                path.push_back(edge);
                node = edges_[edge].to;
            } else {
                if (path.empty()) return 0;
                levels_[node] = -1;  // a dead end
                node = edges_[path.back() ^ 1].to;
                path.pop_back();
            }
        }
        Bytes pushed = kInfinite;
        for (int edge : path) pushed = std::min(pushed, edges_[edge].capacity);
        for (int edge : path) {
            edges_[edge].capacity -= pushed;
            edges_[edge ^ 1].capacity += pushed;
        }
        return pushed;
    }
};

// Valid whenever it stops: operators that the time did not reach simply do not raise it.
inline Bytes closure_bound(const OrderProblem& problem, double seconds) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
    const int words = problem.words, count = problem.count;
    const auto bit = [](int v) { return std::uint64_t{1} << (v % 64); };
    std::vector<std::uint64_t> above(static_cast<std::size_t>(count) * words, 0), below = above;
    for (int v = 0; v < count; ++v)  // operators come in a topological order
        for (int w : problem.successors[v]) {
            if (w <= v) throw std::invalid_argument("order problem: operators are not in a topological order");
            for (int word = 0; word < words; ++word) above[w * words + word] |= above[v * words + word];
            above[w * words + v / 64] |= bit(v);
        }
    for (int v = count - 1; v >= 0; --v)
        for (int w : problem.successors[v]) {
            for (int word = 0; word < words; ++word) below[v * words + word] |= below[w * words + word];
            below[v * words + w / 64] |= bit(w);
        }
    Bytes at_the_end = 0;  // what is never freed is live while the last operator runs, whichever that is
    for (const auto& storage : problem.storages) at_the_end += storage.kept ? storage.nbytes : 0;
    Bytes bound = std::max({problem.floor, problem.start_live, at_the_end});
    // Cheap first: what v reads and writes is live while it runs. The flows then start where most is to be expected.
    std::vector<Bytes> touched(count, 0);
    for (const auto& storage : problem.storages) {
        std::vector<std::pair<int, std::uint64_t>> both = storage.producers.words;
        for (auto [word, bits] : storage.consumers.words) {
            const auto same = std::find_if(both.begin(), both.end(), [w = word](const auto& item) { return item.first == w; });
            if (same == both.end())
                both.emplace_back(word, bits);
            else
                same->second |= bits;
        }
        for (auto [word, bits] : both)
            for (std::uint64_t rest = bits; rest; rest &= rest - 1)
                touched[word * 64 + __builtin_ctzll(rest)] += storage.nbytes;
    }
    std::vector<int> sequence(count);
    for (int v = 0; v < count; ++v) {
        sequence[v] = v;
        Bytes reused = 0;
        for (int s : problem.in_place[v]) reused = std::max(reused, problem.storages[s].nbytes);
        bound = std::max(bound, touched[v] - reused);
    }
    std::stable_sort(sequence.begin(), sequence.end(), [&](int one, int other) { return touched[one] > touched[other]; });
    std::vector<int> node_of(count, -1);
    std::vector<std::uint64_t> done(words), free(words), out(words), only_v(words, 0);
    for (int v : sequence) {
        if (Clock::now() > deadline) break;
        Bytes transient = 0;
        only_v[v / 64] = bit(v);
        for (int word = 0; word < words; ++word) {
            done[word] = above[v * words + word];
            out[word] = below[v * words + word];
        }
        out[v / 64] |= bit(v);
        for (int word = 0; word < words; ++word) free[word] = ~(done[word] | out[word]);
        if (count % 64) free[words - 1] &= (std::uint64_t{1} << (count % 64)) - 1;

        Flow flow;
        const int source = flow.add_node(), sink = flow.add_node();
        Ints members;
        for_each_bit(free.data(), words, [&](int u) {
            node_of[u] = flow.add_node();
            members.push_back(u);
            return false;
        });
        for (int u : members)
            for (int w : problem.successors[u])
                if (node_of[w] >= 0) flow.add_edge(node_of[w], node_of[u], Flow::kInfinite);
        Bytes profits = 0;
        for (const auto& storage : problem.storages) {
            if (storage.producers.meets(only_v.data())) {  // live while v runs, whoever allocated it
                transient += storage.nbytes;
                continue;
            }
            const bool allocated = storage.producers.words.empty() || storage.producers.meets(done.data());
            const bool may_allocate = !allocated && storage.producers.meets(free.data());
            if (!allocated && !may_allocate) continue;
            const bool freed_by_then = !storage.kept && storage.consumers.subset_of(done.data()) && allocated;
            if (freed_by_then) continue;
            transient += allocated ? storage.nbytes : 0;
            if (may_allocate) {
                const int cost = flow.add_node();
                flow.add_edge(cost, sink, storage.nbytes);
                for (auto [word, bits] : storage.producers.words)
                    for (std::uint64_t rest = bits & free[word]; rest; rest &= rest - 1)
                        flow.add_edge(node_of[word * 64 + __builtin_ctzll(rest)], cost, Flow::kInfinite);
            }
            if (!storage.kept && !storage.consumers.meets(out.data())) {
                const int profit = flow.add_node();
                flow.add_edge(source, profit, storage.nbytes);
                profits += storage.nbytes;
                for (auto [word, bits] : storage.consumers.words)
                    for (std::uint64_t rest = bits & free[word]; rest; rest &= rest - 1)
                        flow.add_edge(profit, node_of[word * 64 + __builtin_ctzll(rest)], Flow::kInfinite);
            }
        }
        Bytes reused = 0;
        for (int s : problem.in_place[v]) reused = std::max(reused, problem.storages[s].nbytes);
        // Only where it can raise the bound is the flow worth running: it can only lower `transient`.
        if (transient - reused > bound) {
            transient -= profits - flow.run(source, sink);
            bound = std::max(bound, transient - reused);
        }
        for (int u : members) node_of[u] = -1;
        only_v[v / 64] = 0;
    }
    return bound;
}

}  // namespace downset
