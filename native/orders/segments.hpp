// Segments of operators, chains of them, and the order problem that has them for operators.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "orders/fixed_costs.hpp"
#include "orders/problem.hpp"

namespace downset {

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

using Chain = std::vector<Segment>;

// What leaves less runs first, by rising hills; then the rest, by falling hill above what it leaves.
inline auto rank(const Segment& segment) {
    const bool falls = segment.drop < 0;
    return std::tuple(!falls, falls ? segment.hill : segment.drop - segment.hill);
}

// Adds a segment at the end of a chain; `link` is told of the operators that now run one right after the other.
template <class Link>
void append(Chain& chain, Segment segment, Link link) {
    while (!chain.empty() && joins(chain.back(), segment)) {
        const Segment& before = chain.back();
        link(before.tail, segment.head);
        segment = {std::max(before.hill, before.drop + segment.hill), before.drop + segment.drop, before.head,
                   segment.tail, true};
        chain.pop_back();
    }
    chain.push_back(segment);
}

// Links of operators that run one right after the other, and what chains do with them.
class Links {
public:
    explicit Links(int count) : next_(count, -1) {}

    Ints operators(const Segment& segment) const {
        Ints members{segment.head};
        while (members.back() != segment.tail) members.push_back(next_[members.back()]);
        return members;
    }
    // One segment of operators in this order.
    Segment segment(Bytes hill, Bytes drop, const Ints& operators) {
        for (std::size_t place = 1; place < operators.size(); ++place) next_[operators[place - 1]] = operators[place];
        return {hill, drop, operators.front(), operators.back(), true};
    }
    void append(Chain& chain, const Segment& segment) {
        downset::append(chain, segment, [&](int tail, int head) { next_[tail] = head; });
    }
    // Two chains of fixed segments side by side.
    Chain merged(const Chain& one, const Chain& other) {
        Chain sorted, chain;
        sorted.reserve(one.size() + other.size());
        std::merge(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(sorted),
                   [&](const Segment& left, const Segment& right) { return rank(left) < rank(right); });
        for (const Segment& segment : sorted) append(chain, segment);
        return chain;
    }

private:
    Ints next_;  // by operator: the one after it in its segment
};

// Makes order problems of segments: of all, or of those of a part alone.
class SegmentProblems {
public:
    SegmentProblems(const OrderProblem& problem, const FixedCosts& fixed, const Links& links)
        : problem_(problem), fixed_(fixed), links_(links), touching_(problem.count), part_of_(problem.count, -1) {
        const auto& lists = problem.lists;
        for (std::size_t s = 0; s < lists.nbytes.size(); ++s) {
            for (const int v : makers(s)) touching_[v].push_back(static_cast<int>(s));
            for (const int v : readers(s)) touching_[v].push_back(static_cast<int>(s));
            if (makers(s).empty() && readers(s).empty()) always_ += lists.nbytes[s];
        }
    }

    // The problem whose operators are these segments, in a topological order with these predecessors. Storages that
    // other segments make are there from the start, and those that others read stay. Nothing where a storage has
    // some of its makers or readers among these segments and some elsewhere, so that bytes do not add up.
    std::optional<OrderProblem> of(const Chain& segments, std::vector<Ints> predecessors) {
        const auto& lists = problem_.lists;
        Ints storages, members;
        for (std::size_t part = 0; part < segments.size(); ++part)
            for (const int v : links_.operators(segments[part])) {
                part_of_[v] = static_cast<int>(part);
                members.push_back(v);
                storages.insert(storages.end(), touching_[v].begin(), touching_[v].end());
            }
        std::sort(storages.begin(), storages.end());
        storages.erase(std::unique(storages.begin(), storages.end()), storages.end());
        OrderProblem::Lists parts;
        parts.predecessors = std::move(predecessors);
        parts.in_place.resize(segments.size());
        parts.in_place_bytes.resize(segments.size());
        parts.extra.assign(segments.size(), 0);
        std::vector<Bytes> allocated(segments.size(), 0);
        bool adds_up = true;
        std::vector<std::pair<int, int>> place;  // (storage, its number here), ascending
        for (const int s : storages) {
            bool foreign = false, read_elsewhere = lists.kept[s];
            Ints made_by = parts_of(makers(s), foreign), read_by = parts_of(readers(s), read_elsewhere);
            adds_up =
                adds_up && !(foreign && !made_by.empty()) && (lists.kept[s] || !(read_elsewhere && !read_by.empty()));
            if (made_by.empty() && read_by.empty()) continue;
            const bool within = made_by == read_by && made_by.size() == 1 && !read_elsewhere;
            if (within && segments[made_by[0]].head != segments[made_by[0]].tail) continue;  // of one segment alone
            // The makers of a storage are all fixed or none: an open one gets fixed makers where a part with all of
            // them becomes a chain. The first of that chain allocates.
            if (!made_by.empty() && segments[made_by.front()].fixed) allocated[made_by.front()] += lists.nbytes[s];
            place.emplace_back(s, static_cast<int>(parts.nbytes.size()));
            parts.nbytes.push_back(lists.nbytes[s]);
            parts.kept.push_back(read_elsewhere);
            parts.consumers.push_back(read_by.empty() ? made_by : std::move(read_by));
            parts.producers.push_back(std::move(made_by));
        }
        parts.nbytes.push_back(always_);
        parts.kept.push_back(true);
        parts.producers.emplace_back();
        parts.consumers.emplace_back();
        for (std::size_t part = 0; part < segments.size(); ++part) {
            if (segments[part].fixed)
                parts.extra[part] = segments[part].hill - allocated[part];
            else
                take_over(segments[part].head, static_cast<int>(part), place, parts);
        }
        for (const int v : members) part_of_[v] = -1;
        if (!adds_up) return {};
        return OrderProblem(std::move(parts), problem_.floor);
    }

private:
    const OrderProblem& problem_;
    const FixedCosts& fixed_;
    const Links& links_;
    std::vector<Ints> touching_;  // by operator: the storages that it may allocate or free
    Ints part_of_;
    Bytes always_ = 0;  // of storages that no operator makes or reads

    Ints makers(std::size_t s) const {
        const int by = fixed_.allocator[s];
        return by == FixedCosts::kOpen ? problem_.lists.producers[s] : by >= 0 ? Ints{by} : Ints{};
    }
    Ints readers(std::size_t s) const {
        if (problem_.lists.kept[s]) return problem_.lists.consumers[s];
        const int by = fixed_.last_reader[s];
        return by == FixedCosts::kOpen ? problem_.lists.consumers[s] : by >= 0 ? Ints{by} : Ints{};
    }
    // The segments of operators, ascending; `elsewhere`: some of these are in no segment.
    Ints parts_of(const Ints& operators, bool& elsewhere) const {
        Ints parts;
        for (const int v : operators)
            if (part_of_[v] >= 0)
                parts.push_back(part_of_[v]);
            else
                elsewhere = true;
        std::sort(parts.begin(), parts.end());
        parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
        return parts;
    }
    // What an operator that is not fixed may take over, of storages that it may be the last to read.
    void take_over(int v, int part, const std::vector<std::pair<int, int>>& place, OrderProblem::Lists& parts) const {
        const auto& lists = problem_.lists;
        for (std::size_t candidate = 0; candidate < lists.in_place[v].size(); ++candidate) {
            const int s = lists.in_place[v][candidate];
            if (fixed_.last_reader[s] >= 0 && fixed_.last_reader[s] != v) continue;
            const auto entry = std::lower_bound(place.begin(), place.end(), std::pair(s, 0));
            if (entry == place.end() || entry->first != s) continue;
            parts.in_place[part].push_back(entry->second);
            parts.in_place_bytes[part].push_back(lists.in_place_bytes[v][candidate]);
        }
    }
};

}  // namespace downset
