// The accesses of an order, storage by storage, and what they cost under prices of fast memory by position.
// A storage arrives at an access in fast memory and changed (0), in fast memory with a valid copy in slow memory (1),
// or in slow memory (2). Oracle: tests/memories/oracles/machine.py.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "memories/problem.hpp"

namespace downset {

// Nine choices at most: where the operand is when it is accessed, and whether it stays in fast memory until the next.
struct AccessChoice {
    bool fast, keep;
};

class AccessChains {
public:
    enum Kind { kStart, kAccess, kEnd };
    struct Link {
        int storage, position, next;  // next: of the same storage, or -1
        bool write, first, keepable;
        Kind kind;
        Cost direct, load, store;
    };
    static constexpr int kChanged = 0, kCopied = 1, kSlow = 2;
    static constexpr Cost kNever = Cost{1} << 60;

    const MemoriesProblem& problem;
    Ints order;
    std::vector<Link> links;      // by position, in the order of the operator's accesses
    std::vector<int> first_link;  // by storage, or -1

    AccessChains(const MemoriesProblem& given, const Ints& steps)
        : problem(given), order(steps), first_link(given.storages, -1) {
        std::vector<int> last(problem.storages, -1);
        const auto link = [&](Link one) {
            const int index = static_cast<int>(links.size()), s = one.storage;
            one.first = last[s] < 0, one.next = -1, one.keepable = true;
            if (one.first)
                first_link[s] = index;
            else
                links[last[s]].next = index;
            last[s] = index;
            links.push_back(one);
        };
        const auto make = [&](int s, int position, bool write, Kind kind, Cost direct) {
            link({s, position, -1, write, true, true, kind, direct, problem.load[s], problem.store[s]});
        };
        for (int s = 0; s < problem.storages; ++s)
            if (problem.starts_fast(s)) make(s, -1, true, kStart, 0);
        for (int p = 0; p < problem.count; ++p)
            for (const auto& access : problem.accesses[order[p]])
                make(access.storage, p, access.write, kAccess, access.direct);
        for (int s = 0; s < problem.storages; ++s)
            if (problem.end[s] != End::kDead && last[s] >= 0) make(s, problem.count, false, kEnd, 0);
        for (auto& one : links) one.keepable = one.next >= 0 && fits_between(one);
    }

    // Choices at a link for a storage that arrives as `state`: calls visit(choice, cost, state after it).
    template <class Visit>
    void choices(const Link& one, int state, Visit visit) const {
        const bool more = one.next >= 0;
        if (one.kind == kStart) {
            if (more && one.keepable) visit(AccessChoice{true, true}, Cost{0}, +kChanged);
            visit(AccessChoice{false, false}, problem.begin[one.storage] == Begin::kFast ? one.store : 0, +kSlow);
            return;
        }
        if (one.kind == kEnd) {
            const End end = problem.end[one.storage];
            if (state == kSlow)
                visit(AccessChoice{false, false}, end == End::kFast ? one.load : 0, +kSlow);
            else
                visit(AccessChoice{true, false}, end == End::kSlow && state == kChanged ? one.store : 0, +kSlow);
            return;
        }
        const bool begins = one.first && (one.write || problem.begin[one.storage] == Begin::kMade);
        const auto in_fast = [&](Cost paid, int then) {
            if (more && one.keepable) visit(AccessChoice{true, true}, paid, then);
            visit(AccessChoice{true, false}, paid + (more && then == kChanged ? one.store : 0), +kSlow);
        };
        if (state != kSlow) return in_fast(0, one.write ? kChanged : state);
        if (one.direct >= 0) visit(AccessChoice{false, false}, one.direct, +kSlow);
        in_fast(begins ? 0 : one.load, one.write || begins ? kChanged : kCopied);
    }

    // By link: the least cost from there on by the state in which the storage arrives, if a byte of fast memory at
    // position q costs prices[q] (in units of 1 / scale); what a kept storage pays after a position counts there.
    template <class Number>
    void values(const std::vector<Number>& sums, Number scale, std::vector<std::array<Number, 3>>& arrive) const {
        arrive.assign(links.size(), {});
        for (int index = static_cast<int>(links.size()) - 1; index >= 0; --index)
            for (int state = 0; state < 3; ++state) {
                Number best = static_cast<Number>(kNever);
                choices(links[index], state, [&](AccessChoice choice, Cost cost, int then) {
                    best = std::min(best, priced(links[index], state, choice, cost, then, sums, scale, arrive));
                });
                arrive[index][state] = best;
            }
    }
    // The cost of one choice with all that follows. sums[q]: the prices of the positions before q.
    template <class Number>
    Number priced(const Link& one, int state, AccessChoice choice, Cost cost, int then, const std::vector<Number>& sums,
                  Number scale, const std::vector<std::array<Number, 3>>& arrive) const {
        Number total = static_cast<Number>(cost) * scale;
        const Number room = static_cast<Number>(problem.room[one.storage]);
        if (one.kind == kAccess && choice.fast && state == kSlow)
            total += room * (sums[one.position + 1] - sums[one.position]);
        if (choice.keep)
            total += room * (sums[std::min(links[one.next].position + 1, problem.count)] - sums[one.position + 1]);
        return one.next < 0 ? total : total + arrive[one.next][then];
    }

private:
    bool fits_between(const Link& one) const {
        const Bytes room = problem.room[one.storage];
        for (int p = one.position + 1; p < links[one.next].position; ++p)
            if (problem.need(order[p]) + room > problem.capacity) return false;
        const int ends[] = {one.position, links[one.next].position};
        for (const int p : ends) {
            if (p < 0 || p >= problem.count) continue;
            Bytes other = problem.need(order[p]);
            for (const auto& access : problem.accesses[order[p]])
                if (access.storage == one.storage && access.direct < 0) other -= room;
            if (other + room > problem.capacity) return false;
        }
        return true;
    }
};

}  // namespace downset
