// The least cost of all orders of a small network: a search over sets of operators that ran and what fast memory holds,
// by the number of operators. A storage leaves fast memory only where an operator needs its room. Pruned by the
// incumbent, by states that another can turn into at no higher cost, and by the bound of order_free.hpp for what
// remains. Oracle: tests/memories/oracles/machine.py.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "bits.hpp"
#include "deadline.hpp"
#include "memories/order_free.hpp"
#include "memories/problem.hpp"

namespace downset {

struct JointFound {
    Cost value = -1;  // -1: none below the incumbent
    Cost bound = 0;
    bool finished = false;
    std::int64_t states = 0;
    Ints order;
};

class JointSearch {
public:
    static constexpr int kMost = 64;  // operators, and storages

    JointSearch(const MemoriesProblem& problem, OrderFreeBound& rest, Cost incumbent)
        : problem_(problem), rest_(rest), limit_(incumbent), before_(problem.count, 0), touch_(problem.storages, 0),
          reads_(problem.storages, 0) {
        if (!fits()) return;
        for (int v = 0; v < problem.count; ++v)
            for (const int u : problem.predecessors[v]) before_[v] |= bit(u);
        for (int s = 0; s < problem.storages; ++s)
            for (const auto& touch : problem.touches[s]) {
                touch_[s] |= bit(touch.op);
                reads_[s] |= touch.write ? 0 : bit(touch.op);
            }
        rest_.set_prices(incumbent);
    }
    bool fits() const {
        const auto open = std::count(problem_.begin.begin(), problem_.begin.end(), Begin::kEither);
        return problem_.count <= kMost && problem_.storages <= kMost && open <= 10;
    }

    JointFound run(double seconds, std::int64_t state_limit) {
        JointFound result;
        const Deadline deadline(seconds);
        std::vector<State> states = beginnings();
        std::vector<std::vector<Origin>> origins(1, std::vector<Origin>(states.size(), Origin{0, 0}));
        Cost open = limit_;
        bool stopped = false;
        for (int done = 0; done < problem_.count && !states.empty() && !stopped; ++done) {
            next_.clear(), from_.clear(), seen_.clear();
            for (std::size_t index = 0; index < states.size(); ++index) {
                if (index % 64 == 0 && (deadline.passed() || result.states > state_limit)) {
                    for (std::size_t i = index; i < states.size(); ++i) open = std::min(open, states[i].estimate);
                    for (const State& state : next_) open = std::min(open, state.estimate);
                    stopped = true;
                    break;
                }
                ++result.states;
                expand(states[index], static_cast<std::uint32_t>(index));
            }
            if (stopped) break;
            undominated();
            states = next_;
            origins.push_back(from_);
        }
        result.finished = !stopped;
        result.bound = open;
        if (stopped) return result;
        std::size_t best = states.size();
        for (std::size_t i = 0; i < states.size(); ++i) {
            states[i].paid += ending(states[i]);
            if (states[i].paid < limit_ && (best == states.size() || states[i].paid < states[best].paid)) best = i;
        }
        if (best == states.size()) return result;
        result.value = result.bound = states[best].paid;
        result.order.resize(problem_.count);
        std::uint32_t index = static_cast<std::uint32_t>(best);
        for (int p = problem_.count; p > 0; --p) {
            const Origin origin = origins[p][index];
            result.order[p - 1] = origin.op, index = origin.index;
        }
        return result;
    }

private:
    using Set = std::uint64_t;
    struct State {
        Set ran = 0, held = 0, changed = 0;
        Bytes kept = 0;
        Cost paid = 0, estimate = 0;
    };
    struct Origin {
        std::uint32_t index;
        std::int32_t op;
    };
    using Key = FixedBits<3>;  // what ran, what is held, what of it is changed

    const MemoriesProblem& problem_;
    OrderFreeBound& rest_;
    Cost limit_;
    std::vector<Set> before_, touch_, reads_;
    std::vector<State> next_;
    std::vector<Origin> from_;
    std::unordered_map<Key, std::uint32_t, BitsHash> seen_;

    static Set bit(int index) { return Set{1} << index; }

    // Every choice of the inputs that begin in fast memory, among those that may begin in either.
    std::vector<State> beginnings() const {
        std::vector<State> states{State{}};
        for (int s = 0; s < problem_.storages; ++s) {
            if (!problem_.starts_fast(s)) continue;
            const bool either = problem_.begin[s] == Begin::kEither;
            const std::size_t count = states.size();
            for (std::size_t i = 0; i < count; ++i) {
                if (either) states.push_back(states[i]);
                states[i].held |= bit(s), states[i].changed |= bit(s);
                states[i].kept += problem_.room[s];
            }
        }
        return states;
    }

    Cost leaving(const State& state, int s) const { return state.changed & bit(s) ? problem_.store[s] : 0; }
    void leave(State& state, int s) const {
        state.paid += leaving(state, s);
        state.held &= ~bit(s), state.changed &= ~bit(s);
        state.kept -= problem_.room[s];
    }

    void expand(const State& state, std::uint32_t index) {
        const int alone = forced(state);
        for (int v = 0; v < problem_.count; ++v)
            if (!(state.ran & bit(v)) && !(before_[v] & ~state.ran) && (alone < 0 || alone == v))
                access(state, index, v, 0, problem_.workspace[v], 0);
    }

    bool exists(const State& state, int s) const {
        if (problem_.begin[s] != Begin::kMade) return true;
        for (const auto& touch : problem_.touches[s])
            if (touch.write && state.ran & bit(touch.op)) return true;
        return false;
    }

    // Operator v's operands one by one; `fresh`: bytes in addition to those held, `inside`: operands in fast memory.
    void access(const State& state, std::uint32_t index, int v, std::size_t operand, Bytes fresh, Set inside) {
        if (operand == problem_.accesses[v].size()) return make_room(state, index, v, fresh, inside, 0);
        const auto& one = problem_.accesses[v][operand];
        const int s = one.storage;
        const bool last = problem_.end[s] == End::kDead && !(touch_[s] & ~state.ran & ~bit(v));
        if (state.held & bit(s)) {
            State child = state;
            if (one.write) child.changed |= bit(s);
            access(child, index, v, operand + 1, fresh, inside | bit(s));
            if (one.direct >= 0 && state.kept + fresh > 0) {
                child = state;
                leave(child, s);
                child.paid += one.direct;
                if (child.paid < limit_) access(child, index, v, operand + 1, fresh, inside);
            }
            return;
        }
        const bool begins = one.write && !exists(state, s);
        const Cost load = begins ? 0 : problem_.load[s];
        if (one.direct >= 0) {
            State child = state;
            child.paid += one.direct;
            if (child.paid < limit_) access(child, index, v, operand + 1, fresh, inside);
            if (last && one.direct <= load) return;
        }
        State child = state;
        child.paid += load;
        child.held |= bit(s);
        if (one.write) child.changed |= bit(s);
        child.kept += problem_.room[s];
        if (child.paid < limit_) access(child, index, v, operand + 1, fresh, inside | bit(s));
    }

    // Storages leave until the operator fits, none that need not; those below `from` are decided.
    void make_room(const State& state, std::uint32_t index, int v, Bytes fresh, Set inside, int from) {
        const Bytes over = state.kept + fresh - problem_.capacity;
        if (over <= 0) return finish(state, index, v);
        Bytes possible = 0;
        for (int s = from; s < problem_.storages; ++s)
            if (state.held & ~inside & bit(s)) possible += problem_.room[s];
        if (possible < over) return;
        for (int s = from; s < problem_.storages; ++s) {
            if (!(state.held & ~inside & bit(s))) continue;
            State child = state;
            leave(child, s);
            if (child.paid < limit_) make_room(child, index, v, fresh, inside, s + 1);
        }
    }

    void finish(State state, std::uint32_t index, int v) {
        state.ran |= bit(v);
        for (const auto& one : problem_.accesses[v]) {
            const int s = one.storage;
            if (!(state.held & bit(s)) || touch_[s] & ~state.ran || problem_.end[s] != End::kDead) continue;
            state.held &= ~bit(s), state.changed &= ~bit(s);
            state.kept -= problem_.room[s];
        }
        state.estimate = state.paid + rest_.remaining(state.ran, state.held, state.changed);
        if (state.estimate >= limit_) return;
        const auto [place, fresh] =
            seen_.try_emplace(Key({state.ran, state.held, state.changed}), static_cast<std::uint32_t>(next_.size()));
        if (fresh) {
            next_.push_back(state);
            from_.push_back({index, v});
        } else if (state.paid < next_[place->second].paid) {
            next_[place->second] = state;
            from_[place->second] = {index, v};
        }
    }

    // An operator that may run at once: it fits at no cost and frees a changed operand that is as large and costs as
    // much to move as its result. -1: none.
    int forced(const State& state) const {
        for (int v = 0; v < problem_.count; ++v) {
            if (state.ran & bit(v) || before_[v] & ~state.ran) continue;
            Bytes fresh = problem_.workspace[v];
            int result = -1, results = 0;
            bool lawful = true;
            for (const auto& one : problem_.accesses[v]) {
                if (one.write && !exists(state, one.storage))
                    result = one.storage, ++results, fresh += problem_.room[result];
                else
                    lawful = lawful && !one.write && (state.held & bit(one.storage));
            }
            if (!lawful || results != 1 || state.kept + fresh > problem_.capacity) continue;
            const auto write = std::find_if(problem_.accesses[v].begin(), problem_.accesses[v].end(),
                                            [&](const auto& one) { return one.storage == result; });
            if (write->direct >= 0 && write->direct < problem_.store[result]) continue;
            for (const auto& one : problem_.accesses[v]) {
                const int s = one.storage;
                if (one.write || touch_[s] & ~state.ran & ~bit(v) || problem_.end[s] != End::kDead) continue;
                const Cost back = one.direct < 0 ? problem_.load[s] : std::min(problem_.load[s], one.direct);
                if (state.changed & bit(s) && problem_.room[s] >= problem_.room[result] &&
                    problem_.store[s] >= problem_.store[result] && back >= problem_.load[result])
                    return v;
            }
        }
        return -1;
    }

    // Drops each state that another of the same operators can turn into at no higher cost.
    void undominated() {
        std::vector<std::uint32_t> rank(next_.size());
        for (std::uint32_t i = 0; i < rank.size(); ++i) rank[i] = i;
        std::sort(rank.begin(), rank.end(), [&](std::uint32_t one, std::uint32_t other) {
            const State &a = next_[one], &b = next_[other];
            return a.ran != b.ran ? a.ran < b.ran : (a.paid != b.paid ? a.paid < b.paid : one < other);
        });
        std::vector<State> kept;
        std::vector<Origin> from;
        std::size_t group = 0;
        for (const std::uint32_t i : rank) {
            const State& state = next_[i];
            if (kept.empty() || kept.back().ran != state.ran) group = kept.size();
            bool beaten = false;
            const std::size_t stop = std::min(kept.size(), group + kCompared);
            for (std::size_t other = group; other < stop && !beaten; ++other)
                beaten = kept[other].paid + turning(kept[other], state) <= state.paid;
            if (beaten) continue;
            kept.push_back(state);
            from.push_back(from_[i]);
        }
        next_ = std::move(kept), from_ = std::move(from);
    }
    static constexpr std::size_t kCompared = 256;

    Cost turning(const State& one, const State& other) const {
        Cost cost = 0;
        for (Set rest = other.held & ~one.held; rest; rest &= rest - 1) cost += problem_.load[std::countr_zero(rest)];
        for (Set rest = one.changed & ~other.changed; rest; rest &= rest - 1)
            cost += problem_.store[std::countr_zero(rest)];
        return cost;
    }

    Cost ending(const State& state) const {
        Cost cost = 0;
        for (int s = 0; s < problem_.storages; ++s) {
            if (!touch_[s]) continue;
            const bool held = state.held & bit(s);
            if (problem_.end[s] == End::kSlow && held) cost += leaving(state, s);
            if (problem_.end[s] == End::kFast && !held) cost += problem_.load[s];
        }
        return cost;
    }
};

}  // namespace downset
