// What the searches for an order see: operators 0 … count-1 in a topological order, and the storages they touch.
// Defined by downset/memory/liveness.py; the reversed problem by downset/orders/search_space.py. Bytes are 64-bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "check.hpp"
#include "orders/sparse_sets.hpp"

namespace downset {

using Bytes = std::int64_t;
using Ints = std::vector<int>;

class OrderProblem {
public:
    // As liveness.OrderProblem has it, masks as ascending lists.
    struct Lists {
        std::vector<Ints> predecessors;
        std::vector<Bytes> nbytes;
        std::vector<Ints> producers, consumers;
        std::vector<bool> kept;
        std::vector<Ints> in_place;
        std::vector<std::vector<Bytes>> in_place_bytes;  // of each of these, what is taken over
        // By operator, added to its transient; empty: nothing. Only segments of operators have it (decompose.hpp).
        std::vector<Bytes> extra = {};
    };
    struct Step {
        Bytes transient, left;
    };
    int count = 0, words = 0;
    Bytes floor = 0, start_live = 0;
    Lists lists;
    std::vector<Ints> successors;

    // The most that operator v may take over.
    Bytes most_reused(int v) const {
        Bytes most = 0;
        for (const Bytes nbytes : lists.in_place_bytes[v]) most = std::max(most, nbytes);
        return most;
    }
    Bytes extra(int v) const { return lists.extra.empty() ? 0 : lists.extra[v]; }

    OrderProblem(Lists given, Bytes floor_bytes) : OrderProblem(std::move(given), {}, floor_bytes, false) {}

    // The same orders read from their ends: operator v is count-1-v, a storage is allocated by the first of those that
    // read it and freed by the last that produces it. Every downset's complement has the same bytes live, and executing
    // v needs the same between the same two sets; so least peaks are equal, and orders are each other's reverse.
    OrderProblem reversed() const {
        Lists other;
        const auto turned = [&](const Ints& list) {
            Ints turned_list;
            for (auto item = list.rbegin(); item != list.rend(); ++item) turned_list.push_back(count - 1 - *item);
            return turned_list;
        };
        for (int v = count - 1; v >= 0; --v) {
            other.predecessors.push_back(turned(successors[v]));
            other.in_place.push_back(lists.in_place[v]);
            other.in_place_bytes.push_back(lists.in_place_bytes[v]);
            if (!lists.extra.empty()) other.extra.push_back(lists.extra[v]);
        }
        std::vector<Ints> readers;
        for (std::size_t s = 0; s < lists.nbytes.size(); ++s) {
            readers.push_back(turned(lists.consumers[s]));
            other.producers.push_back(lists.kept[s] ? Ints{} : readers.back());
            other.consumers.push_back(turned(lists.producers[s]));
            other.kept.push_back(lists.producers[s].empty());
        }
        other.nbytes = lists.nbytes;
        return {std::move(other), std::move(readers), floor, true};
    }
    bool is_reversed() const { return reversed_; }
    // An order of this problem as one of the problem that was given.
    Ints given_order(Ints steps) const {
        if (!reversed_) return steps;
        std::reverse(steps.begin(), steps.end());
        for (int& v : steps) v = count - 1 - v;
        return steps;
    }

    // Executing v at `set`, which lacks it: what is live meanwhile and after.
    Step step(BitsView set, Bytes live, int v) const {
        const Operator& it = operators_[v];
        Bytes allocated = it.allocated, freed = it.freed;
        for (auto term = it.first_shared; term < it.first_read; ++term)
            if (!sets_.meets(terms_[term].others, set)) allocated += terms_[term].nbytes;
        for (auto term = it.first_read; term < it.first_candidate; ++term)
            if (sets_.subset(terms_[term].others, set)) freed += terms_[term].nbytes;
        Bytes reused = 0;
        for (auto term = it.first_candidate; term < it.end; ++term)  // v reads it last of all
            if (reversed_ ? !sets_.meets(terms_[term].others, set) : sets_.subset(terms_[term].others, set))
                reused = std::max(reused, terms_[term].nbytes);
        return {live + allocated - reused + it.extra, live + allocated - freed};
    }

    // Whether all that must run before v is in the set.
    bool opened(BitsView set, int v) const { return sets_.subset(before_[v], set); }
    // Whether every other operator that may allocate or free what v does, or is to end before v takes it over, is in
    // the set.
    bool determined(int v, BitsView set) const {
        const Operator& it = operators_[v];
        for (auto term = it.first_shared; term < it.end; ++term)
            if (!sets_.subset(terms_[term].others, set)) return false;
        return true;
    }

    // After v completed `set`: the ready set with v gone and what it opened.
    void open(BitsView set, BitsSpan ready, int v) const {
        ready.remove(v);
        for (int w : successors[v])
            if (opened(set, w)) ready.add(w);
    }
    DynamicBits start_ready() const {
        DynamicBits ready = no_bits(words);
        for (int v = 0; v < count; ++v)
            if (lists.predecessors[v].empty()) ready.add(v);
        return ready;
    }

    Bytes peak(const Ints& steps) const {
        DynamicBits set = no_bits(words);
        Bytes live = start_live, peak = floor;
        for (int v : steps) {
            require(v >= 0 && v < count && !set.has(v), "order: ", v, " is not an operator, or comes twice");
            const Step next = step(set, live, v);
            peak = std::max(peak, next.transient);
            live = next.left;
            set.add(v);
        }
        return peak;
    }

    // By operator: all that must run before it, or after it.
    // narrow[k]: there is exactly one downset of k operators, because an operator is comparable with all others there.
    // Every order passes through it, so the problem falls apart at it. An operator comes after all before it if each
    // of those is read by it or sooner, and likewise for what follows. O(V + E).
    std::vector<bool> narrow() const {
        std::vector<bool> narrow_places(count + 1, false), after_all(count, false);
        int latest = -1;
        for (int v = 0; v < count; ++v) {
            after_all[v] = latest <= v;
            latest = std::max(latest, successors[v].empty() ? count : successors[v].front());
        }
        int earliest = count;
        for (int v = count - 1; v >= 0; --v) {
            if (after_all[v] && earliest >= v) narrow_places[v] = narrow_places[v + 1] = true;
            const Ints& before = lists.predecessors[v];
            earliest = std::min(earliest, before.empty() ? -1 : before.back());
        }
        return narrow_places;
    }

private:
    struct Operator {
        Bytes allocated = 0, freed = 0, extra = 0;                                    // by it in every order
        std::int32_t first_shared = 0, first_read = 0, first_candidate = 0, end = 0;  // terms that depend on the order
    };
    struct Term {
        Bytes nbytes;
        SparseSets::Set others;  // besides the operator: the other producers, or the other consumers
    };
    bool reversed_ = false;
    std::vector<Operator> operators_;
    std::vector<Term> terms_;
    std::vector<SparseSets::Set> before_;
    SparseSets sets_;

    // `readers`: of a reversed problem, by storage, who reads it.
    OrderProblem(Lists given, std::vector<Ints> readers, Bytes floor_bytes, bool reversed)
        : count(static_cast<int>(given.predecessors.size())), words(words_for(count)), floor(floor_bytes),
          lists(std::move(given)), successors(lists.predecessors.size()), reversed_(reversed) {
        check();
        for (int v = 0; v < count; ++v) {
            before_.push_back(sets_.add(lists.predecessors[v]));
            for (int u : lists.predecessors[v]) successors[u].push_back(v);
        }
        std::vector<Ints> produced(count), consumed(count);
        for (std::size_t s = 0; s < lists.nbytes.size(); ++s) {
            for (int v : lists.producers[s]) produced[v].push_back(static_cast<int>(s));
            if (!lists.kept[s])
                for (int v : lists.consumers[s]) consumed[v].push_back(static_cast<int>(s));
            if (lists.producers[s].empty()) start_live += lists.nbytes[s];
        }
        const auto& read_by = reversed_ ? readers : lists.consumers;
        for (int v = 0; v < count; ++v) {
            Operator it;
            it.extra = extra(v);
            const auto add = [&](Bytes nbytes, const Ints& all) { terms_.push_back({nbytes, sets_.add(all, v)}); };
            it.first_shared = static_cast<std::int32_t>(terms_.size());
            for (int s : produced[v])
                if (lists.producers[s].size() == 1)
                    it.allocated += lists.nbytes[s];
                else
                    add(lists.nbytes[s], lists.producers[s]);
            it.first_read = static_cast<std::int32_t>(terms_.size());
            for (int s : consumed[v])
                if (lists.consumers[s].size() == 1)
                    it.freed += lists.nbytes[s];
                else
                    add(lists.nbytes[s], lists.consumers[s]);
            it.first_candidate = static_cast<std::int32_t>(terms_.size());
            for (std::size_t place = 0; place < lists.in_place[v].size(); ++place) {
                const int s = lists.in_place[v][place];
                add(lists.in_place_bytes[v][place], read_by[s]);
            }
            it.end = static_cast<std::int32_t>(terms_.size());
            operators_.push_back(it);
        }
    }

    static constexpr Bytes kMostBytes = Bytes{1} << 61;

    void check() const {
        const std::size_t storages = lists.nbytes.size();
        require_size("producers", lists.producers.size(), storages);
        require_size("consumers", lists.consumers.size(), storages);
        require_size("kept", lists.kept.size(), storages);
        require_size("in_place", lists.in_place.size(), lists.predecessors.size());
        require_size("in_place_bytes", lists.in_place_bytes.size(), lists.predecessors.size());
        if (!lists.extra.empty()) require_size("extra", lists.extra.size(), lists.predecessors.size());
        require_at_least<Bytes>("nbytes", lists.nbytes, 0);
        Bytes room = kMostBytes;
        for (const Bytes nbytes : lists.nbytes) {
            require(nbytes <= room, "nbytes: they sum to more than 2^61");
            room -= nbytes;
        }
        require(floor >= 0, "floor: ", floor, " bytes are less than nothing");
        for (int v = 0; v < count; ++v) {
            require_ascending("predecessors", lists.predecessors[v], v);  // so operators are in a topological order
            require_ascending("in_place", lists.in_place[v], static_cast<int>(storages));
            require_size("in_place_bytes", lists.in_place_bytes[v].size(), lists.in_place[v].size());
            for (std::size_t place = 0; place < lists.in_place[v].size(); ++place) {
                const Bytes taken = lists.in_place_bytes[v][place];
                require(taken >= 0 && taken <= lists.nbytes[lists.in_place[v][place]], "in_place_bytes: ", taken,
                        " is not from 0 to the size of storage ", lists.in_place[v][place]);
            }
        }
        for (std::size_t s = 0; s < storages; ++s) {
            require_ascending("producers", lists.producers[s], count);
            require_ascending("consumers", lists.consumers[s], count);
        }
    }
    static void require_ascending(const char* name, const Ints& list, int limit) {
        require_indices(name, list, limit);
        require(std::is_sorted(list.begin(), list.end(), std::less_equal<>()), name, ": they are not ascending");
    }
};

inline Bytes order_peak(const OrderProblem& problem, const Ints& steps) { return problem.peak(steps); }

}  // namespace downset
