// The least cost of a fixed order: a search over positions, access by access. A state is what fast memory holds. States
// are ranked, and cut off at the incumbent, by a bound from prices of capacity. Where none is dropped the search is
// exhaustive; what is dropped keeps its bound. Oracle: tests/memories/oracles/machine.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "bits.hpp"
#include "deadline.hpp"
#include "memories/chains.hpp"
#include "memories/prices.hpp"

namespace downset {

struct ResidencyFound {
    Cost value = -1;  // -1: none below the incumbent
    Cost bound = 0;   // no residency of this order costs less
    std::int64_t states = 0;
    std::vector<AccessChoice> choices;  // by link
};

class ResidencySearch {
public:
    static constexpr int kSlots = 128;

    ResidencySearch(const AccessChains& chains, Cost incumbent, int rounds)
        : chains_(chains), prices_(chains, incumbent, rounds), slot_(chains.problem.storages, 0) {
        assign_slots();
    }
    Cost root() const { return (prices_.root + CapacityPrices::kScale - 1) / CapacityPrices::kScale; }

    // The best residency that costs less than `incumbent`, among at most `width` states a link.
    ResidencyFound run(Cost incumbent, int width, double seconds, std::int64_t state_limit) const {
        ResidencyFound result;
        result.bound = std::max<Cost>(root(), 0);
        if (slots_ > kSlots || result.bound >= incumbent) return result;
        const Deadline deadline(seconds);
        const Cost limit = incumbent * CapacityPrices::kScale;
        Cost dropped = limit;
        std::vector<State> states{State{}};
        states[0].estimate = prices_.root;
        std::vector<std::vector<std::uint32_t>> origins;
        const auto& links = chains_.links;
        for (std::size_t number = 0; number < links.size(); ++number) {
            const bool opens = number == 0 || links[number - 1].position != links[number].position;
            const bool closes = number + 1 == links.size() || links[number + 1].position != links[number].position;
            if (opens) open(links[number].position, states);
            states = advance(static_cast<int>(number), closes, limit, states);
            result.states += static_cast<std::int64_t>(states.size());
            if (static_cast<int>(states.size()) > width) drop(states, width, dropped);
            origins.emplace_back();
            for (const State& state : states) origins.back().push_back(state.origin);
            if (result.states > state_limit || deadline.passed()) {
                for (const State& state : states) dropped = std::min(dropped, state.estimate);
                states.clear();
            }
            if (states.empty()) break;
        }
        conclude(result, states, origins, dropped, incumbent);
        return result;
    }

private:
    struct State {
        FixedBits<2> held, changed;   // by slot
        Cost paid = 0, estimate = 0;  // estimate: a bound on all completions, scaled
        Bytes kept = 0, used = 0;     // bytes that stay in fast memory; bytes used at this position
        std::uint32_t origin = 0;     // index in the layer before, and the choice
    };
    using Key = FixedBits<5>;  // what is held, what of it is changed, and the bytes used as one word
    static constexpr std::uint32_t kFast = 1, kKeep = 2;
    static constexpr int kBefore = 4;  // the best states of a layer, to which all others are compared

    const AccessChains& chains_;
    CapacityPrices prices_;
    std::vector<int> slot_;
    int slots_ = 0;

    // Slots by lifetimes; freed before they are taken again.
    void assign_slots() {
        std::vector<int> free;
        for (const auto& link : chains_.links) {
            if (link.first) {
                if (free.empty()) free.push_back(slots_++);
                slot_[link.storage] = free.back(), free.pop_back();
            }
            if (link.next < 0) free.push_back(slot_[link.storage]);
        }
    }

    void open(int position, std::vector<State>& states) const {
        const auto& problem = chains_.problem;
        if (position < 0 || position >= problem.count) return;
        const Bytes workspace = problem.workspace[chains_.order[position]];
        std::size_t kept = 0;
        for (State& state : states) {
            state.used = workspace + state.kept;
            if (state.used <= problem.capacity) states[kept++] = state;
            // an overfull state has no completion: no bound changes without it
        }
        states.resize(kept);
    }

    std::vector<State> advance(int number, bool closes, Cost limit, const std::vector<State>& states) const {
        const auto& link = chains_.links[number];
        const auto& problem = chains_.problem;
        const int slot = slot_[link.storage];
        const Bytes room = problem.room[link.storage];
        const bool runs = link.kind == AccessChains::kAccess;
        std::vector<State> next;
        std::unordered_map<Key, std::uint32_t, BitsHash> seen;
        seen.reserve(2 * states.size());
        for (std::uint32_t index = 0; index < states.size(); ++index) {
            const State& from = states[index];
            const bool held = from.held.has(slot);
            const int state =
                !held ? AccessChains::kSlow : (from.changed.has(slot) ? AccessChains::kChanged : AccessChains::kCopied);
            const Cost before = prices_.arrive[number][state];
            chains_.choices(link, state, [&](AccessChoice choice, Cost cost, int then) {
                State child = from;
                child.paid += cost;
                child.estimate += chains_.priced(link, state, choice, cost, then, prices_.sums, CapacityPrices::kScale,
                                                 prices_.arrive) -
                                  before;
                child.held.remove(slot), child.changed.remove(slot);
                if (choice.keep) {
                    child.held.add(slot);
                    if (then == AccessChains::kChanged) child.changed.add(slot);
                }
                child.kept += (choice.keep ? room : 0) - (held ? room : 0);
                if (runs && choice.fast && !held) child.used += room;
                if (runs && child.used > problem.capacity) return;
                if (closes && runs) child.estimate += prices_.prices[link.position] * (problem.capacity - child.used);
                if (child.estimate >= limit) return;
                if (closes || !runs) child.used = 0;
                child.origin = index << 2 | (choice.fast ? kFast : 0) | (choice.keep ? kKeep : 0);
                const auto &kept = child.held.words, &new_there = child.changed.words;
                const Key key({kept[0], kept[1], new_there[0], new_there[1], static_cast<Word>(child.used)});
                const auto [place, fresh] = seen.try_emplace(key, static_cast<std::uint32_t>(next.size()));
                if (fresh)
                    next.push_back(child);
                else if (child.paid < next[place->second].paid)
                    next[place->second] = child;
            });
        }
        return next;
    }

    static void drop(std::vector<State>& states, int width, Cost& dropped) {
        const auto before = [](const State& one, const State& other) {
            return one.estimate != other.estimate ? one.estimate < other.estimate : one.origin < other.origin;
        };
        std::nth_element(states.begin(), states.begin() + width, states.end(), before);
        for (std::size_t i = width; i < states.size(); ++i) dropped = std::min(dropped, states[i].estimate);
        states.resize(width);
        std::sort(states.begin(), states.end(), before);
    }

    void conclude(ResidencyFound& result, const std::vector<State>& states,
                  const std::vector<std::vector<std::uint32_t>>& origins, Cost dropped, Cost incumbent) const {
        std::size_t best = states.size();
        for (std::size_t i = 0; i < states.size(); ++i)
            if (best == states.size() || states[i].paid < states[best].paid) best = i;
        if (best < states.size()) {
            result.value = states[best].paid;
            result.choices.resize(chains_.links.size());
            std::uint32_t index = static_cast<std::uint32_t>(best);
            for (int number = static_cast<int>(chains_.links.size()) - 1; number >= 0; --number) {
                const std::uint32_t origin = origins[number][index];
                result.choices[number] = {(origin & kFast) != 0, (origin & kKeep) != 0};
                index = origin >> 2;
            }
        }
        const Cost least = result.value < 0 ? incumbent : result.value;
        const Cost rounded = (dropped + CapacityPrices::kScale - 1) / CapacityPrices::kScale;
        result.bound = std::max(result.bound, std::min(least, rounded));
    }
};

}  // namespace downset
