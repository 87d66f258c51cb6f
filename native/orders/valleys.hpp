// The order of a part that loses nothing wherever the part stands: a chain of stretches, each from a valley to a
// valley.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "orders/bound.hpp"
#include "orders/problem.hpp"
#include "orders/state_table.hpp"

namespace downset {

// Operators in order, the most that is live meanwhile and what is left, both above what is live before.
struct Stretch {
    Bytes hill, drop;
    Ints steps;
};

// From a set X the next valley is the smallest set Y above it that is no higher than X and is reached over the least
// hill. Then no set between X and Y lies lower than Y: the lowest of them could be reached over the same hill, because
// live bytes are submodular, and would be smaller. So whatever else runs meanwhile, an order may wait at X and then go
// to Y without a stop (valley commit). From the start this leads down to the least of all sets, and from the end, read
// backward, down to it as well. An order over all these valleys is therefore no worse than any other.
class Valleys {
public:
    // `state_limit`: of all searches together.
    Valleys(const OrderProblem& problem, std::int64_t state_limit)
        : problem_(problem), limit_(state_limit), states_(state_limit) {}

    std::int64_t expanded() const { return limit_ - states_; }

    // The chain, or nothing where the limit came first.
    std::optional<std::vector<Stretch>> chain() {
        const Bytes least = Closures(problem_).least_live();
        std::vector<Stretch> stretches;
        Bytes live = problem_.start_live;
        Ints done;
        while (live > least) {
            auto stretch = next(problem_, live, done, {});
            if (!stretch) return {};
            done.insert(done.end(), stretch->steps.begin(), stretch->steps.end());
            live += stretch->drop;
            stretches.push_back(std::move(*stretch));
        }
        const OrderProblem reversed = problem_.reversed();
        live = reversed.start_live;
        Ints turned;  // what runs in the end, by the reversed numbers
        std::vector<Stretch> backward;
        Ints early = done;
        for (int& v : early) v = problem_.count - 1 - v;
        while (turned.size() + done.size() < static_cast<std::size_t>(problem_.count)) {
            auto stretch = next(reversed, live, turned, early);
            if (!stretch) return {};
            turned.insert(turned.end(), stretch->steps.begin(), stretch->steps.end());
            live += stretch->drop;
            Stretch forward{stretch->hill - stretch->drop, -stretch->drop, reversed.given_order(stretch->steps)};
            backward.push_back(std::move(forward));
        }
        stretches.insert(stretches.end(), backward.rbegin(), backward.rend());
        return stretches;
    }

private:
    const OrderProblem& problem_;
    const std::int64_t limit_;
    std::int64_t states_;  // that may still be expanded

    // From where `done` has run and `live` bytes are live to the next valley, without the operators in `never`.
    std::optional<Stretch> next(const OrderProblem& problem, Bytes live, const Ints& done, const Ints& never) {
        using Entry = std::tuple<Bytes, std::int32_t, std::int32_t>;  // peak, size, state
        std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
        StateTable table(problem.words);
        DynamicBits here = no_bits(problem.words), ready = problem.start_ready(), opened = here;
        for (const int v : done) {
            here.add(v);
            problem.open(here, ready, v);
        }
        for (const int v : never) ready.remove(v);
        const auto start = table.find(here, 0).first;
        table.at(start) = {live, live, -1, 0, 0, 0, false, 0};
        table.ready(start).assign(ready);
        open.emplace(live, 0, start);
        while (!open.empty()) {
            const auto [peak, size, index] = open.top();
            open.pop();
            if (table.at(index).closed || table.at(index).peak < peak) continue;
            table.at(index).closed = true;
            if (size > 0 && table.at(index).live <= live) {
                Ints steps;
                for (auto state = index; table.at(state).parent >= 0; state = table.at(state).parent)
                    steps.push_back(table.runs[table.at(state).first_run]);
                std::reverse(steps.begin(), steps.end());
                return Stretch{peak - live, table.at(index).live - live, std::move(steps)};
            }
            if (--states_ < 0) return {};
            here.assign(table.downset(index));
            ready.assign(table.ready(index));
            const Bytes now = table.at(index).live;
            const Word hash = table.at(index).hash;
            ready.any([&](int v) {
                const auto step = problem.step(here, now, v);
                here.add(v);
                const auto [after, fresh] = table.find(here, hash ^ mixed(v));
                auto& state = table.at(after);
                const Bytes most = std::max(peak, step.transient);
                if (fresh || (!state.closed && most < state.peak)) {
                    if (fresh) {
                        opened.assign(ready);
                        problem.open(here, opened, v);
                        for (const int other : never) opened.remove(other);
                        table.ready(after).assign(opened);
                    }
                    const auto run = static_cast<std::int32_t>(table.runs.size());
                    table.runs.push_back(v);
                    state = {most, step.left, index, run, 1, size + 1, false, hash ^ mixed(v)};
                    open.emplace(most, size + 1, after);
                }
                here.remove(v);
                return false;
            });
        }
        return {};
    }
};

}  // namespace downset
