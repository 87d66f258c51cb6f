// Maximum flows.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "orders/problem.hpp"

namespace downset {

// Maximum flow (Dinic, 1970) on a small graph that is built again for every operator; its arrays are reused.
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
    // Empties it and makes `nodes` nodes.
    void clear(int nodes) {
        heads_.assign(nodes, -1);
        edges_.clear();
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
    std::vector<int> heads_, levels_, cursor_, path_;
    std::vector<Edge> edges_;

    bool label(int source, int sink) {
        levels_.assign(heads_.size(), -1);
        std::vector<int> queue{source};
        levels_[source] = 0;
        for (std::size_t place = 0; place < queue.size(); ++place)
            for (int edge = heads_[queue[place]]; edge >= 0; edge = edges_[edge].next)
                if (edges_[edge].capacity > 0 && levels_[edges_[edge].to] < 0) {
                    levels_[edges_[edge].to] = levels_[queue[place]] + 1;
                    queue.push_back(edges_[edge].to);
                }
        return levels_[sink] >= 0;
    }
    // One augmenting path, without recursion: chains of thousands of operators would exhaust the stack.
    Bytes push(int source, int sink) {
        path_.clear();
        int node = source;
        while (node != sink) {
            int& edge = cursor_[node];
            while (edge >= 0 && !(edges_[edge].capacity > 0 && levels_[edges_[edge].to] == levels_[node] + 1))
                edge = edges_[edge].next;
            if (edge >= 0) {
                path_.push_back(edge);
                node = edges_[edge].to;
            } else {
                if (path_.empty()) return 0;
                levels_[node] = -1;  // a dead end
                node = edges_[path_.back() ^ 1].to;
                path_.pop_back();
            }
        }
        Bytes pushed = kInfinite;
        for (int edge : path_) pushed = std::min(pushed, edges_[edge].capacity);
        for (int edge : path_) {
            edges_[edge].capacity -= pushed;
            edges_[edge ^ 1].capacity += pushed;
        }
        return pushed;
    }
};

}  // namespace downset
