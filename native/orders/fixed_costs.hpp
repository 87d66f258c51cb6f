// Which operators take and free the same bytes in every order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "orders/problem.hpp"

namespace downset {

// What one operator takes and leaves, and whether it does so in every order.
class FixedCosts {
public:
    struct Cost {
        Bytes hill = 0, drop = 0;  // both relative to what is live before it
        bool fixed = true;
    };
    static constexpr int kNone = -1, kOpen = -2;
    std::vector<Cost> costs;
    Ints allocator, last_reader;  // by storage: an operator, kNone, or kOpen: it depends on the order

    // `relaxed`: takes the first producer and the last reader of the given order for fixed. What comes out is a guess.
    FixedCosts(const OrderProblem& problem, bool relaxed)
        : costs(problem.count), problem_(problem), relaxed_(relaxed), seen_(problem.count, 0),
          work_(std::int64_t{64} * problem.count + (std::int64_t{1} << 20)) {
        const auto& lists = problem.lists;
        const std::size_t storages = lists.nbytes.size();
        allocator.assign(storages, kNone);
        last_reader.assign(storages, kNone);
        for (std::size_t s = 0; s < storages; ++s) {
            const Ints &made_by = lists.producers[s], &read_by = lists.consumers[s];
            if (!made_by.empty()) allocator[s] = first_of_all(made_by) ? made_by.front() : kOpen;
            if (!lists.kept[s]) last_reader[s] = last_of_all(read_by) ? read_by.back() : kOpen;
            settle(allocator[s], made_by, lists.nbytes[s], 1);
            settle(last_reader[s], read_by, lists.nbytes[s], -1);
        }
        for (int v = 0; v < problem.count; ++v) take_over(v);
    }

private:
    const OrderProblem& problem_;
    const bool relaxed_;
    std::vector<int> seen_;  // by operator: the walk that met it last
    int walk_ = 0;
    std::int64_t work_;  // operators that walks may still visit; without any left the answer is "not fixed"

    void settle(int by, const Ints& all, Bytes nbytes, int sign) {
        if (by >= 0) {
            costs[by].hill += sign > 0 ? nbytes : 0;
            costs[by].drop += sign * nbytes;
        } else if (by == kOpen) {
            for (const int v : all) costs[v].fixed = false;
        }
    }
    bool first_of_all(const Ints& list) {
        return list.size() == 1 || relaxed_ || reaches(list.front(), list, problem_.successors);
    }
    bool last_of_all(const Ints& list) {
        return list.size() == 1 || relaxed_ || reaches(list.back(), list, problem_.lists.predecessors);
    }
    // Whether a walk along `next` from `start` meets all operators of the ascending list.
    bool reaches(int start, const Ints& list, const std::vector<Ints>& next) {
        ++walk_;
        Ints waiting{start};
        seen_[start] = walk_;
        while (!waiting.empty()) {
            const int v = waiting.back();
            waiting.pop_back();
            for (const int w : next[v])
                if (seen_[w] != walk_ && w >= list.front() && w <= list.back()) {
                    if (--work_ < 0) return false;
                    seen_[w] = walk_;
                    waiting.push_back(w);
                }
        }
        return std::all_of(list.begin(), list.end(), [&](int v) { return seen_[v] == walk_; });
    }
    // Of the storages of which v is the last reader it takes over the largest. Which that is must not depend on the
    // order.
    void take_over(int v) {
        const auto& lists = problem_.lists;
        Bytes surely = 0, perhaps = 0;
        for (std::size_t place = 0; place < lists.in_place[v].size(); ++place) {
            const Ints& readers = lists.consumers[lists.in_place[v][place]];
            const bool certain = std::binary_search(readers.begin(), readers.end(), v) && last_of_all(readers);
            if (certain && readers.back() != v) continue;  // another reader runs after v
            Bytes& most = certain ? surely : perhaps;
            most = std::max(most, lists.in_place_bytes[v][place]);
        }
        costs[v].hill -= surely;
        if (perhaps > surely && !relaxed_) costs[v].fixed = false;
    }
};

}  // namespace downset
