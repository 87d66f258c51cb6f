// Which ready operators of a downset are to be tried next.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "orders/problem.hpp"
#include "orders/segments.hpp"

namespace downset {

// A branch of the downset X is the chain of operators that starts with one that is ready and of which each waits for
// the one before it alone. It ends where the next operator waits for others as well, or where there is none. What the
// branch allocates, takes over and frees is fixed from X on, if every other operator that touches these storages is in
// X, in the branch or the operator where it ends. Fixed branches with the same end merge into one chain of segments, as
// chains of fixed operators do (decompose.hpp): of their first segments, only the one that comes first in that chain
// need be tried, all its operators in a row. So weight gradients, which nothing reads, are not tried in all their
// orders.
class Branches {
public:
    // `count` operators from `first` of `operators`, in a row.
    struct Move {
        OrderProblem::Step step;
        std::int32_t first, count;
    };
    std::vector<Move> moves;
    std::vector<std::int32_t> operators;

    explicit Branches(const OrderProblem& problem) : problem_(problem), known_(no_bits(problem.words)) {}

    // Fills `moves` from `set`, after which `live` bytes are live; `steps`: of the ready operators.
    void find(BitsView set, Bytes live, const std::vector<std::pair<int, OrderProblem::Step>>& steps) {
        moves.clear();
        operators.clear();
        const bool looks = steps.size() > 1 && (looks_ < kFirstLooks || finds_ * kLooksAFind >= looks_);
        looks_ += looks;
        ends_.clear();
        for (const auto& [v, step] : steps) {
            const auto first = static_cast<std::int32_t>(operators.size());
            if (!looks || !merge(set, live, v)) {
                operators.resize(first);
                operators.push_back(v);
                moves.push_back({step, first, 1});
            }
        }
        for (const End& end : ends_) {
            moves.push_back(end.move);
            finds_ += end.branches > 1;
        }
    }

private:
    static constexpr std::int64_t kFirstLooks = 256, kLooksAFind = 16;
    static constexpr int kLongest = 32;  // operators of a branch; a longer one is taken for open
    struct End {
        int join;  // the operator where the branches end; -1: none
        int branches;
        Segment segment;  // that comes first of all
        Move move;
    };
    const OrderProblem& problem_;
    DynamicBits known_;
    std::vector<End> ends_;
    Chain chain_;
    std::int64_t looks_ = 0, finds_ = 0;

    // False where the branch that starts with v is not fixed. Its operators are left at the end of `operators`.
    bool merge(BitsView set, Bytes live, int v) {
        const auto first = static_cast<std::int32_t>(operators.size());
        known_.assign(set);
        int end = v;
        for (bool on = true; on;) {
            if (static_cast<std::int32_t>(operators.size()) - first >= kLongest) return false;
            known_.add(end);
            operators.push_back(end);
            const Ints& after = problem_.successors[end];
            if (after.size() > 1) return false;
            on = !after.empty() && problem_.opened(known_, after[0]);
            end = after.empty() ? -1 : after[0];
        }
        if (end >= 0) known_.add(end);
        for (auto place = first; place < static_cast<std::int32_t>(operators.size()); ++place)
            if (!problem_.determined(operators[place], known_)) return false;
        known_.assign(set);
        chain_.clear();
        Bytes now = live;
        for (auto place = first; place < static_cast<std::int32_t>(operators.size()); ++place) {
            const auto step = problem_.step(known_, now, operators[place]);
            append(chain_, {step.transient - now, step.left - now, place, place, true}, [](int, int) {});
            known_.add(operators[place]);
            now = step.left;
        }
        const Segment& segment = chain_.front();
        const Move move{{live + segment.hill, live + segment.drop}, first, segment.tail - first + 1};
        const auto same = std::find_if(ends_.begin(), ends_.end(), [&](const End& other) { return other.join == end; });
        if (same == ends_.end()) {
            ends_.push_back({end, 1, segment, move});
        } else {
            ++same->branches;
            if (rank(segment) < rank(same->segment)) same->segment = segment, same->move = move;
        }
        return true;
    }
};

}  // namespace downset
