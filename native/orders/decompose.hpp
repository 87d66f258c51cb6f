// Takes an order problem apart where that loses nothing: operators that may run in one fixed sequence become one
// segment, and what is left is a smaller problem with the same least peak.
//
// An operator is *fixed* where the bytes that it allocates, takes over and frees are the same in every order. The steps
// of a chain of fixed operators fall apart into segments, each with a hill (the most it holds above its start) and a
// drop (what it leaves). Stopping between two segments is of use only at a valley: `joins` states when it is not. Two
// chains of fixed operators between the same two points merge into one: first segments that leave less, by rising
// hills, then the others, by falling hill above what they leave (Abdel-Wahab and Kameda, 1978, for series-parallel
// precedences; Liu, 1987, for trees). Both hold whatever else runs in between, since nothing else changes what a fixed
// operator takes. A reader of a storage that several operators may be the last to read is not fixed: it stays a step of
// its own, in its place in the chain.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>
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
            const bool known = std::binary_search(readers.begin(), readers.end(), v) && last_of_all(readers);
            if (known && readers.back() != v) continue;  // another reader runs after v
            Bytes& most = known ? surely : perhaps;
            most = std::max(most, lists.in_place_bytes[v][place]);
        }
        costs[v].hill -= surely;
        if (perhaps > surely && !relaxed_) costs[v].fixed = false;
    }
};

// Operators that run one right after the other.
struct Segment {
    Bytes hill, drop;
    int head, tail;  // the first operator and the last
    bool fixed;
};

// Whether stopping between two segments of one chain never helps. If the stop lies no lower than the start and the
// second hill is no lower, the first may wait; if it lies no lower than the end and the first hill is no lower, the
// second may follow at once.
inline bool joins(const Segment& one, const Segment& other) {
    if (!one.fixed || !other.fixed) return false;
    const Bytes second = one.drop + other.hill;
    return (one.drop >= 0 && one.hill <= second) || (other.drop <= 0 && second <= one.hill);
}

// Series and parallel reduction of the graph whose arcs are operators, and precedences, until no rule applies.
// O(operators + precedences + segments moved).
class Decomposition {
public:
    Decomposition(const OrderProblem& problem, bool relaxed)
        : problem_(problem), fixed_(problem, relaxed), next_(problem.count, -1), ends_(2 * problem.count + 2) {
        build();
        while (!ready_.empty()) {
            const int node = ready_.back();
            ready_.pop_back();
            if (ends_[node].in == 1 && ends_[node].out == 1) series(node);
        }
        number();
    }

    // By segment, in a topological order: its operators as they run.
    const std::vector<Ints>& members() const { return members_; }
    // Whether every operator was taken for fixed.
    bool all_fixed() const { return all_fixed_; }

    // The problem whose operators are the segments.
    OrderProblem reduced() const {
        const auto& lists = problem_.lists;
        OrderProblem::Lists parts;
        const std::size_t count = members_.size();
        parts.predecessors = predecessors_;
        parts.in_place.resize(count);
        parts.in_place_bytes.resize(count);
        parts.extra.assign(count, 0);
        std::vector<Bytes> allocated(count, 0);
        Ints place(lists.nbytes.size(), -1);
        std::vector<std::unordered_map<std::int64_t, int>> pairs(1);
        for (std::size_t s = 0; s < lists.nbytes.size(); ++s) {
            Ints made_by = parts_of(fixed_.allocator[s], lists.producers[s]);
            Ints read_by = parts_of(lists.kept[s] ? FixedCosts::kOpen : fixed_.last_reader[s], lists.consumers[s]);
            if (made_by.size() == 1 && made_by == read_by && !lists.kept[s] &&
                members_[made_by.front()].size() > 1)
                continue;  // inside one segment
            if (fixed_.allocator[s] >= 0) allocated[made_by.front()] += lists.nbytes[s];
            place[s] = static_cast<int>(parts.nbytes.size());
            parts.nbytes.push_back(lists.nbytes[s]);
            parts.producers.push_back(std::move(made_by));
            parts.consumers.push_back(std::move(read_by));
            parts.kept.push_back(lists.kept[s]);
        }
        for (std::size_t part = 0; part < count; ++part) {
            if (segments_[part].fixed) {
                parts.extra[part] = segments_[part].hill - allocated[part];
                continue;
            }
            const int v = members_[part].front();
            std::vector<std::pair<int, Bytes>> taken;
            for (std::size_t at = 0; at < lists.in_place[v].size(); ++at)
                taken.emplace_back(place[lists.in_place[v][at]], lists.in_place_bytes[v][at]);
            for (const auto& [storage, nbytes] : taken) {
                parts.in_place[part].push_back(storage);
                parts.in_place_bytes[part].push_back(nbytes);
            }
        }
        return {std::move(parts), problem_.floor};
    }

private:
    struct Ends {
        int in = 0, out = 0;
        std::int64_t in_sum = 0, out_sum = 0;  // of the arcs' numbers: with one arc left, it
    };
    struct Arc {
        int from, to;
        std::vector<Segment> chain;
        bool fixed;  // every segment of the chain is
    };
    const OrderProblem& problem_;
    const FixedCosts fixed_;
    bool all_fixed_ = true;
    Ints next_;  // by operator: the one after it in its segment
    std::vector<Ends> ends_;
    std::vector<Arc> arcs_;
    std::unordered_map<std::uint64_t, int> between_, stuck_;  // arcs by their ends: fixed ones, and others
    Ints ready_, part_of_;
    std::vector<Ints> members_, predecessors_;
    std::vector<Segment> segments_;

    static std::uint64_t key(int from, int to) { return std::uint64_t(std::uint32_t(from)) << 32 | std::uint32_t(to); }

    void build() {
        const int source = 2 * problem_.count, sink = source + 1;
        arcs_.reserve(4 * static_cast<std::size_t>(problem_.count) + 2);
        between_.reserve(4 * static_cast<std::size_t>(problem_.count) + 2);
        for (int v = 0; v < problem_.count; ++v) {
            const auto& cost = fixed_.costs[v];
            all_fixed_ = all_fixed_ && cost.fixed;
            connect(2 * v, 2 * v + 1, {{cost.hill, cost.drop, v, v, cost.fixed}}, cost.fixed);
            for (const int u : problem_.lists.predecessors[v]) connect(2 * u + 1, 2 * v, {}, true);
            if (problem_.lists.predecessors[v].empty()) connect(source, 2 * v, {}, true);
            if (problem_.successors[v].empty()) connect(2 * v + 1, sink, {}, true);
        }
        ready_.clear();
        for (int node = source - 1; node >= 0; --node) ready_.push_back(node);
    }

    void connect(int from, int to, std::vector<Segment> chain, bool fixed) {
        const auto there = between_.find(key(from, to));
        if (there != between_.end()) {
            Arc& arc = arcs_[there->second];
            if (chain.empty()) return touch(from, to);
            if (arc.chain.empty() || fixed) {
                arc.chain = arc.chain.empty() ? std::move(chain) : merged(arc.chain, chain);
                arc.fixed = fixed;
                if (!fixed) {
                    stuck_[key(from, to)] = there->second;
                    between_.erase(there);
                }
                return touch(from, to);
            }
        }
        if (chain.empty() && stuck_.contains(key(from, to))) return touch(from, to);
        const int arc = static_cast<int>(arcs_.size());
        arcs_.push_back({from, to, std::move(chain), fixed});
        (fixed ? between_ : stuck_)[key(from, to)] = arc;
        ends_[from].out += 1;
        ends_[from].out_sum += arc;
        ends_[to].in += 1;
        ends_[to].in_sum += arc;
        touch(from, to);
    }
    void touch(int from, int to) {
        ready_.push_back(from);
        ready_.push_back(to);
    }
    // Takes an arc out, and its chain with it.
    std::vector<Segment> disconnect(int index) {
        Arc& arc = arcs_[index];
        auto& table = arc.fixed ? between_ : stuck_;
        const auto there = table.find(key(arc.from, arc.to));
        if (there != table.end() && there->second == index) table.erase(there);
        ends_[arc.from].out -= 1;
        ends_[arc.from].out_sum -= index;
        ends_[arc.to].in -= 1;
        ends_[arc.to].in_sum -= index;
        arc.from = -1;
        return std::move(arc.chain);
    }

    void series(int node) {
        const int first = static_cast<int>(ends_[node].in_sum), second = static_cast<int>(ends_[node].out_sum);
        const int from = arcs_[first].from, to = arcs_[second].to;
        const bool fixed = arcs_[first].fixed && arcs_[second].fixed;
        std::vector<Segment> chain = disconnect(first), rest = disconnect(second);
        if (chain.empty()) chain.swap(rest);
        for (const Segment& segment : rest) append(chain, segment);
        connect(from, to, std::move(chain), fixed);
    }
    void append(std::vector<Segment>& chain, Segment segment) {
        while (!chain.empty() && joins(chain.back(), segment)) {
            const Segment& before = chain.back();
            next_[before.tail] = segment.head;
            segment = {std::max(before.hill, before.drop + segment.hill), before.drop + segment.drop, before.head,
                       segment.tail, true};
            chain.pop_back();
        }
        chain.push_back(segment);
    }
    // What leaves less runs first, by rising hills; then the rest, by falling hill above what it leaves.
    std::vector<Segment> merged(const std::vector<Segment>& one, const std::vector<Segment>& other) {
        const auto rank = [](const Segment& segment) {
            const bool falls = segment.drop < 0;
            return std::tuple(!falls, falls ? segment.hill : segment.drop - segment.hill);
        };
        std::vector<Segment> sorted, chain;
        sorted.reserve(one.size() + other.size());
        std::merge(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(sorted),
                   [&](const Segment& left, const Segment& right) { return rank(left) < rank(right); });
        for (const Segment& segment : sorted) append(chain, segment);
        return chain;
    }

    // Numbers the segments that are left in a topological order, the one whose first operator comes first where several
    // may follow.
    void number() {
        std::vector<Segment> found;
        Ints place(problem_.count, -1);
        std::vector<Ints> before;
        for (const Arc& arc : arcs_) {
            if (arc.from < 0) continue;
            for (std::size_t at = 0; at < arc.chain.size(); ++at) {
                const int part = static_cast<int>(found.size());
                found.push_back(arc.chain[at]);
                before.push_back(at ? Ints{part - 1} : Ints{});
                for (int v = found[part].head; v >= 0; v = v == found[part].tail ? -1 : next_[v]) place[v] = part;
            }
        }
        const int count = static_cast<int>(found.size());
        std::vector<Ints> after(count);
        Ints waits(count, 0);
        for (int v = 0; v < problem_.count; ++v)
            for (const int u : problem_.lists.predecessors[v])
                if (place[u] != place[v]) before[place[v]].push_back(place[u]);
        for (int part = 0; part < count; ++part) {
            std::sort(before[part].begin(), before[part].end());
            before[part].erase(std::unique(before[part].begin(), before[part].end()), before[part].end());
            waits[part] = static_cast<int>(before[part].size());
            for (const int earlier : before[part]) after[earlier].push_back(part);
        }
        using Turn = std::pair<int, int>;  // first operator, segment
        std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
        for (int part = 0; part < count; ++part)
            if (!waits[part]) turns.emplace(found[part].head, part);
        Ints rank(count, -1);
        while (!turns.empty()) {
            const int part = turns.top().second;
            turns.pop();
            rank[part] = static_cast<int>(segments_.size());
            segments_.push_back(found[part]);
            for (const int later : after[part])
                if (--waits[later] == 0) turns.emplace(found[later].head, later);
        }
        members_.resize(count);
        predecessors_.resize(count);
        part_of_.assign(problem_.count, -1);
        for (int part = 0; part < count; ++part) {
            const Segment& segment = found[part];
            Ints& members = members_[rank[part]];
            for (int v = segment.head; v >= 0; v = v == segment.tail ? -1 : next_[v]) {
                members.push_back(v);
                part_of_[v] = rank[part];
            }
            for (const int earlier : before[part]) predecessors_[rank[part]].push_back(rank[earlier]);
            std::sort(predecessors_[rank[part]].begin(), predecessors_[rank[part]].end());
        }
    }

    // The segments of one operator, or of all of a list, ascending.
    Ints parts_of(int only, const Ints& all) const {
        if (only == FixedCosts::kNone) return {};
        if (only >= 0) return {part_of_[only]};
        Ints parts;
        for (const int v : all) parts.push_back(part_of_[v]);
        std::sort(parts.begin(), parts.end());
        parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
        return parts;
    }
};

// {the problem of the segments, the operators of each, whether every operator was taken for fixed}
inline std::tuple<OrderProblem, std::vector<Ints>, bool> decompose(const OrderProblem& problem, bool relaxed) {
    const Decomposition parts(problem, relaxed);
    return {parts.reduced(), parts.members(), parts.all_fixed()};
}

}  // namespace downset
