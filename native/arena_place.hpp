// Placement in one arena at scale: records one after the other into their smallest or lowest gap, and strip packing.
// Specified by `place_in_order` in downset/arenas/gaps.py and `fill_strip` in downset/arenas/strip_packing.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <queue>
#include <stdexcept>
#include <utility>
#include <vector>

namespace downset {

using Offset = std::int64_t;
using Pieces = std::vector<std::pair<std::int64_t, std::int64_t>>;

inline Offset round_up(Offset value, Offset alignment) { return (value + alignment - 1) / alignment * alignment; }

// What is placed, by ascending offset, in blocks short enough to insert into. A query walks all of it: the tests are
// two comparisons of neighbouring integers, which beats any tree until lifetimes are very short against the whole.
class PlacedList {
public:
    void insert(std::int64_t low, std::int64_t high, Offset begin, Offset end) {
        // The block to go into: the last one that begins at or below `begin`.
        auto block = std::upper_bound(firsts_.begin(), firsts_.end(), begin) - firsts_.begin();
        if (block > 0) --block;
        if (blocks_.empty()) {
            blocks_.emplace_back();
            firsts_.push_back(begin);
        }
        auto& into = blocks_[block];
        const auto at = std::upper_bound(into.begin.begin(), into.begin.end(), begin) - into.begin.begin();
        into.low.insert(into.low.begin() + at, low);
        into.high.insert(into.high.begin() + at, high);
        into.begin.insert(into.begin.begin() + at, begin);
        into.end.insert(into.end.begin() + at, end);
        into.first = std::min(into.first, low);
        into.last = std::max(into.last, high);
        firsts_[block] = into.begin.front();
        if (into.low.size() > most) split(block);
    }

    // Calls visit(begin, end) for what overlaps any of the pieces, by ascending offset, until it returns true.
    template <class Visit>
    void overlapping(const Pieces& pieces, Visit visit) const {
        for (const auto& block : blocks_) {
            if (pieces.back().second <= block.first || block.last <= pieces.front().first) continue;
            for (std::size_t i = 0; i < block.low.size(); ++i) {
                bool together = false;
                for (const auto& [low, high] : pieces) together |= (block.low[i] < high) & (low < block.high[i]);
                if (together && visit(block.begin[i], block.end[i])) return;
            }
        }
    }

private:
    static constexpr std::size_t most = 512;
    struct Block {
        std::vector<std::int64_t> low, high;
        std::vector<Offset> begin, end;
        std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = std::numeric_limits<std::int64_t>::min();
    };
    std::vector<Block> blocks_;
    std::vector<Offset> firsts_;

    void split(std::ptrdiff_t at) {
        Block right;
        auto& left = blocks_[at];
        const auto half = static_cast<std::ptrdiff_t>(left.low.size() / 2);
        const auto move_half = [half](auto& from, auto& to) {
            to.assign(from.begin() + half, from.end());
            from.resize(half);
        };
        move_half(left.low, right.low);
        move_half(left.high, right.high);
        move_half(left.begin, right.begin);
        move_half(left.end, right.end);
        for (auto* block : {&left, &right}) {
            block->first = *std::min_element(block->low.begin(), block->low.end());
            block->last = *std::max_element(block->high.begin(), block->high.end());
        }
        firsts_.insert(firsts_.begin() + at + 1, right.begin.front());
        blocks_.insert(blocks_.begin() + at + 1, std::move(right));
    }
};

inline std::vector<Offset> place_in_order(const std::vector<Offset>& nbytes, const std::vector<Offset>& alignment,
                                          const std::vector<Offset>& pinned, const std::vector<Pieces>& active,
                                          const std::vector<int>& sequence, bool lowest) {
    const auto count = nbytes.size();
    if (alignment.size() != count || pinned.size() != count || active.size() != count)
        throw std::invalid_argument("placement: lists of different lengths");
    std::vector<Offset> offsets = pinned;
    PlacedList placed;
    const auto put = [&](int record) {
        for (auto [low, high] : active[record])
            placed.insert(low, high, offsets[record], offsets[record] + nbytes[record]);
    };
    for (std::size_t i = 0; i < count; ++i)
        if (offsets[i] >= 0) put(static_cast<int>(i));
    for (int record : sequence) {
        if (offsets[record] >= 0) continue;
        Offset best = -1, best_room = 0, cursor = 0;
        placed.overlapping(active[record], [&](Offset begin, Offset end) {
            if (cursor < begin) {
                const Offset at = round_up(cursor, alignment[record]), room = begin - at;
                if (room >= nbytes[record] && (best < 0 || room < best_room)) {
                    best = at;
                    best_room = room;
                    if (lowest) return true;
                }
            }
            cursor = std::max(cursor, end);
            return false;
        });
        offsets[record] = best >= 0 ? best : round_up(cursor, alignment[record]);
        put(record);
    }
    return offsets;
}

// The longest unplaced record, the earliest among equals, that starts in [from, until) and stops by `until`.
class LongestFitting {
public:
    LongestFitting(const Pieces& lifetimes, const std::vector<char>& waiting) : lifetimes_(lifetimes) {
        for (std::size_t i = 0; i < lifetimes.size(); ++i)
            if (waiting[i]) by_start_.push_back(static_cast<int>(i));
        std::sort(by_start_.begin(), by_start_.end(), [&](int a, int b) {
            return std::pair(lifetimes[a].first, a) < std::pair(lifetimes[b].first, b);
        });
        while (leaves_ < by_start_.size()) leaves_ *= 2;
        longest_.assign(2 * leaves_, 0);
        first_stop_.assign(2 * leaves_, std::numeric_limits<std::int64_t>::max());
        for (std::size_t i = 0; i < by_start_.size(); ++i) {
            longest_[leaves_ + i] = length(by_start_[i]);
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
    int best_ = -1;

    std::int64_t length(int record) const { return lifetimes_[record].second - lifetimes_[record].first; }
    void pull(std::size_t node) {
        longest_[node] = std::max(longest_[2 * node], longest_[2 * node + 1]);
        first_stop_[node] = std::min(first_stop_[2 * node], first_stop_[2 * node + 1]);
    }
    // Branches that hold nothing longer, or nothing that stops in time, are not entered.
    void search(std::size_t node, std::size_t low, std::size_t high, std::size_t from, std::size_t to, std::int64_t until) {
        if (high <= from || to <= low || first_stop_[node] > until || longest_[node] == 0) return;
        if (best_ >= 0 && longest_[node] < length(best_)) return;
        if (node >= leaves_) {
            const int record = by_start_[low];
            if (best_ < 0 || length(record) > length(best_) || record < best_) {
                best_ = record;
                at_ = low;
            }
            return;
        }
        const auto middle = (low + high) / 2;
        search(2 * node, low, middle, from, to, until);
        search(2 * node + 1, middle, high, from, to, until);
    }
};

// Strip packing by best fit. Lifetimes are taken whole, gaps included.
inline std::vector<Offset> fill_strip(const std::vector<Offset>& nbytes, const std::vector<Offset>& alignment,
                                      const std::vector<Offset>& pinned, const Pieces& lifetimes) {
    const auto count = nbytes.size();
    if (alignment.size() != count || pinned.size() != count || lifetimes.size() != count)
        throw std::invalid_argument("strip: lists of different lengths");
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
    std::sort(pins.begin(), pins.end(), [&](int a, int b) { return std::pair(pinned[a], a) < std::pair(pinned[b], b); });
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
            Offset at = round_up(level, alignment[record]);
            for (int pin : pins) {
                if (lifetimes[pin].first >= last || first >= lifetimes[pin].second || at >= pinned[pin] + nbytes[pin])
                    continue;
                if (at + nbytes[record] <= pinned[pin]) break;
                at = round_up(pinned[pin] + nbytes[pin], alignment[record]);
            }
            offsets[record] = at;
            --left;
            set(start, first, level);
            set(first, last, at + nbytes[record]);
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
