// Sweeps over the steps of records: the bounds of an arena, and the check of a placement. They know nothing of any
// planner. Oracle: tests/arenas/oracles/sweeps.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "check.hpp"

namespace downset {

// Pieces of lifetimes, [low, high), and the record that each is of; bytes by record.
class LivePieces {
public:
    std::vector<std::int64_t> low, high, record, nbytes;

    // All sums and differences then fit into 64 bits.
    void check() const {
        require_size("high", high.size(), low.size());
        require_size("record", record.size(), low.size());
        require_indices("record", record, nbytes.size());
        require_at_least<std::int64_t>("nbytes", nbytes, 0);
        std::int64_t room = kMost;
        for (const std::int64_t size : nbytes) {
            require(size < room, "nbytes: they come to more than 2^61");
            room -= size;
        }
        for (std::size_t k = 0; k < low.size(); ++k)
            require(low[k] < high[k], "low: [", low[k], ", ", high[k], ") is not an interval");
    }

    static constexpr std::int64_t kMost = std::int64_t{1} << 61;
    struct Event {
        std::int64_t step;
        bool comes;  // what ends at a step goes before what begins there
        std::int64_t record;
        auto operator<=>(const Event&) const = default;
    };
    std::vector<Event> events() const {
        std::vector<Event> all;
        all.reserve(2 * low.size());
        for (std::size_t k = 0; k < low.size(); ++k) {
            all.push_back({low[k], true, record[k]});
            all.push_back({high[k], false, record[k]});
        }
        std::sort(all.begin(), all.end());
        return all;
    }
};

// Steps at which the bytes that live change, ascending, and those bytes from each on.
inline std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> breadths(const LivePieces& pieces) {
    std::vector<std::int64_t> steps, totals;
    std::int64_t total = 0;
    for (const auto& [step, comes, record] : pieces.events()) {
        total += comes ? pieces.nbytes[record] : -pieces.nbytes[record];
        if (steps.empty() || steps.back() != step) {
            steps.push_back(step);
            totals.push_back(0);
        }
        totals.back() = total;
    }
    return {std::move(steps), std::move(totals)};
}

// The least end of records whose offsets are all multiples of `unit`, by the steps alone: of those that live together
// each but the topmost takes a whole multiple, and the topmost may be the one that leaves the most bytes unused.
inline std::int64_t padded_breadth(const LivePieces& pieces, std::int64_t unit) {
    const std::vector<std::int64_t>& nbytes = pieces.nbytes;
    require(unit > 0, "unit: ", unit, " is not above 0");
    require(unit <= LivePieces::kMost / std::max<std::int64_t>(1, nbytes.size()), "unit: ", unit, " is too large");
    const auto unused = [&](std::int64_t record) { return (unit - nbytes[record] % unit) % unit; };
    std::vector<char> live(nbytes.size(), 0);
    std::priority_queue<std::pair<std::int64_t, std::int64_t>> most_unused;  // of all that live, and of some others
    std::int64_t total = 0, most = 0;
    for (const auto& [step, comes, record] : pieces.events()) {
        const std::int64_t taken = nbytes[record] + unused(record);
        live[record] = comes;
        total += comes ? taken : -taken;
        if (!comes) continue;
        most_unused.emplace(unused(record), record);
        while (!live[most_unused.top().second]) most_unused.pop();
        most = std::max(most, total - most_unused.top().first);
    }
    return most;
}

// (step, record that holds the bytes, record that comes to live on some of them), in the order of the steps: `most` at
// the most, and at least one of every record that comes to live on bytes in use. What lives and does not collide is
// sorted by offset: what comes is compared with its neighbours there.
inline std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> collisions(
    const LivePieces& pieces, const std::vector<std::int64_t>& begins, std::int64_t most) {
    require_size("offsets", begins.size(), pieces.nbytes.size());
    for (const std::int64_t begin : begins)
        require(-LivePieces::kMost < begin && begin < LivePieces::kMost, "offsets: ", begin, " is not within 2^61");
    std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> collided;
    std::set<std::pair<std::int64_t, std::int64_t>> live;  // (offset, record)
    std::vector<char> apart(begins.size(), 1);
    const auto end = [&](std::int64_t index) { return begins[index] + pieces.nbytes[index]; };
    for (const auto& [step, comes, record] : pieces.events()) {
        if (pieces.nbytes[record] == 0) continue;
        const std::pair here{begins[record], record};
        if (!comes) {
            if (apart[record]) live.erase(here);
            continue;
        }
        const auto above = live.lower_bound(here);
        const auto meets = [&](std::int64_t other) {
            return begins[other] < end(record) && begins[record] < end(other);
        };
        std::int64_t hit = -1;
        if (above != live.end() && meets(above->second)) hit = above->second;
        if (above != live.begin() && meets(std::prev(above)->second)) hit = std::prev(above)->second;
        apart[record] = hit < 0;
        if (hit < 0) {
            live.insert(above, here);
        } else {
            if (static_cast<std::int64_t>(collided.size()) >= most) break;
            collided.emplace_back(step, hit, record);
        }
    }
    return collided;
}

}  // namespace downset
