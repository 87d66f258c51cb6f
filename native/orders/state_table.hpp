// The states of a search over downsets, in flat arrays that never move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "orders/problem.hpp"

namespace downset {

// An array that grows without moving: a doubling copy would need half as much memory again.
template <class Item>
class Chunks {
public:
    explicit Chunks(int width) : width_(width) {}
    Item* at(std::size_t index) { return &chunks_[index / kRows][index % kRows * width_]; }
    const Item* at(std::size_t index) const { return &chunks_[index / kRows][index % kRows * width_]; }
    Item* add() {
        if (size_ % kRows == 0) chunks_.push_back(std::unique_ptr<Item[]>(new Item[kRows * width_]));  // not zeroed
        return at(size_++);
    }
    std::size_t size() const { return size_; }
    std::size_t bytes() const { return chunks_.size() * kRows * width_ * sizeof(Item); }

private:
    static constexpr std::size_t kRows = 1024;
    std::size_t width_, size_ = 0;
    std::vector<std::unique_ptr<Item[]>> chunks_;
};

// All states ever reached, in flat arrays: downset words, ready words, and how each was come by. Found by hash.
class StateTable {
public:
    struct State {
        Bytes peak, live;
        std::int32_t parent, first_run;  // the operators run since the parent: runs[first_run … ), `ran` of them
        std::int32_t ran;
        std::int32_t size;
        bool closed;
        Word hash;
    };
    std::vector<std::int32_t> runs;

    explicit StateTable(int words) : words_(words), slots_(1 << 12, {-1, 0}), states_(1), sets_(2 * words) {}
    State& at(std::int32_t state) { return *states_.at(state); }
    const State& at(std::int32_t state) const { return *states_.at(state); }
    BitsSpan downset(std::int32_t state) { return BitsSpan({sets_.at(state), words_}); }
    BitsSpan ready(std::int32_t state) { return BitsSpan({sets_.at(state) + words_, words_}); }
    std::size_t bytes() const {
        return sets_.bytes() + states_.bytes() + runs.capacity() * sizeof(runs[0]) + slots_.capacity() * sizeof(Slot);
    }

    // The state of this downset, made if new: {index, made}.
    std::pair<std::int32_t, bool> find(BitsView set, Word hash) {
        if (states_.size() * 10 >= slots_.size() * 6) grow();
        std::size_t slot = hash & (slots_.size() - 1);
        const auto tag = static_cast<std::uint32_t>(hash >> 32);
        for (; slots_[slot].state >= 0; slot = (slot + 1) & (slots_.size() - 1))
            if (slots_[slot].tag == tag && set == downset(slots_[slot].state)) return {slots_[slot].state, false};
        const auto index = static_cast<std::int32_t>(states_.size());
        slots_[slot] = {index, tag};
        *states_.add() = {std::numeric_limits<Bytes>::max(), 0, -1, 0, 0, 0, false, hash};
        sets_.add();
        downset(index).assign(set);
        return {index, true};
    }

private:
    struct Slot {
        std::int32_t state;
        std::uint32_t tag;
    };
    std::size_t words_;
    std::vector<Slot> slots_;
    Chunks<State> states_;
    Chunks<Word> sets_;

    void grow() {
        std::vector<Slot> larger(slots_.size() * 2, {-1, 0});
        for (std::int32_t state = 0; state < static_cast<std::int32_t>(states_.size()); ++state) {
            std::size_t slot = at(state).hash & (larger.size() - 1);
            while (larger[slot].state >= 0) slot = (slot + 1) & (larger.size() - 1);
            larger[slot] = {state, static_cast<std::uint32_t>(at(state).hash >> 32)};
        }
        slots_.swap(larger);
    }
};

}  // namespace downset
