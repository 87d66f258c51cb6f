// Sets of vertices, and their hash, for chains of pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace downset {

constexpr int kPieceWords = 16;

struct PieceSet {
    std::array<std::uint64_t, kPieceWords> words{};
    bool has(int v) const { return words[v >> 6] >> (v & 63) & 1; }
    void add(int v) { words[v >> 6] |= std::uint64_t{1} << (v & 63); }
    void remove(int v) { words[v >> 6] &= ~(std::uint64_t{1} << (v & 63)); }
    int size() const {
        int total = 0;
        for (auto word : words) total += __builtin_popcountll(word);
        return total;
    }
    bool empty() const {
        for (auto word : words)
            if (word) return false;
        return true;
    }
    bool within(const PieceSet& other) const {
        for (int i = 0; i < kPieceWords; ++i)
            if (words[i] & ~other.words[i]) return false;
        return true;
    }
    bool operator==(const PieceSet& other) const { return words == other.words; }
    PieceSet& operator|=(const PieceSet& other) {
        for (int i = 0; i < kPieceWords; ++i) words[i] |= other.words[i];
        return *this;
    }
    PieceSet operator-(const PieceSet& other) const {
        PieceSet result;
        for (int i = 0; i < kPieceWords; ++i) result.words[i] = words[i] & ~other.words[i];
        return result;
    }
    PieceSet operator&(const PieceSet& other) const {
        PieceSet result;
        for (int i = 0; i < kPieceWords; ++i) result.words[i] = words[i] & other.words[i];
        return result;
    }
    template <class Visit>
    void each(Visit visit) const {
        for (int i = 0; i < kPieceWords; ++i)
            for (auto word = words[i]; word; word &= word - 1) visit(64 * i + __builtin_ctzll(word));
    }
    // Members below `end`, the highest first, until visit returns false.
    template <class Visit>
    void each_down(int end, Visit visit) const {
        for (int i = kPieceWords - 1; i >= 0; --i) {
            auto word = words[i];
            if (64 * i >= end) continue;
            if (64 * (i + 1) > end && (end & 63)) word &= (std::uint64_t{1} << (end & 63)) - 1;
            while (word) {
                const int bit = 63 - __builtin_clzll(word);
                if (!visit(64 * i + bit)) return;
                word &= ~(std::uint64_t{1} << bit);
            }
        }
    }
};

struct PieceHash {
    std::size_t operator()(const PieceSet& set) const {
        std::uint64_t hash = 0x9e3779b97f4a7c15ull;
        for (auto word : set.words) {
            hash ^= word;
            hash *= 0xff51afd7ed558ccdull;
            hash ^= hash >> 32;
        }
        return hash;
    }
};

}  // namespace downset
