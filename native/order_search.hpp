// Searches for an order of least peak memory over downsets. Specified by their Python twins of the same names in
// downset/orders: best_first (optimal.py) and beam (beam.py). Bytes are 64-bit; operators are 0 … count-1.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace downset {

using Bytes = std::int64_t;
using Ints = std::vector<int>;
using Clock = std::chrono::steady_clock;

// A set of operators as (word, bits) pairs: most sets here hold a handful of the thousands of operators there may be.
struct SparseSet {
    std::vector<std::pair<int, std::uint64_t>> words;

    explicit SparseSet(const Ints& members) {
        for (int member : members) {
            const int word = member / 64;
            if (words.empty() || words.back().first != word) words.emplace_back(word, 0);
            words.back().second |= std::uint64_t{1} << (member % 64);
        }
    }
    bool subset_of(const std::uint64_t* set) const {
        for (auto [word, bits] : words)
            if (bits & ~set[word]) return false;
        return true;
    }
    bool meets(const std::uint64_t* set) const {
        for (auto [word, bits] : words)
            if (bits & set[word]) return true;
        return false;
    }
};

struct OrderProblem {
    struct Storage {
        Bytes nbytes;
        SparseSet producers, consumers;
        bool kept;
    };
    int count = 0, words = 0;
    Bytes floor = 0, start_live = 0;
    std::vector<SparseSet> predecessors;
    std::vector<Ints> successors, produced, consumed, in_place;
    std::vector<Storage> storages;

    OrderProblem(const std::vector<Ints>& before, const std::vector<Bytes>& nbytes, const std::vector<Ints>& producers,
                 const std::vector<Ints>& consumers, const std::vector<bool>& kept, const std::vector<Ints>& candidates,
                 Bytes floor_bytes)
        : count(static_cast<int>(before.size())), words(std::max(1, (count + 63) / 64)), floor(floor_bytes),
          successors(before.size()), produced(before.size()), consumed(before.size()), in_place(candidates) {
        if (nbytes.size() != producers.size() || nbytes.size() != consumers.size() || nbytes.size() != kept.size() ||
            candidates.size() != before.size())
            throw std::invalid_argument("order problem: lists of different lengths");
        const auto check = [](const Ints& list, int limit) {
            for (std::size_t i = 0; i < list.size(); ++i)
                if (list[i] < 0 || list[i] >= limit || (i && list[i] <= list[i - 1]))
                    throw std::invalid_argument("order problem: an index list is out of range or not ascending");
        };
        for (int v = 0; v < count; ++v) {
            check(before[v], count);
            check(candidates[v], static_cast<int>(nbytes.size()));
            predecessors.emplace_back(before[v]);
            for (int u : before[v]) successors[u].push_back(v);
        }
        for (std::size_t s = 0; s < nbytes.size(); ++s) {
            check(producers[s], count);
            check(consumers[s], count);
            storages.push_back({nbytes[s], SparseSet(producers[s]), SparseSet(consumers[s]), kept[s]});
            for (int v : producers[s]) produced[v].push_back(static_cast<int>(s));
            if (!kept[s])
                for (int v : consumers[s]) consumed[v].push_back(static_cast<int>(s));
            if (producers[s].empty()) start_live += nbytes[s];
        }
    }

    // Executes v at `set` (which is left with v added): {transient, live after}.
    std::pair<Bytes, Bytes> step(std::uint64_t* set, Bytes live, int v) const {
        Bytes allocated = 0;
        for (int s : produced[v])
            if (storages[s].producers.words.size() == 1 && (storages[s].producers.words[0].second &
                                                           (storages[s].producers.words[0].second - 1)) == 0)
                allocated += storages[s].nbytes;
            else if (!storages[s].producers.meets(set))
                allocated += storages[s].nbytes;
        set[v / 64] |= std::uint64_t{1} << (v % 64);
        Bytes transient = live + allocated;
        for (int s : in_place[v])
            if (storages[s].consumers.subset_of(set)) {  // v was the only reader left
                transient -= storages[s].nbytes;
                break;
            }
        Bytes freed = 0;
        for (int s : consumed[v])
            if (storages[s].consumers.subset_of(set)) freed += storages[s].nbytes;
        return {transient, live + allocated - freed};
    }

    // After v completed `set`: the ready set with v gone and what it opened.
    void open(const std::uint64_t* set, std::uint64_t* ready, int v) const {
        ready[v / 64] &= ~(std::uint64_t{1} << (v % 64));
        for (int w : successors[v])
            if (predecessors[w].subset_of(set)) ready[w / 64] |= std::uint64_t{1} << (w % 64);
    }

    // narrow[k]: there is exactly one downset of k operators, because an operator is comparable with all others there.
    // Every order passes through it, so the problem falls apart at it.
    std::vector<bool> narrow() const {
        std::vector<std::uint64_t> above(static_cast<std::size_t>(count) * words, 0);
        std::vector<int> before(count, 0), after(count, 0);
        for (int v = 0; v < count; ++v) {
            for (int word = 0; word < words; ++word) before[v] += __builtin_popcountll(above[v * words + word]);
            for (int w : successors[v]) {
                if (w <= v) throw std::invalid_argument("order problem: operators are not in a topological order");
                for (int word = 0; word < words; ++word) above[w * words + word] |= above[v * words + word];
                above[w * words + v / 64] |= std::uint64_t{1} << (v % 64);
            }
        }
        for (int v = 0; v < count; ++v)
            for (int word = 0; word < words; ++word)
                for (std::uint64_t rest = above[v * words + word]; rest; rest &= rest - 1)
                    ++after[word * 64 + __builtin_ctzll(rest)];
        std::vector<bool> found(count + 1, false);
        for (int v = 0; v < count; ++v)
            if (before[v] + after[v] == count - 1) found[before[v]] = found[before[v] + 1] = true;
        return found;
    }

    std::vector<std::uint64_t> start_ready() const {
        std::vector<std::uint64_t> ready(words, 0);
        for (int v = 0; v < count; ++v)
            if (predecessors[v].words.empty()) ready[v / 64] |= std::uint64_t{1} << (v % 64);
        return ready;
    }
};

template <class Visit>  // Visit(v) -> bool: true stops
bool for_each_bit(const std::uint64_t* set, int words, Visit visit) {
    for (int word = 0; word < words; ++word)
        for (std::uint64_t rest = set[word]; rest; rest &= rest - 1)
            if (visit(word * 64 + __builtin_ctzll(rest))) return true;
    return false;
}

// All states ever reached, in flat arrays: downset words, ready words, and how each was come by. Found by hash.
class StateTable {
public:
    struct State {
        Bytes peak, live;
        std::int32_t parent, first_run;  // the operators run since the parent: runs[first_run … ), `ran` of them
        std::int32_t ran;
        std::int32_t size;
        bool closed;
    };
    std::vector<State> states;
    std::vector<std::int32_t> runs;

    explicit StateTable(int words) : words_(words), slots_(1 << 12, -1) {}
    std::uint64_t* downset(std::int32_t state) { return &sets_[static_cast<std::size_t>(state) * 2 * words_]; }
    std::uint64_t* ready(std::int32_t state) { return downset(state) + words_; }
    std::size_t bytes() const {
        return sets_.capacity() * 8 + states.capacity() * sizeof(State) + runs.capacity() * 4 + slots_.capacity() * 4;
    }

    // The state of this downset, made if new: {index, made}.
    std::pair<std::int32_t, bool> find(const std::uint64_t* set) {
        if (states.size() * 10 >= slots_.size() * 6) grow();
        std::size_t slot = hash(set) & (slots_.size() - 1);
        while (slots_[slot] >= 0) {
            if (std::equal(set, set + words_, downset(slots_[slot]))) return {slots_[slot], false};
            slot = (slot + 1) & (slots_.size() - 1);
        }
        const auto index = static_cast<std::int32_t>(states.size());
        slots_[slot] = index;
        states.push_back({std::numeric_limits<Bytes>::max(), 0, -1, 0, 0, 0, false});
        sets_.insert(sets_.end(), set, set + words_);
        sets_.resize(sets_.size() + words_);
        return {index, true};
    }

private:
    int words_;
    std::vector<std::int32_t> slots_;
    std::vector<std::uint64_t> sets_;

    std::size_t hash(const std::uint64_t* set) const {
        std::uint64_t h = 0x9e3779b97f4a7c15ull;
        for (int word = 0; word < words_; ++word) {
            h = (h ^ set[word]) * 0xff51afd7ed558ccdull;
            h ^= h >> 32;
        }
        return static_cast<std::size_t>(h * 0xc4ceb9fe1a85ec53ull >> 16);
    }
    void grow() {
        std::vector<std::int32_t> larger(slots_.size() * 2, -1);
        for (std::int32_t state = 0; state < static_cast<std::int32_t>(states.size()); ++state) {
            std::size_t slot = hash(downset(state)) & (larger.size() - 1);
            while (larger[slot] >= 0) slot = (slot + 1) & (larger.size() - 1);
            larger[slot] = state;
        }
        slots_.swap(larger);
    }
};

// Finds a short way through a valley: a set T of a few operators, reachable under `peak`, after which live bytes are no
// higher than at X and at every downset between X and T. Going to T first then loses nothing (docs: valley commit).
// Only operators opened by one ready operator are looked at, level by level; a few dozen downsets in all.
class LookAhead {
public:
    explicit LookAhead(const OrderProblem& problem) : problem_(problem), words_(problem.words) {}

    // Looking costs as much as expanding several states: worth it while every few looks find something.
    bool pays() const { return looks_ < 256 || finds_ * 6 >= looks_; }

    // The operators of T in order, or none.
    Ints find(const std::uint64_t* set, const std::uint64_t* ready, Bytes live, Bytes peak) {
        Ints way;
        int tried = 0;  // among very many ready operators a look at each would cost more than the search
        for_each_bit(ready, words_, [&](int v) {
            way = from(set, ready, live, peak, v);
            return !way.empty() || ++tried >= 64;
        });
        ++looks_;
        finds_ += way.empty() ? 0 : 1;
        return way;
    }

private:
    static constexpr int kNodes = 48;
    std::int64_t looks_ = 0, finds_ = 0;
    struct Node {
        Bytes live;
        int parent, ran;
        bool reachable;
    };
    const OrderProblem& problem_;
    int words_;
    std::vector<Node> nodes_;
    std::vector<std::uint64_t> sets_, ready_;
    std::vector<std::uint64_t> trial_, opened_;

    Ints from(const std::uint64_t* set, const std::uint64_t* ready, Bytes live, Bytes peak, int first) {
        nodes_.assign(1, {live, -1, -1, true});
        sets_.assign(set, set + words_);
        ready_.assign(words_, 0);
        ready_[first / 64] |= std::uint64_t{1} << (first % 64);
        trial_.resize(words_);
        opened_.resize(words_);
        Bytes lowest = live;
        int level_start = 0;
        while (level_start < static_cast<int>(nodes_.size())) {
            const int level_end = static_cast<int>(nodes_.size());
            for (int at = level_start; at < level_end; ++at) {
                const std::vector<std::uint64_t> local(ready_.begin() + static_cast<std::ptrdiff_t>(at) * words_,
                                                       ready_.begin() + static_cast<std::ptrdiff_t>(at + 1) * words_);
                const bool full = for_each_bit(local.data(), words_, [&](int v) { return grow(ready, local, peak, at, v, level_end); });
                if (full) return {};
            }
            int best = -1;
            for (int at = level_end; at < static_cast<int>(nodes_.size()); ++at)
                if (nodes_[at].reachable && nodes_[at].live <= lowest && (best < 0 || nodes_[at].live < nodes_[best].live))
                    best = at;
            // Another of the same size may lie lower without being reachable; it is no subset of this one.
            if (best >= 0) {
                Ints way;
                for (int at = best; nodes_[at].parent >= 0; at = nodes_[at].parent) way.push_back(nodes_[at].ran);
                std::reverse(way.begin(), way.end());
                return way;
            }
            for (int at = level_end; at < static_cast<int>(nodes_.size()); ++at) lowest = std::min(lowest, nodes_[at].live);
            level_start = level_end;
        }
        return {};
    }

    // Adds the downset after v at node `at`; true when there is no room left.
    bool grow(const std::uint64_t* outer_ready, const std::vector<std::uint64_t>& local, Bytes peak, int at, int v,
              int level_end) {
        std::copy_n(sets_.begin() + static_cast<std::ptrdiff_t>(at) * words_, words_, trial_.begin());
        const auto [transient, left] = problem_.step(trial_.data(), nodes_[at].live, v);
        const bool reachable = nodes_[at].reachable && transient <= peak;
        for (int known = level_end; known < static_cast<int>(nodes_.size()); ++known)
            if (std::equal(trial_.begin(), trial_.end(), sets_.begin() + static_cast<std::ptrdiff_t>(known) * words_)) {
                if (reachable && !nodes_[known].reachable) nodes_[known] = {left, at, v, true};
                return false;
            }
        if (static_cast<int>(nodes_.size()) >= kNodes) return true;
        std::copy(local.begin(), local.end(), opened_.begin());
        problem_.open(trial_.data(), opened_.data(), v);
        for (int word = 0; word < words_; ++word) opened_[word] &= ~outer_ready[word] | local[word];
        nodes_.push_back({left, at, v, reachable});
        sets_.insert(sets_.end(), trial_.begin(), trial_.end());
        ready_.insert(ready_.end(), opened_.begin(), opened_.end());
        return false;
    }
};

struct OrderResult {
    Ints steps;  // empty: none better than the incumbent
    Bytes bound;
    std::int64_t states;
};

// Best-first on the max-join. Returns an order of peak < incumbent that is proven least, or none and a bound on every
// order: bound == incumbent proves the incumbent least. `floor` must be a valid lower bound.
inline OrderResult best_first(const OrderProblem& problem, Bytes incumbent, double seconds, std::int64_t state_limit,
                              std::int64_t byte_limit) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
    const int words = problem.words;
    StateTable table(words);
    using Entry = std::tuple<Bytes, std::int32_t, std::int32_t>;  // peak, -size, state
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    std::vector<std::uint64_t> set(words, 0), ready = problem.start_ready(), trial(words), opened(words);

    const auto reach = [&](const std::uint64_t* downset, const std::uint64_t* its_ready, Bytes peak, Bytes live,
                           std::int32_t parent, std::int32_t first_run, std::int32_t ran, std::int32_t size) {
        auto [index, made] = table.find(downset);
        auto& state = table.states[index];
        if (!made && state.peak <= peak) return false;
        if (made) std::copy(its_ready, its_ready + words, table.ready(index));
        state = {peak, live, parent, first_run, ran, size, false};
        open.emplace(peak, -size, index);
        return true;
    };
    reach(set.data(), ready.data(), std::max(problem.floor, problem.start_live), problem.start_live, -1, 0, 0, 0);

    std::int64_t expanded = 0;
    LookAhead look_ahead(problem);
    const std::vector<bool> narrow = problem.narrow();
    std::int32_t passed = 0;  // a downset of this size that every order passes was reached at least cost
    while (!open.empty()) {
        const auto [peak, minus_size, index] = open.top();
        open.pop();
        if (table.states[index].closed || table.states[index].peak < peak || -minus_size < passed) continue;
        if (narrow[-minus_size]) passed = -minus_size;
        if (peak >= incumbent) return {{}, incumbent, expanded};
        if (expanded >= state_limit || Clock::now() > deadline ||
            (expanded % 64 == 0 && static_cast<std::int64_t>(table.bytes() + open.size() * sizeof(Entry)) > byte_limit))
            return {{}, peak, expanded};
        table.states[index].closed = true;
        ++expanded;
        if (table.states[index].size == problem.count) {
            Ints steps;
            for (std::int32_t at = index; at >= 0; at = table.states[at].parent)
                for (std::int32_t run = table.states[at].ran; run-- > 0;)
                    steps.push_back(table.runs[table.states[at].first_run + run]);
            std::reverse(steps.begin(), steps.end());
            return {steps, peak, expanded};
        }
        Bytes live = table.states[index].live;
        std::copy_n(table.downset(index), words, set.begin());
        std::copy_n(table.ready(index), words, ready.begin());
        std::int32_t size = table.states[index].size;

        // Commit: a ready operator that fits under this state's peak and does not raise live bytes runs at once.
        const auto first_run = static_cast<std::int32_t>(table.runs.size());
        bool again = true;
        while (again) {
            again = for_each_bit(ready.data(), words, [&](int v) {
                std::copy(set.begin(), set.end(), trial.begin());
                const auto [transient, left] = problem.step(trial.data(), live, v);
                if (transient > peak || left > live) return false;
                live = left;
                set.swap(trial);
                problem.open(set.data(), ready.data(), v);
                table.runs.push_back(v);
                ++size;
                return true;
            });
        }
        if (static_cast<std::int32_t>(table.runs.size()) == first_run && look_ahead.pays()) {
            for (int v : look_ahead.find(set.data(), ready.data(), live, peak)) {
                live = problem.step(set.data(), live, v).second;
                problem.open(set.data(), ready.data(), v);
                table.runs.push_back(v);
                ++size;
            }
        }
        const auto ran = static_cast<std::int32_t>(table.runs.size()) - first_run;
        if (ran > 0) {
            if (!reach(set.data(), ready.data(), peak, live, index, first_run, ran, size)) table.runs.resize(first_run);
            continue;
        }
        for_each_bit(ready.data(), words, [&](int v) {
            std::copy(set.begin(), set.end(), trial.begin());
            const auto [transient, left] = problem.step(trial.data(), live, v);
            const Bytes larger_peak = std::max(peak, transient);
            if (larger_peak >= incumbent) return false;
            std::copy(ready.begin(), ready.end(), opened.begin());
            problem.open(trial.data(), opened.data(), v);
            table.runs.push_back(v);
            if (!reach(trial.data(), opened.data(), larger_peak, left, index,
                       static_cast<std::int32_t>(table.runs.size()) - 1, 1, size + 1))
                table.runs.pop_back();
            return false;
        });
    }
    return {{}, incumbent, expanded};
}

// Level by level, keeping the `width` states of least (peak, live), first come first on ties; commits as best_first does.
inline OrderResult beam(const OrderProblem& problem, int width, double seconds) {
    const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
    const int words = problem.words;
    struct Node {
        Bytes peak, live;
        std::int32_t parent;
        int ran;
    };
    struct Front {
        std::int32_t node;
        std::vector<std::uint64_t> set, ready;
    };
    struct Move {
        Bytes peak, live;
        int from, operator_;
    };
    std::vector<Node> nodes{{std::max(problem.floor, problem.start_live), problem.start_live, -1, -1}};
    std::vector<Front> front{{0, std::vector<std::uint64_t>(words, 0), problem.start_ready()}};
    std::vector<std::uint64_t> trial(words);
    std::int64_t expanded = 0;
    for (int level = 0; level < problem.count; ++level) {
        std::vector<Move> moves;
        for (int from = 0; from < static_cast<int>(front.size()); ++from) {
            if (++expanded % 16 == 0 && Clock::now() > deadline) return {{}, problem.floor, expanded};
            const Node node = nodes[front[from].node];
            const std::size_t before = moves.size();
            const bool committed = for_each_bit(front[from].ready.data(), words, [&](int v) {
                std::copy(front[from].set.begin(), front[from].set.end(), trial.begin());
                const auto [transient, left] = problem.step(trial.data(), node.live, v);
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
        StateTable seen(words);
        std::vector<Front> following;
        for (const Move& move : moves) {
            if (static_cast<int>(following.size()) >= width) break;
            Front next{0, front[move.from].set, {}};
            next.set[move.operator_ / 64] |= std::uint64_t{1} << (move.operator_ % 64);
            if (!seen.find(next.set.data()).second) continue;
            next.ready = front[move.from].ready;
            problem.open(next.set.data(), next.ready.data(), move.operator_);
            next.node = static_cast<std::int32_t>(nodes.size());
            nodes.push_back({move.peak, move.live, front[move.from].node, move.operator_});
            following.push_back(std::move(next));
        }
        front.swap(following);
    }
    Ints steps;
    for (std::int32_t at = front.front().node; nodes[at].parent >= 0; at = nodes[at].parent)
        steps.push_back(nodes[at].ran);
    std::reverse(steps.begin(), steps.end());
    return {steps, problem.floor, expanded};
}

}  // namespace downset
