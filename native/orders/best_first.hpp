// Searches for an order of least peak memory over downsets, specified by the Python twin in
// downset/orders/best_first.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "orders/problem.hpp"

namespace downset {

// An array that grows without moving: a doubling copy would need half as much memory again.
template <class Item>
class Chunks {
public:
    explicit Chunks(int width) : width_(width) {}
    Item* at(std::size_t index) { return &chunks_[index / kRows][index % kRows * width_]; }
    const Item* at(std::size_t index) const { return &chunks_[index / kRows][index % kRows * width_]; }
    Item* add() {
        if (size_ % kRows == 0) chunks_.push_back(std::make_unique_for_overwrite<Item[]>(kRows * width_));
        return at(size_++);
    }
    std::size_t size() const { return size_; }
    std::size_t bytes() const { return chunks_.size() * kRows * width_ * sizeof(Item); }

private:
    static constexpr std::size_t kRows = 1024;
    std::size_t width_, size_ = 0;
    std::vector<std::unique_ptr<Item[]>> chunks_;
};

// All states ever reached, in flat arrays: downset words, ready words, and how each was come by. Found by hash.
class StateTable {
public:
    struct State {
        Bytes peak, live;
        std::int32_t parent, first_run;  // the operators run since the parent: runs[first_run … ), `ran` of them
        std::int32_t ran;
        std::int32_t size;
        bool closed;
        Word hash;
    };
    std::vector<std::int32_t> runs;

    explicit StateTable(int words) : words_(words), slots_(1 << 12, {-1, 0}), states_(1), sets_(2 * words) {}
    State& at(std::int32_t state) { return *states_.at(state); }
    const State& at(std::int32_t state) const { return *states_.at(state); }
    Word* downset(std::int32_t state) { return sets_.at(state); }
    Word* ready(std::int32_t state) { return downset(state) + words_; }
    std::size_t bytes() const {
        return sets_.bytes() + states_.bytes() + runs.capacity() * sizeof(runs[0]) + slots_.capacity() * sizeof(Slot);
    }

    // The state of this downset, made if new: {index, made}.
    std::pair<std::int32_t, bool> find(const Word* set, Word hash) {
        if (states_.size() * 10 >= slots_.size() * 6) grow();
        std::size_t slot = hash & (slots_.size() - 1);
        const auto tag = static_cast<std::uint32_t>(hash >> 32);
        for (; slots_[slot].state >= 0; slot = (slot + 1) & (slots_.size() - 1))
            if (slots_[slot].tag == tag && std::equal(set, set + words_, downset(slots_[slot].state)))
                return {slots_[slot].state, false};
        const auto index = static_cast<std::int32_t>(states_.size());
        slots_[slot] = {index, tag};
        *states_.add() = {std::numeric_limits<Bytes>::max(), 0, -1, 0, 0, 0, false, hash};
        std::copy_n(set, words_, sets_.add());
        return {index, true};
    }

private:
    struct Slot {
        std::int32_t state;
        std::uint32_t tag;
    };
    int words_;
    std::vector<Slot> slots_;
    Chunks<State> states_;
    Chunks<Word> sets_;

    void grow() {
        std::vector<Slot> larger(slots_.size() * 2, {-1, 0});
        for (std::int32_t state = 0; state < static_cast<std::int32_t>(states_.size()); ++state) {
            std::size_t slot = at(state).hash & (larger.size() - 1);
            while (larger[slot].state >= 0) slot = (slot + 1) & (larger.size() - 1);
            larger[slot] = {state, static_cast<std::uint32_t>(at(state).hash >> 32)};
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
    Ints find(const Word* set, const Word* ready, Bytes live, Bytes peak) {
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
        Word hash;  // of what ran since the start
        int parent, ran;
        bool reachable;
    };
    const OrderProblem& problem_;
    int words_;
    std::vector<Node> nodes_;
    std::vector<Word> sets_, ready_;
    std::vector<Word> trial_, opened_, local_;

    Ints from(const Word* set, const Word* ready, Bytes live, Bytes peak, int first) {
        nodes_.assign(1, {live, 0, -1, -1, true});
        sets_.assign(set, set + words_);
        ready_.assign(words_, 0);
        put(ready_.data(), first);
        trial_.resize(words_);
        opened_.resize(words_);
        Bytes lowest = live;
        int level_start = 0;
        while (level_start < static_cast<int>(nodes_.size())) {
            const int level_end = static_cast<int>(nodes_.size());
            for (int at = level_start; at < level_end; ++at) {
                local_.assign(ready_.begin() + static_cast<std::ptrdiff_t>(at) * words_,
                              ready_.begin() + static_cast<std::ptrdiff_t>(at + 1) * words_);
                const bool full =
                    for_each_bit(local_.data(), words_, [&](int v) { return grow(ready, peak, at, v, level_end); });
                if (full) return {};
            }
            int best = -1;
            for (int at = level_end; at < static_cast<int>(nodes_.size()); ++at)
                if (nodes_[at].reachable && nodes_[at].live <= lowest &&
                    (best < 0 || nodes_[at].live < nodes_[best].live))
                    best = at;
            // Another of the same size may lie lower without being reachable; it is no subset of this one.
            if (best >= 0) {
                Ints way;
                for (int at = best; nodes_[at].parent >= 0; at = nodes_[at].parent) way.push_back(nodes_[at].ran);
                std::reverse(way.begin(), way.end());
                return way;
            }
            for (int at = level_end; at < static_cast<int>(nodes_.size()); ++at)
                lowest = std::min(lowest, nodes_[at].live);
            level_start = level_end;
        }
        return {};
    }

    // Adds the downset after v at node `at`; true when there is no room left.
    bool grow(const Word* outer_ready, Bytes peak, int at, int v, int level_end) {
        const Word* set = &sets_[static_cast<std::size_t>(at) * words_];
        const auto [transient, left] = problem_.step(set, nodes_[at].live, v);
        const bool reachable = nodes_[at].reachable && transient <= peak;
        const Word hash = nodes_[at].hash ^ hash_of(v);
        const auto same = [&](int known) {
            const Word* other = &sets_[static_cast<std::size_t>(known) * words_];
            for (int word = 0; word < words_; ++word)
                if (other[word] != (set[word] | (word == v / 64 ? Word{1} << (v % 64) : 0))) return false;
            return true;
        };
        for (int known = level_end; known < static_cast<int>(nodes_.size()); ++known)
            if (nodes_[known].hash == hash && same(known)) {
                if (reachable && !nodes_[known].reachable) nodes_[known] = {left, hash, at, v, true};
                return false;
            }
        if (static_cast<int>(nodes_.size()) >= kNodes) return true;
        std::copy_n(set, words_, trial_.begin());
        put(trial_.data(), v);
        std::copy(local_.begin(), local_.end(), opened_.begin());
        problem_.open(trial_.data(), opened_.data(), v);
        for (int word = 0; word < words_; ++word) opened_[word] &= ~outer_ready[word] | local_[word];
        nodes_.push_back({left, hash, at, v, reachable});
        sets_.insert(sets_.end(), trial_.begin(), trial_.end());
        ready_.insert(ready_.end(), opened_.begin(), opened_.end());
        return false;
    }
};

// Best-first on the max-join, in slices: advance() goes on where it stopped. Every state open at or below `bound`,
// which must be a valid lower bound, counts as if it lay there, so a bound found elsewhere speeds it up.
class BestFirst {
public:
    enum class Outcome { kOpen, kSolved, kNone, kFull };

    BestFirst(OrderProblem problem, std::int64_t byte_limit)
        : problem_(std::move(problem)), words_(problem_.words), byte_limit_(byte_limit), table_(words_),
          look_ahead_(problem_), narrow_(problem_.narrow()), bound_(std::max(problem_.floor, problem_.start_live)),
          set_(words_), ready_(words_) {
        const std::vector<Word> nothing(words_, 0), ready = problem_.start_ready();
        reach(nothing.data(), ready.data(), -1, {bound_, problem_.start_live, -1, 0, 0, 0, false, 0});
    }
    BestFirst(const BestFirst&) = delete;

    // Expands up to `states` more. kSolved: steps() is an order below `incumbent` and least of all; kNone: there is
    // none below the incumbent; kFull: out of memory for good. bound() holds in any case.
    Outcome advance(Bytes bound, Bytes incumbent, double seconds, std::int64_t states) {
        const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
        if (outcome_ == Outcome::kSolved || outcome_ == Outcome::kFull) return outcome_;
        raise(bound);
        for (std::int64_t last = expanded_ + states; !open_.empty();) {
            const auto [peak, minus_size, index] = open_.front();
            if (peak >= incumbent) break;
            const auto& state = table_.at(index);
            if (state.closed || std::max(state.peak, bound_) < peak || -minus_size < passed_) {
                pop();
                continue;
            }
            raise(peak);
            if (expanded_ >= last || (expanded_ % 16 == 0 && Clock::now() > deadline)) return Outcome::kOpen;
            if (expanded_ % 64 == 0 &&
                static_cast<std::int64_t>(table_.bytes() + open_.capacity() * sizeof(Entry)) > byte_limit_)
                return outcome_ = Outcome::kFull;
            pop();
            if (narrow_[-minus_size]) passed_ = -minus_size;
            ++expanded_;
            if (state.size == problem_.count) {
                steps_ = way(index);
                return outcome_ = Outcome::kSolved;
            }
            expand(index, incumbent);
        }
        bound_ = std::max(bound_, incumbent);
        return Outcome::kNone;
    }

    Bytes bound() const { return bound_; }
    std::int64_t expanded() const { return expanded_; }
    Ints steps() const { return problem_.given_order(steps_); }

private:
    using State = StateTable::State;
    using Entry = std::tuple<Bytes, std::int32_t, std::int32_t>;  // peak, -size, state
    const OrderProblem problem_;
    int words_;
    std::int64_t byte_limit_, expanded_ = 0;
    StateTable table_;
    LookAhead look_ahead_;
    std::vector<bool> narrow_;
    Bytes bound_;
    std::int32_t passed_ = 0;  // a downset of this size that every order passes was reached at least cost
    std::vector<Entry> open_;  // a heap, least first
    Outcome outcome_ = Outcome::kOpen;
    Ints steps_;
    std::vector<Word> set_, ready_;
    std::vector<std::pair<int, OrderProblem::Step>> moves_;

    void push(Entry entry) {
        open_.push_back(entry);
        std::push_heap(open_.begin(), open_.end(), std::greater<>());
    }
    void pop() {
        std::pop_heap(open_.begin(), open_.end(), std::greater<>());
        open_.pop_back();
    }
    void raise(Bytes bound) {
        if (bound <= bound_) return;
        bound_ = bound;
        if (open_.empty() || std::get<0>(open_.front()) >= bound) return;
        for (Entry& entry : open_) std::get<0>(entry) = std::max(std::get<0>(entry), bound);
        std::make_heap(open_.begin(), open_.end(), std::greater<>());
    }

    // `its_ready`: of `downset`, or, unless `opening` is -1, of `downset` without that operator.
    bool reach(const Word* downset, const Word* its_ready, int opening, State found) {
        auto [index, made] = table_.find(downset, found.hash);
        auto& state = table_.at(index);
        found.peak = std::max(found.peak, bound_);
        if (!made && (state.peak <= found.peak || state.closed)) return false;
        if (made) {
            std::copy(its_ready, its_ready + words_, table_.ready(index));
            if (opening >= 0) problem_.open(downset, table_.ready(index), opening);
        }
        state = found;
        push({found.peak, -found.size, index});
        return true;
    }

    void expand(std::int32_t index, Bytes incumbent) {
        table_.at(index).closed = true;
        const Bytes peak = bound_;
        Bytes live = table_.at(index).live;
        std::int32_t size = table_.at(index).size;
        std::copy_n(table_.downset(index), words_, set_.begin());
        std::copy_n(table_.ready(index), words_, ready_.begin());
        const auto first_run = static_cast<std::int32_t>(table_.runs.size());
        Word hash = table_.at(index).hash;
        const auto run = [&](int v, Bytes left) {
            live = left;
            hash ^= hash_of(v);
            put(set_.data(), v);
            problem_.open(set_.data(), ready_.data(), v);
            table_.runs.push_back(v);
            ++size;
        };
        // Commit: a ready operator that fits under this state's peak and does not raise live bytes runs at once.
        for (bool again = true; again;) {
            moves_.clear();
            again = for_each_bit(ready_.data(), words_, [&](int v) {
                const OrderProblem::Step next = problem_.step(set_.data(), live, v);
                moves_.emplace_back(v, next);
                if (next.transient > peak || next.left > live) return false;
                run(v, next.left);
                return true;
            });
        }
        if (static_cast<std::int32_t>(table_.runs.size()) == first_run && look_ahead_.pays())
            for (int v : look_ahead_.find(set_.data(), ready_.data(), live, peak))
                run(v, problem_.step(set_.data(), live, v).left);
        const auto ran = static_cast<std::int32_t>(table_.runs.size()) - first_run;
        if (ran > 0) {
            if (!reach(set_.data(), ready_.data(), -1, {peak, live, index, first_run, ran, size, false, hash}))
                table_.runs.resize(first_run);
            return;
        }
        for (const auto& [v, next] : moves_) {
            if (next.transient >= incumbent) continue;
            put(set_.data(), v);
            const auto at = static_cast<std::int32_t>(table_.runs.size());
            table_.runs.push_back(v);
            if (!reach(set_.data(), ready_.data(), v,
                       {next.transient, next.left, index, at, 1, size + 1, false, hash ^ hash_of(v)}))
                table_.runs.pop_back();
            set_[v / 64] &= ~(Word{1} << (v % 64));
        }
    }

    Ints way(std::int32_t index) const {
        Ints steps;
        for (; index >= 0; index = table_.at(index).parent)
            for (std::int32_t run = table_.at(index).ran; run-- > 0;)
                steps.push_back(table_.runs[table_.at(index).first_run + run]);
        std::reverse(steps.begin(), steps.end());
        return steps;
    }
};

}  // namespace downset
