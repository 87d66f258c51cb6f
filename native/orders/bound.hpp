// A lower bound on the peak of every order: for each operator v the least that can be live while it runs, over all
// downsets at which it can run. Live bytes are submodular, so each is one minimum cut (a closure problem). The oracle
// in tests/orders/oracles/bounds.py enumerates the downsets.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "bits.hpp"
#include "check.hpp"
#include "deadline.hpp"
#include "orders/max_flow.hpp"
#include "orders/problem.hpp"

namespace downset {

// The closure problems of one order problem, an operator at a time.
class Closures {
public:
    explicit Closures(const OrderProblem& problem) : problem_(problem), place_(problem.count) {}

    // Operators that were free to stand before or after the one asked about, summed over all flows.
    std::int64_t members() const { return members_; }

    // The least that is live after any downset.
    Bytes least_live() { return least(-1, std::numeric_limits<Bytes>::min()); }

    // The least transient of v where `earlier` (an operator, or -1) ran before it, its largest in-place candidate taken
    // off; anything up to `enough` if it is no more.
    Bytes least(int v, Bytes enough, int earlier = -1) {
        const auto& lists = problem_.lists;
        const int members = sort_places(v, earlier);
        members_ += members;
        const Bytes reused = v < 0 ? 0 : problem_.most_reused(v);
        Bytes transient = v < 0 ? 0 : problem_.extra(v);
        items_.clear();
        for (std::size_t s = 0; s < lists.nbytes.size(); ++s) {
            const Seen written = seen(lists.producers[s]), read = seen(lists.consumers[s]);
            // v may run after all that read it, where another operator has allocated it
            const bool allocated = written.self || written.done || lists.producers[s].empty();
            if (!allocated && !written.free) continue;
            const bool stays = lists.kept[s] || read.self || read.later;
            if (allocated && !stays && !read.free) continue;  // freed by then
            transient += allocated ? lists.nbytes[s] : 0;
            if (!allocated || !stays) items_.push_back({s, !allocated, !stays});
        }
        if (transient - reused <= enough) return transient - reused;  // with only its ancestors before it
        const int source = members, sink = members + 1;
        int nodes = members + 2;
        for (const Item& item : items_) nodes += item.costs + item.pays;
        flow_.clear(nodes);
        nodes = members + 2;
        for (int u = 0; u < problem_.count; ++u)
            if (place_[u] >= 0)
                for (int w : problem_.successors[u])
                    if (place_[w] >= 0) flow_.add_edge(place_[w], place_[u], Flow::kInfinite);
        Bytes profits = 0;
        for (const Item& item : items_) {
            const Bytes nbytes = lists.nbytes[item.storage];
            if (item.costs) {
                flow_.add_edge(nodes, sink, nbytes);
                for (int u : lists.producers[item.storage])
                    if (place_[u] >= 0) flow_.add_edge(place_[u], nodes, Flow::kInfinite);
                ++nodes;
            }
            if (item.pays) {
                flow_.add_edge(source, nodes, nbytes);
                profits += nbytes;
                for (int u : lists.consumers[item.storage])
                    if (place_[u] >= 0) flow_.add_edge(nodes, place_[u], Flow::kInfinite);
                ++nodes;
            }
        }
        return transient - reused - (profits - flow_.run(source, sink));
    }

    // By operator: whether it may run before v and after it.
    std::vector<bool> unordered(int v) {
        members_ += sort_places(v, -1);
        std::vector<bool> others(problem_.count);
        for (int u = 0; u < problem_.count; ++u) others[u] = place_[u] >= 0;
        return others;
    }

private:
    enum Place { kDone = -1, kLater = -2, kSelf = -3 };  // else free: its node
    struct Seen {
        bool done, free, later, self;
    };
    struct Item {
        std::size_t storage;
        bool costs, pays;
    };
    const OrderProblem& problem_;
    std::vector<int> place_;
    Ints reached_;
    std::vector<Item> items_;
    Flow flow_;
    std::int64_t members_ = 0;

    int sort_places(int v, int earlier) {
        std::fill(place_.begin(), place_.end(), 0);
        if (v >= 0) {
            reach(v, problem_.lists.predecessors, kDone);
            reach(v, problem_.successors, kLater);
            place_[v] = kSelf;
        }
        if (earlier >= 0) {
            require(place_[earlier] == 0 || place_[earlier] == kDone, "operator ", earlier, " runs after ", v);
            place_[earlier] = kDone;
            reach(earlier, problem_.lists.predecessors, kDone);
        }
        int members = 0;
        for (int& place : place_)
            if (place == 0) place = members++;
        return members;
    }
    void reach(int v, const std::vector<Ints>& next, Place place) {
        reached_.assign(1, v);
        while (!reached_.empty()) {
            const int u = reached_.back();
            reached_.pop_back();
            for (int w : next[u])
                if (place_[w] == 0) {
                    place_[w] = place;
                    reached_.push_back(w);
                }
        }
    }
    Seen seen(const Ints& list) const {
        Seen all{};
        for (int u : list) {
            const int place = place_[u];
            all.done |= place == kDone, all.free |= place >= 0, all.later |= place == kLater,
                all.self |= place == kSelf;
        }
        return all;
    }
};

// By operator: what is live while it runs in an order.
inline std::vector<Bytes> transients(const OrderProblem& problem, const Ints& order) {
    DynamicBits set = no_bits(problem.words);
    Bytes live = problem.start_live;
    std::vector<Bytes> met(problem.count, 0);
    for (int v : order) {
        require(v >= 0 && v < problem.count && !set.has(v), "known order: ", v, " is not an operator, or comes twice");
        const auto next = problem.step(set, live, v);
        met[v] = next.transient;
        live = next.left;
        set.add(v);
    }
    return met;
}

// Valid whenever it stops: operators that the limits did not reach do not raise it. `known` is any order: where
// v's transient in it is within the bound there is nothing to ask. `member_limit`: of the operators in all flows.
inline Bytes closure_bound(const OrderProblem& problem, const Ints& order, double seconds, std::int64_t member_limit) {
    const Deadline deadline(seconds);
    const auto& lists = problem.lists;
    Bytes at_the_end = 0;  // what is never freed is live while the last operator runs, whichever that is
    std::vector<Bytes> touched(problem.count, 0);
    const std::vector<Bytes> met = transients(problem, order);
    for (std::size_t s = 0; s < lists.nbytes.size(); ++s) {
        at_the_end += lists.kept[s] ? lists.nbytes[s] : 0;
        for (int v : lists.consumers[s]) touched[v] += lists.nbytes[s];
        // Where several make it, all that read it may have run before one of these.
        if (!lists.kept[s] && lists.producers[s].size() != 1) continue;
        for (int v : lists.producers[s])
            if (!std::binary_search(lists.consumers[s].begin(), lists.consumers[s].end(), v))
                touched[v] += lists.nbytes[s];
    }
    Bytes bound = std::max({problem.floor, problem.start_live, at_the_end});
    // Cheap first: what v reads and writes is live while it runs. The flows then start where most is to be expected.
    std::vector<int> sequence(problem.count);
    for (int v = 0; v < problem.count; ++v) {
        sequence[v] = v;
        bound = std::max(bound, touched[v] + problem.extra(v) - problem.most_reused(v));
    }
    std::stable_sort(sequence.begin(), sequence.end(), [&](int one, int other) { return met[one] > met[other]; });
    Closures closures(problem);
    for (int v : sequence) {
        if (met[v] <= bound || closures.members() > member_limit || deadline.passed()) break;
        bound = std::max(bound, closures.least(v, bound));
    }
    return bound;
}

// A bound from pairs of operators that may run either way round: at the second of the two, all before both has run.
// At least `bound`, which must hold when given. `known` is any order: where the transient of the later of a pair in it
// is within the bound there is nothing to ask. Valid whenever it stops.
inline Bytes pair_bound(const OrderProblem& problem, const Ints& order, Bytes bound, double seconds,
                        std::int64_t member_limit) {
    const Deadline deadline(seconds);
    const std::vector<Bytes> met = transients(problem, order);
    std::vector<int> hot(problem.count);
    for (int step = 0; step < problem.count; ++step) hot[step] = step;
    std::stable_sort(hot.begin(), hot.end(), [&](int one, int other) { return met[order[one]] > met[order[other]]; });
    Closures closures(problem);
    for (int step : hot) {
        const int v = order[step];
        if (met[v] <= bound) break;
        const std::vector<bool> unordered = closures.unordered(v);
        for (int before = step - 1; before >= 0; --before) {
            if (met[v] <= bound || closures.members() > member_limit || deadline.passed()) break;
            const int u = order[before];
            if (!unordered[u]) continue;
            const Bytes one = closures.least(v, bound, u);
            if (one > bound) bound = std::max(bound, std::min(one, closures.least(u, bound, v)));
        }
    }
    return bound;
}

}  // namespace downset
