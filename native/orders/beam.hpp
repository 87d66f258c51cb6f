// Quick answers: greedy and beam search. Oracles: downset/orders/greedy.py and tests/orders/oracles/beam.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "check.hpp"
#include "deadline.hpp"
#include "orders/problem.hpp"
#include "orders/state_table.hpp"

namespace downset {

// Always the ready operator that leaves the least live, then needs the least, then comes first. Empty: a limit came
// first. `move_limit`: ready operators compared.
inline Ints greedy(const OrderProblem& problem, double seconds, std::int64_t move_limit) {
    const Deadline deadline(seconds);
    DynamicBits set = no_bits(problem.words), ready = problem.start_ready();
    Bytes live = problem.start_live;
    Ints steps;
    std::int64_t moves = 0;
    while (static_cast<int>(steps.size()) < problem.count) {
        if (moves > move_limit || (steps.size() % 16 == 0 && deadline.passed())) return {};
        int chosen = -1;
        OrderProblem::Step best{};
        ready.any([&](int v) {
            const auto next = problem.step(set, live, v);
            if (chosen < 0 || std::tie(next.left, next.transient) < std::tie(best.left, best.transient))
                chosen = v, best = next;
            ++moves;
            return false;
        });
        live = best.left;
        set.add(chosen);
        problem.open(set, ready, chosen);
        steps.push_back(chosen);
    }
    return problem.given_order(std::move(steps));
}

// Level by level, keeping the `width` states of least (peak, live), first come first on ties; an operator that fits
// under a state's peak and does not raise live bytes is the only one tried there. Peaks below `bound` count as it; only
// orders below `incumbent` are looked for. {order (empty: none, or a limit came first), states}
inline std::pair<Ints, std::int64_t> beam(const OrderProblem& problem, int width, Bytes bound, Bytes incumbent,
                                          double seconds, std::int64_t state_limit) {
    require(width > 0, "width: ", width, " is less than one state");
    const Deadline deadline(seconds);
    struct Node {
        std::int32_t parent;
        int ran;
    };
    struct Front {
        std::int32_t node;
        Bytes peak, live;
        Word hash;
        DynamicBits set, ready;
    };
    struct Move {
        Bytes peak, live;
        int from, operator_;
    };
    std::vector<Node> nodes{{-1, -1}};
    std::vector<Front> front{{0, std::max({bound, problem.floor, problem.start_live}), problem.start_live, 0,
                              no_bits(problem.words), problem.start_ready()}};
    std::int64_t expanded = 0;
    for (int level = 0; level < problem.count; ++level) {
        std::vector<Move> moves;
        for (int from = 0; from < static_cast<int>(front.size()); ++from) {
            if (expanded >= state_limit) return {{}, expanded};
            if (++expanded % 16 == 0 && deadline.passed()) return {{}, expanded};
            const Front& node = front[from];
            const std::size_t before = moves.size();
            const bool committed = node.ready.any([&](int v) {
                const auto [transient, left] = problem.step(node.set, node.live, v);
                if (transient >= incumbent) return false;
                moves.push_back({std::max(node.peak, transient), left, from, v});
                return transient <= node.peak && left <= node.live;
            });
            if (committed) {
                moves[before] = moves.back();
                moves.resize(before + 1);
            }
        }
        std::stable_sort(moves.begin(), moves.end(), [](const Move& one, const Move& other) {
            return std::tie(one.peak, one.live) < std::tie(other.peak, other.live);
        });
        StateTable seen(problem.words);
        std::vector<Front> following;
        for (const Move& move : moves) {
            if (static_cast<int>(following.size()) >= width) break;
            Front next{0, move.peak, move.live, front[move.from].hash ^ mixed(move.operator_), front[move.from].set,
                       {}};
            next.set.add(move.operator_);
            if (!seen.find(next.set, next.hash).second) continue;
            next.ready = front[move.from].ready;
            problem.open(next.set, next.ready, move.operator_);
            next.node = static_cast<std::int32_t>(nodes.size());
            nodes.push_back({front[move.from].node, move.operator_});
            following.push_back(std::move(next));
        }
        if (following.empty()) return {{}, expanded};
        front.swap(following);
    }
    Ints steps;
    for (std::int32_t node = front.front().node; nodes[node].parent >= 0; node = nodes[node].parent)
        steps.push_back(nodes[node].ran);
    std::reverse(steps.begin(), steps.end());
    return {problem.given_order(std::move(steps)), expanded};
}

}  // namespace downset
