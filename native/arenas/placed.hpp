// What is placed in an arena, by offset and by time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "arenas/ranks.hpp"
#include "bits.hpp"

namespace downset {

// What is placed, by ascending offset, in blocks short enough to insert into. A query walks all of it: two comparisons
// of neighbouring integers, many at once, beat a tree while much of it lives at once.
class PlacedList {
public:
    using Ranked = std::vector<std::pair<std::int32_t, std::int32_t>>;

    void insert(std::int32_t low, std::int32_t high, Offset begin, Offset end, std::int32_t record) {
        // The block to go into: the last one that begins at or below `begin`.
        auto index = std::upper_bound(firsts_.begin(), firsts_.end(), begin) - firsts_.begin();
        if (index > 0) --index;
        if (blocks_.empty()) {
            blocks_.push_back(std::make_unique<Block>());
            firsts_.push_back(begin);
        }
        Block& into = *blocks_[index];
        const auto place =
            std::upper_bound(into.begin.begin(), into.begin.begin() + into.size, begin) - into.begin.begin();
        const auto make_room = [&](auto& list) {
            std::move_backward(list.begin() + place, list.begin() + into.size, list.begin() + into.size + 1);
        };
        make_room(into.low);
        make_room(into.high);
        make_room(into.begin);
        make_room(into.end);
        make_room(into.record);
        into.low[place] = low;
        into.high[place] = high;
        into.begin[place] = begin;
        into.end[place] = end;
        into.record[place] = record;
        firsts_[index] = into.begin[0];
        if (++into.size == most) split(index);
    }

    // Takes out one piece of a record that begins at this offset.
    void erase(std::int32_t low, Offset begin, std::int32_t record) {
        auto index = std::upper_bound(firsts_.begin(), firsts_.end(), begin) - firsts_.begin();
        for (;;) {  // from the last block that begins at or below `begin`
            Block& block = *blocks_[--index];
            int place = 0;
            while (place < block.size &&
                   !(block.record[place] == record && block.low[place] == low && block.begin[place] == begin))
                ++place;
            if (place == block.size) continue;
            const auto close_up = [&](auto& list) {
                std::move(list.begin() + place + 1, list.begin() + block.size, list.begin() + place);
            };
            close_up(block.low);
            close_up(block.high);
            close_up(block.begin);
            close_up(block.end);
            close_up(block.record);
            --block.size;
            block.low[block.size] = block.high[block.size] = 0;
            if (block.size > 0) {
                firsts_[index] = block.begin[0];
            } else {
                blocks_.erase(blocks_.begin() + index);
                firsts_.erase(firsts_.begin() + index);
            }
            return;
        }
    }

    // Calls visit(begin, end, record) for what overlaps any of the pieces, by ascending offset, until it returns true.
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
                if (FixedBits<1>({bits}).any([&](int i) {
                        return visit(block->begin[first + i], block->end[first + i], block->record[first + i]);
                    }))
                    return;
            }
        }
    }

private:
    static constexpr int most = 256;
    struct Block {
        std::array<std::int32_t, most> low{}, high{}, record{};
        std::array<Offset, most> begin{}, end{};
        int size = 0;
    };
    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<Offset> firsts_;

    void split(std::ptrdiff_t index) {
        auto right = std::make_unique<Block>();
        Block& left = *blocks_[index];
        constexpr int half = most / 2;
        const auto move_half = [](auto& from, auto& to) {
            std::copy(from.begin() + half, from.end(), to.begin());
            std::fill(from.begin() + half, from.end(), 0);
        };
        move_half(left.low, right->low);
        move_half(left.high, right->high);
        move_half(left.begin, right->begin);
        move_half(left.end, right->end);
        move_half(left.record, right->record);
        left.size = half;
        right->size = most - half;
        firsts_.insert(firsts_.begin() + index + 1, right->begin[0]);
        blocks_.insert(blocks_.begin() + index + 1, std::move(right));
    }
};

// One list for each stretch of steps, with all that lives in it, so that short lifetimes do not meet what is far away;
// and one of everything, for lifetimes over many stretches, where to sort what is met costs more than to walk it all.
// A stretch is twice the mean lifetime: on average a record is in one and a half lists.
class PlacedByTime {
public:
    using Ranked = PlacedList::Ranked;

    // Of so many steps, in stretches of so many.
    PlacedByTime(std::int32_t steps, std::int32_t width) : width_(width), lists_(steps / width + 1) {}
    PlacedByTime(const Ranks& rank, const std::vector<Pieces>& active)
        : PlacedByTime(rank.count(), width_for(rank, active)) {}

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

    void insert(std::int32_t low, std::int32_t high, Offset begin, Offset end, std::int32_t record) {
        all_.insert(low, high, begin, end, record);
        if (lists_.size() > 1)
            for (auto stretch = low / width_; stretch <= (high - 1) / width_; ++stretch)
                lists_[stretch].insert(low, high, begin, end, record);
    }
    void erase(std::int32_t low, std::int32_t high, Offset begin, std::int32_t record) {
        all_.erase(low, begin, record);
        if (lists_.size() > 1)
            for (auto stretch = low / width_; stretch <= (high - 1) / width_; ++stretch)
                lists_[stretch].erase(low, begin, record);
    }

    // As PlacedList's; what lies in two stretches, or has several pieces, may be visited several times.
    template <class Visit>
    void overlapping(const Ranked& pieces, Visit visit) {
        const auto first = pieces.front().first / width_, last = (pieces.back().second - 1) / width_;
        if (lists_.size() == 1 || (last - first) * kMany > static_cast<std::int64_t>(lists_.size()))
            return all_.overlapping(pieces, visit);
        if (first == last) return lists_[first].overlapping(pieces, visit);
        met_.clear();
        for (auto stretch = first; stretch <= last; ++stretch)
            lists_[stretch].overlapping(pieces, [&](Offset begin, Offset end, std::int32_t record) {
                met_.push_back({begin, end, record});
                return false;
            });
        std::sort(met_.begin(), met_.end());
        for (const auto& [begin, end, record] : met_)
            if (visit(begin, end, record)) return;
    }

private:
    static constexpr int kMany = 32;  // of so many stretches, more than one is many
    std::int32_t width_;
    PlacedList all_;
    std::vector<PlacedList> lists_;
    std::vector<std::tuple<Offset, Offset, std::int32_t>> met_;
};

}  // namespace downset
