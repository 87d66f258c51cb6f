// Placement in one arena at scale: records one after the other into their smallest or lowest gap.
// Specified by `place_in_order` in downset/arenas/gaps.py.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace downset {

using Offset = std::int64_t;
using Pieces = std::vector<std::pair<std::int64_t, std::int64_t>>;

inline Offset round_up(Offset value, Offset alignment) { return (value + alignment - 1) / alignment * alignment; }

// Steps as their rank among all steps that matter: 32 bits, so that a register holds several.
class Ranks {
public:
    explicit Ranks(const std::vector<Pieces>& active) {
        for (const auto& pieces : active) {
            if (pieces.empty()) throw std::invalid_argument("placement: a record never lives");
            for (auto [low, high] : pieces) {
                if (low >= high) throw std::invalid_argument("placement: a lifetime is reversed");
                steps_.push_back(low);
                steps_.push_back(high);
            }
        }
        std::sort(steps_.begin(), steps_.end());
        steps_.erase(std::unique(steps_.begin(), steps_.end()), steps_.end());
    }
    std::int32_t count() const { return static_cast<std::int32_t>(steps_.size()); }
    std::int32_t operator()(std::int64_t step) const {
        return static_cast<std::int32_t>(std::lower_bound(steps_.begin(), steps_.end(), step) - steps_.begin());
    }

private:
    std::vector<std::int64_t> steps_;
};

// What is placed, by ascending offset, in blocks short enough to insert into. A query walks all of it: two comparisons
// of neighbouring integers, many at once, beat a tree while much of it lives at once.
class PlacedList {
public:
    using Ranked = std::vector<std::pair<std::int32_t, std::int32_t>>;

    void insert(std::int32_t low, std::int32_t high, Offset begin, Offset end) {
        // The block to go into: the last one that begins at or below `begin`.
        auto at = std::upper_bound(firsts_.begin(), firsts_.end(), begin) - firsts_.begin();
        if (at > 0) --at;
        if (blocks_.empty()) {
            blocks_.push_back(std::make_unique<Block>());
            firsts_.push_back(begin);
        }
        Block& into = *blocks_[at];
        const auto place =
            std::upper_bound(into.begin.begin(), into.begin.begin() + into.size, begin) - into.begin.begin();
        const auto make_room = [&](auto& list) {
            std::move_backward(list.begin() + place, list.begin() + into.size, list.begin() + into.size + 1);
        };
        make_room(into.low);
        make_room(into.high);
        make_room(into.begin);
        make_room(into.end);
        into.low[place] = low;
        into.high[place] = high;
        into.begin[place] = begin;
        into.end[place] = end;
        firsts_[at] = into.begin[0];
        if (++into.size == most) split(at);
    }

    // Calls visit(begin, end) for what overlaps any of the pieces, by ascending offset, until it returns true.
    template <class Visit>
    void overlapping(const Ranked& pieces, Visit visit) const {
        std::array<std::uint8_t, most> together;
        for (const auto& block : blocks_) {
            const std::int32_t *low = block->low.data(), *high = block->high.data();
            // Whole blocks, past `size` too, where low and high are equal and nothing overlaps: loops of fixed length.
            const auto [first_low, first_high] = pieces.front();
            for (int i = 0; i < most; ++i) together[i] = (low[i] < first_high) & (first_low < high[i]);
            for (std::size_t other = 1; other < pieces.size(); ++other) {
                const auto [other_low, other_high] = pieces[other];
                for (int i = 0; i < most; ++i) together[i] |= (low[i] < other_high) & (other_low < high[i]);
            }
            for (int first = 0; first < block->size; first += 64) {
                // Eight bytes of 0 or 1 to eight bits, eight times: then only what overlaps costs a step.
                std::uint64_t bits = 0;
                for (int eight = 0; eight < 8; ++eight) {
                    std::uint64_t bytes;
                    std::memcpy(&bytes, together.data() + first + 8 * eight, 8);
                    if constexpr (std::endian::native == std::endian::big) bytes = __builtin_bswap64(bytes);
                    bits |= (bytes * 0x0102040810204080ULL >> 56) << (8 * eight);
                }
                for (; bits; bits &= bits - 1) {
                    const int i = first + std::countr_zero(bits);
                    if (visit(block->begin[i], block->end[i])) return;
                }
            }
        }
    }

private:
    static constexpr int most = 256;
    struct Block {
        std::array<std::int32_t, most> low{}, high{};
        std::array<Offset, most> begin{}, end{};
        int size = 0;
    };
    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<Offset> firsts_;

    void split(std::ptrdiff_t at) {
        auto right = std::make_unique<Block>();
        Block& left = *blocks_[at];
        constexpr int half = most / 2;
        const auto move_half = [](auto& from, auto& to) {
            std::copy(from.begin() + half, from.end(), to.begin());
            std::fill(from.begin() + half, from.end(), 0);
        };
        move_half(left.low, right->low);
        move_half(left.high, right->high);
        move_half(left.begin, right->begin);
        move_half(left.end, right->end);
        left.size = half;
        right->size = most - half;
        firsts_.insert(firsts_.begin() + at + 1, right->begin[0]);
        blocks_.insert(blocks_.begin() + at + 1, std::move(right));
    }
};

// One list for each stretch of steps, with all that lives in it, so that short lifetimes do not meet what is far away.
// A stretch is twice the mean lifetime: on average a record is in one and a half lists.
class PlacedByTime {
public:
    using Ranked = PlacedList::Ranked;

    // Of so many steps, in stretches of so many.
    PlacedByTime(std::int32_t steps, std::int32_t width) : width_(width), lists_(steps / width + 1) {}

    static std::int32_t width_for(const Ranks& rank, const std::vector<Pieces>& active) {
        std::int64_t total = 0, count = 0;
        for (const auto& pieces : active)
            for (auto [low, high] : pieces) {
                total += rank(high) - rank(low);
                ++count;
            }
        const std::int64_t mean = count ? total / count + 1 : 1;
        const auto stretches = std::clamp<std::int64_t>(rank.count() / (2 * mean), 1, 4096);
        // A few stretches are not worth sorting what is found in two of them.
        return static_cast<std::int32_t>(rank.count() / (stretches < 8 ? 1 : stretches) + 1);
    }

    void insert(std::int32_t low, std::int32_t high, Offset begin, Offset end) {
        for (auto at = low / width_; at <= (high - 1) / width_; ++at) lists_[at].insert(low, high, begin, end);
    }

    // As PlacedList's; what lies in several stretches may be visited several times in a row.
    template <class Visit>
    void overlapping(const Ranked& pieces, Visit visit) {
        const auto first = pieces.front().first / width_, last = (pieces.back().second - 1) / width_;
        if (first == last) return lists_[first].overlapping(pieces, visit);
        met_.clear();
        for (auto at = first; at <= last; ++at)
            lists_[at].overlapping(pieces, [&](Offset begin, Offset end) {
                met_.emplace_back(begin, end);
                return false;
            });
        std::sort(met_.begin(), met_.end());
        for (auto [begin, end] : met_)
            if (visit(begin, end)) return;
    }

private:
    std::int32_t width_;
    std::vector<PlacedList> lists_;
    std::vector<std::pair<Offset, Offset>> met_;
};

// Where a record of so many bytes goes: into its lowest or its smallest gap, or above everything it meets.
inline Offset gap_for(PlacedByTime& placed, const PlacedList::Ranked& pieces, Offset nbytes, Offset alignment,
                      bool lowest) {
    Offset best = -1, best_room = 0, cursor = 0;
    placed.overlapping(pieces, [&](Offset begin, Offset end) {
        if (begin - cursor >= nbytes) {  // seldom: the branch is nearly free
            const Offset at = round_up(cursor, alignment), room = begin - at;
            if (room >= nbytes && (best < 0 || room < best_room)) {
                best = at;
                best_room = room;
                if (lowest) return true;
            }
        }
        cursor = std::max(cursor, end);
        return false;
    });
    return best >= 0 ? best : round_up(cursor, alignment);
}

inline PlacedList::Ranked ranked(const Ranks& rank, const Pieces& active) {
    PlacedList::Ranked pieces;
    for (auto [low, high] : active) pieces.emplace_back(rank(low), rank(high));
    return pieces;
}

inline std::vector<Offset> place_in_order(const std::vector<Offset>& nbytes, const std::vector<Offset>& alignment,
                                          const std::vector<Offset>& pinned, const std::vector<Pieces>& active,
                                          const std::vector<int>& sequence, bool lowest) {
    const auto count = nbytes.size();
    if (alignment.size() != count || pinned.size() != count || active.size() != count)
        throw std::invalid_argument("placement: lists of different lengths");
    std::vector<Offset> offsets = pinned;
    const Ranks rank(active);
    PlacedByTime placed(rank.count(), PlacedByTime::width_for(rank, active));
    const auto put = [&](std::size_t record, const PlacedList::Ranked& pieces) {
        for (auto [low, high] : pieces) placed.insert(low, high, offsets[record], offsets[record] + nbytes[record]);
    };
    for (std::size_t i = 0; i < count; ++i)
        if (offsets[i] >= 0) put(i, ranked(rank, active[i]));
    for (int record : sequence) {
        if (offsets.at(record) >= 0) continue;
        const auto pieces = ranked(rank, active[record]);
        offsets[record] = gap_for(placed, pieces, nbytes[record], alignment[record], lowest);
        put(record, pieces);
    }
    return offsets;
}

// Several arenas, each record at the lowest offset it finds there. With capacities: the first arena that has room, or
// nothing at all if none has. Without: any number of arenas of `block` bytes, where the total grows least, the first
// among equals. Specified by downset/arenas/spread.py.
inline std::pair<std::vector<int>, std::vector<Offset>> spread(const std::vector<Offset>& nbytes,
                                                               const std::vector<Offset>& alignment,
                                                               const std::vector<Pieces>& active,
                                                               const std::vector<int>& sequence,
                                                               const std::vector<Offset>& capacities, Offset block) {
    const auto count = nbytes.size();
    if (alignment.size() != count || active.size() != count)
        throw std::invalid_argument("spreading: lists of different lengths");
    std::vector<int> arena_of(count, -1);
    std::vector<Offset> offsets(count, 0), heights;
    const Ranks rank(active);
    const auto width = PlacedByTime::width_for(rank, active);
    std::vector<PlacedByTime> arenas;
    for (std::size_t i = 0; i < capacities.size(); ++i) arenas.emplace_back(rank.count(), width);
    for (int record : sequence) {
        const auto pieces = ranked(rank, active[record]);
        const Offset size = nbytes[record];
        int chosen = -1;
        Offset chosen_at = 0, least = capacities.empty() ? size : 1;  // a new block grows the total by all of it
        for (int arena = 0; arena < static_cast<int>(arenas.size()) && least > 0; ++arena) {
            const Offset at = gap_for(arenas[arena], pieces, size, alignment[record], true);
            if (at + size > (capacities.empty() ? block : capacities[arena])) continue;
            const Offset grown = capacities.empty() ? std::max<Offset>(0, at + size - heights[arena]) : 0;
            if (chosen >= 0 ? grown < least : grown <= least) {
                chosen = arena;
                chosen_at = at;
                least = grown;
            }
        }
        if (chosen < 0) {
            if (!capacities.empty() || size > block) return {};
            chosen = static_cast<int>(arenas.size());
            arenas.emplace_back(rank.count(), width);
            heights.push_back(0);
        }
        arena_of[record] = chosen;
        offsets[record] = chosen_at;
        if (capacities.empty()) heights[chosen] = std::max(heights[chosen], chosen_at + size);
        for (auto [low, high] : pieces) arenas[chosen].insert(low, high, chosen_at, chosen_at + size);
    }
    return {arena_of, offsets};
}

}  // namespace downset
