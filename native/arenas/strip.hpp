// Strip packing by best fit: the lowest stretch of steps takes the longest record that lies within it.
// Oracle: tests/arenas/oracles/strip.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "arenas/records.hpp"

namespace downset {

// The longest unplaced record, the earliest among equals, that starts in [from, until) and stops by `until`.
class LongestFitting {
public:
    LongestFitting(const Pieces& lifetimes, const std::vector<char>& waiting) : lifetimes_(lifetimes) {
        for (std::size_t i = 0; i < lifetimes.size(); ++i)
            if (waiting[i]) by_start_.push_back(static_cast<int>(i));
        std::sort(by_start_.begin(), by_start_.end(),
                  [&](int a, int b) { return std::pair(lifetimes[a].first, a) < std::pair(lifetimes[b].first, b); });
        while (leaves_ < by_start_.size()) leaves_ *= 2;
        longest_.assign(2 * leaves_, 0);
        earliest_.assign(2 * leaves_, 0);
        first_stop_.assign(2 * leaves_, std::numeric_limits<std::int64_t>::max());
        for (std::size_t i = 0; i < by_start_.size(); ++i) {
            longest_[leaves_ + i] = length(by_start_[i]);
            earliest_[leaves_ + i] = by_start_[i];
            first_stop_[leaves_ + i] = lifetimes[by_start_[i]].second;
        }
        for (std::size_t node = leaves_ - 1; node > 0; --node) pull(node);
    }

    int take(std::int64_t from, std::int64_t until) {
        const auto before = [&](std::int64_t step) {
            return static_cast<std::size_t>(
                std::lower_bound(by_start_.begin(), by_start_.end(), step,
                                 [&](int record, std::int64_t value) { return lifetimes_[record].first < value; }) -
                by_start_.begin());
        };
        best_ = -1;
        at_ = 0;
        search(1, 0, leaves_, before(from), before(until), until);
        if (best_ < 0) return -1;
        std::size_t node = leaves_ + at_;
        longest_[node] = 0;
        first_stop_[node] = std::numeric_limits<std::int64_t>::max();
        while (node /= 2) pull(node);
        return best_;
    }

private:
    const Pieces& lifetimes_;
    std::vector<int> by_start_;
    std::size_t leaves_ = 1, at_ = 0;
    std::vector<std::int64_t> longest_, first_stop_;
    std::vector<int> earliest_;  // among the longest
    int best_ = -1;

    std::int64_t length(int record) const { return lifetimes_[record].second - lifetimes_[record].first; }
    void pull(std::size_t node) {
        const auto left = longest_[2 * node], right = longest_[2 * node + 1];
        longest_[node] = std::max(left, right);
        earliest_[node] = left == right  ? std::min(earliest_[2 * node], earliest_[2 * node + 1])
                          : left > right ? earliest_[2 * node]
                                         : earliest_[2 * node + 1];
        first_stop_[node] = std::min(first_stop_[2 * node], first_stop_[2 * node + 1]);
    }
    // Branches that hold nothing longer, or as long and earlier, or nothing that stops in time, are not entered.
    void search(std::size_t node, std::size_t low, std::size_t high, std::size_t from, std::size_t to,
                std::int64_t until) {
        if (high <= from || to <= low || first_stop_[node] > until || longest_[node] == 0) return;
        if (best_ >= 0 &&
            (longest_[node] < length(best_) || (longest_[node] == length(best_) && earliest_[node] > best_)))
            return;
        if (node >= leaves_) {
            const int record = by_start_[low];
            if (best_ < 0 || length(record) > length(best_) || record < best_) {
                best_ = record;
                at_ = low;
            }
            return;
        }
        const auto middle = (low + high) / 2;
        const bool right_first = longest_[2 * node] < longest_[2 * node + 1];
        if (right_first) search(2 * node + 1, middle, high, from, to, until);
        search(2 * node, low, middle, from, to, until);
        if (!right_first) search(2 * node + 1, middle, high, from, to, until);
    }
};

// Strip packing by best fit. Lifetimes are taken whole, gaps included.
inline std::vector<Offset> fill_strip(const Records& records) {
    const auto& [nbytes, alignment, pinned, active] = records;
    const auto count = nbytes.size();
    Pieces lifetimes;
    for (const Pieces& pieces : active) lifetimes.emplace_back(pieces.front().first, pieces.back().second);
    std::vector<Offset> offsets = pinned;
    std::vector<char> waiting(count, 0);
    std::vector<int> pins;
    std::size_t left = 0;
    auto begin = std::numeric_limits<std::int64_t>::max(), end = std::numeric_limits<std::int64_t>::min();
    for (std::size_t i = 0; i < count; ++i) {
        if (pinned[i] >= 0) {
            pins.push_back(static_cast<int>(i));
            continue;
        }
        waiting[i] = 1;
        ++left;
        begin = std::min(begin, lifetimes[i].first);
        end = std::max(end, lifetimes[i].second);
    }
    std::sort(pins.begin(), pins.end(),
              [&offset_of = pinned](int a, int b) { return std::pair(offset_of[a], a) < std::pair(offset_of[b], b); });
    LongestFitting fitting(lifetimes, waiting);

    struct Segment {
        std::int64_t stop;
        Offset level;
    };
    std::map<std::int64_t, Segment> segments;  // by where they begin
    using Entry = std::pair<Offset, std::int64_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    const auto set = [&](std::int64_t start, std::int64_t stop, Offset level) {
        if (start >= stop) return;
        segments[start] = {stop, level};
        queue.emplace(level, start);
    };
    if (left) set(begin, end, 0);
    while (left) {
        const auto [level, start] = queue.top();
        queue.pop();
        auto here = segments.find(start);
        if (here == segments.end() || here->second.level != level) continue;
        const auto stop = here->second.stop;
        const int record = fitting.take(start, stop);
        if (record >= 0) {
            const auto [first, last] = lifetimes[record];
            Offset offset = round_up(level, alignment[record]);
            for (int pin : pins) {
                if (lifetimes[pin].first >= last || first >= lifetimes[pin].second ||
                    offset >= pinned[pin] + nbytes[pin])
                    continue;
                if (offset + nbytes[record] <= pinned[pin]) break;
                offset = round_up(pinned[pin] + nbytes[pin], alignment[record]);
            }
            offsets[record] = offset;
            --left;
            set(start, first, level);
            set(first, last, offset + nbytes[record]);
            set(last, stop, level);
            continue;
        }
        // Nothing fits: lift the segment to its lower neighbour and join it with what is as high then.
        const auto before = here == segments.begin() ? segments.end() : std::prev(here);
        const auto after = std::next(here);
        Offset reached = std::numeric_limits<Offset>::max();
        if (before != segments.end()) reached = std::min(reached, before->second.level);
        if (after != segments.end()) reached = std::min(reached, after->second.level);
        auto joined_start = start, joined_stop = stop;
        if (after != segments.end() && after->second.level == reached) {
            joined_stop = after->second.stop;
            segments.erase(after);
        }
        if (before != segments.end() && before->second.level == reached) {
            joined_start = before->first;
            segments.erase(here);
        }
        set(joined_start, joined_stop, reached);
    }
    return offsets;
}

}  // namespace downset
