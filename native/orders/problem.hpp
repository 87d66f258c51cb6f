// What the searches for an order see: operators 0 … count-1 in a topological order, and the storages they touch.
// Defined by downset/liveness.py; the reversed problem by downset/orders/search_space.py. Bytes are 64-bit.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace downset {

using Bytes = std::int64_t;
using Ints = std::vector<int>;
using Word = std::uint64_t;
using Clock = std::chrono::steady_clock;

inline void put(Word* set, int v) { set[v / 64] |= Word{1} << (v % 64); }
inline bool has(const Word* set, int v) { return set[v / 64] >> (v % 64) & 1; }

// A set's hash is the exclusive or of its members' (Zobrist): a step changes it in constant time.
inline Word hash_of(int v) {
    Word h = static_cast<Word>(v + 1) * 0x9e3779b97f4a7c15ull;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
    return h ^ (h >> 31);
}

template <class Visit>  // Visit(v) -> bool: true stops
bool for_each_bit(const Word* set, int words, Visit visit) {
    for (int word = 0; word < words; ++word)
        for (Word rest = set[word]; rest; rest &= rest - 1)
            if (visit(word * 64 + __builtin_ctzll(rest))) return true;
    return false;
}

// Sets of operators as (word, bits) pairs, all in one array: most hold a handful of the thousands there may be.
class SparseSets {
public:
    struct Set {
        std::int32_t begin, end;
    };
    Set add(const Ints& members, int without = -1) {
        const auto begin = static_cast<std::int32_t>(words_.size());
        for (int member : members) {
            if (member == without) continue;
            const int word = member / 64;
            if (static_cast<std::int32_t>(words_.size()) == begin || words_.back().first != word)
                words_.emplace_back(word, 0);
            words_.back().second |= Word{1} << (member % 64);
        }
        return {begin, static_cast<std::int32_t>(words_.size())};
    }
    bool subset(Set set, const Word* of) const {
        for (auto at = set.begin; at < set.end; ++at)
            if (words_[at].second & ~of[words_[at].first]) return false;
        return true;
    }
    bool meets(Set set, const Word* other) const {
        for (auto at = set.begin; at < set.end; ++at)
            if (words_[at].second & other[words_[at].first]) return true;
        return false;
    }

private:
    std::vector<std::pair<std::int32_t, Word>> words_;
};

class OrderProblem {
public:
    // As liveness.OrderProblem has it, masks as ascending lists.
    struct Lists {
        std::vector<Ints> predecessors;
        std::vector<Bytes> nbytes;
        std::vector<Ints> producers, consumers;
        std::vector<bool> kept;
        std::vector<Ints> in_place;
    };
    struct Step {
        Bytes transient, left;
    };
    int count = 0, words = 0;
    Bytes floor = 0, start_live = 0;
    Lists lists;
    std::vector<Ints> successors;

    OrderProblem(Lists given, Bytes floor_bytes) : OrderProblem(std::move(given), {}, floor_bytes, false) {}

    // The same orders read from their ends: operator v is count-1-v, a storage is allocated by the first of those that
    // read it and freed by the last that produces it. Every downset's complement has the same bytes live, and executing
    // v needs the same between the same two sets; so least peaks are equal, and orders are each other's reverse.
    OrderProblem reversed() const {
        Lists other;
        const auto turned = [&](const Ints& list) {
            Ints found;
            for (auto at = list.rbegin(); at != list.rend(); ++at) found.push_back(count - 1 - *at);
            return found;
        };
        for (int v = count - 1; v >= 0; --v) {
            other.predecessors.push_back(turned(successors[v]));
            other.in_place.push_back(lists.in_place[v]);
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
    Step step(const Word* set, Bytes live, int v) const {
        const Operator& it = operators_[v];
        Bytes allocated = it.allocated, freed = it.freed;
        for (auto at = it.first_shared; at < it.first_read; ++at)
            if (!sets_.meets(terms_[at].others, set)) allocated += terms_[at].nbytes;
        for (auto at = it.first_read; at < it.first_candidate; ++at)
            if (sets_.subset(terms_[at].others, set)) freed += terms_[at].nbytes;
        Bytes reused = 0;
        for (auto at = it.first_candidate; at < it.end; ++at)  // v reads it last of all
            if (reversed_ ? !sets_.meets(terms_[at].others, set) : sets_.subset(terms_[at].others, set)) {
                reused = terms_[at].nbytes;
                break;
            }
        return {live + allocated - reused, live + allocated - freed};
    }

    // After v completed `set`: the ready set with v gone and what it opened.
    void open(const Word* set, Word* ready, int v) const {
        ready[v / 64] &= ~(Word{1} << (v % 64));
        for (int w : successors[v])
            if (sets_.subset(before_[w], set)) put(ready, w);
    }
    std::vector<Word> start_ready() const {
        std::vector<Word> ready(words, 0);
        for (int v = 0; v < count; ++v)
            if (lists.predecessors[v].empty()) put(ready.data(), v);
        return ready;
    }

    Bytes peak(const Ints& steps) const {
        std::vector<Word> set(words, 0);
        Bytes live = start_live, peak = floor;
        for (int v : steps) {
            if (v < 0 || v >= count || has(set.data(), v)) throw std::invalid_argument("order problem: not an order");
            const Step next = step(set.data(), live, v);
            peak = std::max(peak, next.transient);
            live = next.left;
            put(set.data(), v);
        }
        return peak;
    }

    // By operator, `words` words each: all that must run before it, or after it.
    std::vector<Word> ancestors() const {
        std::vector<Word> above(static_cast<std::size_t>(count) * words, 0);
        for (int v = 0; v < count; ++v)
            for (int w : successors[v]) {
                for (int word = 0; word < words; ++word) above[w * words + word] |= above[v * words + word];
                put(&above[static_cast<std::size_t>(w) * words], v);
            }
        return above;
    }
    std::vector<Word> descendants() const {
        std::vector<Word> below(static_cast<std::size_t>(count) * words, 0);
        for (int v = count - 1; v >= 0; --v)
            for (int w : successors[v]) {
                for (int word = 0; word < words; ++word) below[v * words + word] |= below[w * words + word];
                put(&below[static_cast<std::size_t>(v) * words], w);
            }
        return below;
    }

    // narrow[k]: there is exactly one downset of k operators, because an operator is comparable with all others there.
    // Every order passes through it, so the problem falls apart at it.
    std::vector<bool> narrow() const {
        const std::vector<Word> above = ancestors(), below = descendants();
        std::vector<bool> found(count + 1, false);
        for (int v = 0; v < count; ++v) {
            int before = 0, after = 0;
            for (int word = 0; word < words; ++word) {
                before += __builtin_popcountll(above[v * words + word]);
                after += __builtin_popcountll(below[v * words + word]);
            }
            if (before + after == count - 1) found[before] = found[before + 1] = true;
        }
        return found;
    }

private:
    struct Operator {
        Bytes allocated = 0, freed = 0;                                               // by it in every order
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
        : count(static_cast<int>(given.predecessors.size())), words(std::max(1, (count + 63) / 64)), floor(floor_bytes),
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
            const auto add = [&](int s, const Ints& all) { terms_.push_back({lists.nbytes[s], sets_.add(all, v)}); };
            it.first_shared = static_cast<std::int32_t>(terms_.size());
            for (int s : produced[v])
                if (lists.producers[s].size() == 1)
                    it.allocated += lists.nbytes[s];
                else
                    add(s, lists.producers[s]);
            it.first_read = static_cast<std::int32_t>(terms_.size());
            for (int s : consumed[v])
                if (lists.consumers[s].size() == 1)
                    it.freed += lists.nbytes[s];
                else
                    add(s, lists.consumers[s]);
            it.first_candidate = static_cast<std::int32_t>(terms_.size());
            for (int s : lists.in_place[v]) add(s, read_by[s]);
            it.end = static_cast<std::int32_t>(terms_.size());
            operators_.push_back(it);
        }
    }

    void check() const {
        const std::size_t storages = lists.nbytes.size();
        if (storages != lists.producers.size() || storages != lists.consumers.size() || storages != lists.kept.size() ||
            lists.in_place.size() != lists.predecessors.size())
            throw std::invalid_argument("order problem: lists of different lengths");
        const auto ascending = [](const Ints& list, int limit, const char* fault) {
            for (std::size_t i = 0; i < list.size(); ++i)
                if (list[i] < 0 || list[i] >= limit || (i && list[i] <= list[i - 1]))
                    throw std::invalid_argument(fault);
        };
        const char* range = "order problem: an index list is out of range or not ascending";
        for (int v = 0; v < count; ++v) {
            ascending(lists.predecessors[v], v, "order problem: operators are not in a topological order");
            ascending(lists.in_place[v], static_cast<int>(storages), range);
        }
        for (std::size_t s = 0; s < storages; ++s) {
            ascending(lists.producers[s], count, range);
            ascending(lists.consumers[s], count, range);
        }
    }
};

}  // namespace downset
