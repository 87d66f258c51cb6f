// Searches for an order of least peak memory over downsets. Oracle: tests/orders/oracles/best_first.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "check.hpp"
#include "deadline.hpp"
#include "orders/branches.hpp"
#include "orders/look_ahead.hpp"
#include "orders/problem.hpp"
#include "orders/state_table.hpp"
#include "outcome.hpp"

namespace downset {

// Best-first on the max-join, in slices: advance() goes on where it stopped. Every state open at or below `bound`,
// which must be a valid lower bound, counts as if it lay there, so a bound found elsewhere speeds it up.
class BestFirst {
public:
    BestFirst(OrderProblem problem, std::int64_t byte_limit)
        : problem_(std::move(problem)), byte_limit_(byte_limit), table_(problem_.words), look_ahead_(problem_),
          branches_(problem_), narrow_(problem_.narrow()), bound_(std::max(problem_.floor, problem_.start_live)),
          set_(no_bits(problem_.words)), ready_(set_) {
        reach(no_bits(problem_.words), problem_.start_ready(), false,
              {bound_, problem_.start_live, -1, 0, 0, 0, false, 0});
    }
    BestFirst(const BestFirst&) = delete;

    // Expands up to `states` more. kSolved: steps() is an order below `incumbent` and least of all; kImpossible: there
    // is none below the incumbent; kOutOfMemory: for good. bound() holds in any case. No incumbent is above
    // the one before.
    Outcome advance(Bytes bound, Bytes incumbent, double seconds, std::int64_t states) {
        const Deadline deadline(seconds);
        require(incumbent <= incumbent_, "incumbent: ", incumbent, " is above the ", incumbent_, " of before");
        incumbent_ = incumbent;  // what was not below it is gone
        if (outcome_ == Outcome::kSolved || outcome_ == Outcome::kOutOfMemory) return outcome_;
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
            if (expanded_ >= last || (expanded_ % 16 == 0 && deadline.passed())) return Outcome::kLimit;
            if (static_cast<std::int64_t>(table_.bytes() + open_.capacity() * sizeof(Entry)) > byte_limit_)
                return outcome_ = Outcome::kOutOfMemory;
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
        return Outcome::kImpossible;
    }

    Bytes bound() const { return bound_; }
    std::int64_t expanded() const { return expanded_; }
    Ints steps() const { return problem_.given_order(steps_); }

private:
    using State = StateTable::State;
    using Entry = std::tuple<Bytes, std::int32_t, std::int32_t>;  // peak, -size, state
    const OrderProblem problem_;
    std::int64_t byte_limit_, expanded_ = 0;
    StateTable table_;
    LookAhead look_ahead_;
    Branches branches_;
    std::vector<bool> narrow_;
    Bytes bound_, incumbent_ = std::numeric_limits<Bytes>::max();
    std::int32_t passed_ = 0;  // a downset of this size that every order passes was reached at least cost
    std::vector<Entry> open_;  // a heap, least first
    Outcome outcome_ = Outcome::kLimit;
    Ints steps_;
    DynamicBits set_, ready_;
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

    // `its_ready`: of `downset`, or, if it is `opening`, of `downset` without the operators that ran since its parent.
    bool reach(BitsView downset, BitsView its_ready, bool opening, State reached) {
        auto [index, fresh] = table_.find(downset, reached.hash);
        auto& state = table_.at(index);
        reached.peak = std::max(reached.peak, bound_);
        if (!fresh && (state.peak <= reached.peak || state.closed)) return false;
        if (fresh) {
            table_.ready(index).assign(its_ready);
            for (auto run = reached.first_run; opening && run < reached.first_run + reached.ran; ++run)
                problem_.open(downset, table_.ready(index), table_.runs[run]);
        }
        state = reached;
        push({reached.peak, -reached.size, index});
        return true;
    }

    void expand(std::int32_t index, Bytes incumbent) {
        table_.at(index).closed = true;
        const Bytes peak = bound_;
        Bytes live = table_.at(index).live;
        std::int32_t size = table_.at(index).size;
        set_.assign(table_.downset(index));
        ready_.assign(table_.ready(index));
        const auto first_run = static_cast<std::int32_t>(table_.runs.size());
        Word hash = table_.at(index).hash;
        const auto run = [&](int v, Bytes left) {
            live = left;
            hash ^= mixed(v);
            set_.add(v);
            problem_.open(set_, ready_, v);
            table_.runs.push_back(v);
            ++size;
        };
        // Commit: a ready operator that fits under this state's peak and does not raise live bytes runs at once.
        for (bool again = true; again;) {
            moves_.clear();
            again = ready_.any([&](int v) {
                const OrderProblem::Step next = problem_.step(set_, live, v);
                moves_.emplace_back(v, next);
                if (next.transient > peak || next.left > live) return false;
                run(v, next.left);
                return true;
            });
        }
        if (static_cast<std::int32_t>(table_.runs.size()) == first_run && look_ahead_.pays())
            for (int v : look_ahead_.find(set_, ready_, live, peak)) run(v, problem_.step(set_, live, v).left);
        const auto ran = static_cast<std::int32_t>(table_.runs.size()) - first_run;
        if (ran > 0) {
            if (!reach(set_, ready_, false, {peak, live, index, first_run, ran, size, false, hash}))
                table_.runs.resize(first_run);
            return;
        }
        branches_.find(set_, live, moves_);
        for (const auto& [step, first, count] : branches_.moves) {
            if (step.transient >= incumbent) continue;
            const auto begin = branches_.operators.begin() + first, end = begin + count;
            Word its_hash = hash;
            for (auto v = begin; v != end; ++v) {
                set_.add(*v);
                its_hash ^= mixed(*v);
            }
            table_.runs.insert(table_.runs.end(), begin, end);
            if (!reach(set_, ready_, true,
                       {step.transient, step.left, index, first_run_of(count), count, size + count, false, its_hash}))
                table_.runs.resize(table_.runs.size() - count);
            for (auto v = begin; v != end; ++v) set_.remove(*v);
        }
    }
    std::int32_t first_run_of(std::int32_t last) const { return static_cast<std::int32_t>(table_.runs.size()) - last; }

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
