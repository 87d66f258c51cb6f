// Sets of small whole numbers, a bit each: the one type for operators, vertices, and stretches of time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace downset {

using Word = std::uint64_t;

// The finaliser of splitmix64 (Steele, Lea and Flood, 2014): every bit of the value reaches every bit of the result.
inline Word mixed(Word value) {
    value += 0x9e3779b97f4a7c15ULL;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

// `Words` holds the words: an array (a value of fixed width), a vector, or a span (a row of a table). Sets that meet in
// an operation are of one width; members are below 64 times it.
template <class Words>
class Bits {
public:
    Words words{};

    Bits() = default;
    explicit Bits(Words given) : words(std::move(given)) {}
    // A view of another set.
    template <class Other>
        requires(!std::is_same_v<Words, Other> && std::is_constructible_v<Words, const Other&>)
    Bits(const Bits<Other>& other) : words(other.words) {}
    template <class Other>
        requires(!std::is_same_v<Words, Other> && std::is_constructible_v<Words, Other&> &&
                 !std::is_constructible_v<Words, const Other&>)
    Bits(Bits<Other>& other) : words(other.words) {}

    bool has(int v) const { return words[v / 64] >> (v % 64) & 1; }
    void add(int v) { words[v / 64] |= bit(v); }
    void remove(int v) { words[v / 64] &= ~bit(v); }
    void clear() { std::fill(words.begin(), words.end(), 0); }
    // The other's members in place of its own.
    template <class Other>
    void assign(const Bits<Other>& other) {
        std::copy(other.words.begin(), other.words.end(), words.begin());
    }

    int size() const {
        int total = 0;
        for (const Word word : words) total += std::popcount(word);
        return total;
    }
    bool empty() const {
        for (const Word word : words)
            if (word) return false;
        return true;
    }
    // Only of a set that is not empty.
    int lowest() const {
        std::size_t i = 0;
        while (!words[i]) ++i;
        return static_cast<int>(64 * i) + std::countr_zero(words[i]);
    }
    int highest() const {
        std::size_t i = words.size() - 1;
        while (!words[i]) --i;
        return static_cast<int>(64 * i) + 63 - std::countl_zero(words[i]);
    }

    template <class Other>
    bool within(const Bits<Other>& other) const {
        for (std::size_t i = 0; i < words.size(); ++i)
            if (words[i] & ~other.words[i]) return false;
        return true;
    }
    template <class Other>
    bool meets(const Bits<Other>& other) const {
        for (std::size_t i = 0; i < words.size(); ++i)
            if (words[i] & other.words[i]) return true;
        return false;
    }
    template <class Other>
    bool operator==(const Bits<Other>& other) const {
        return std::equal(words.begin(), words.end(), other.words.begin());
    }

    template <class Other>
    Bits& operator|=(const Bits<Other>& other) {
        for (std::size_t i = 0; i < words.size(); ++i) words[i] |= other.words[i];
        return *this;
    }
    template <class Other>
    Bits& operator&=(const Bits<Other>& other) {
        for (std::size_t i = 0; i < words.size(); ++i) words[i] &= other.words[i];
        return *this;
    }
    template <class Other>
    Bits& operator-=(const Bits<Other>& other) {
        for (std::size_t i = 0; i < words.size(); ++i) words[i] &= ~other.words[i];
        return *this;
    }

    // Members in ascending order.
    template <class Visit>
    void each(Visit visit) const {
        for (std::size_t i = 0; i < words.size(); ++i)
            for (Word rest = words[i]; rest; rest &= rest - 1) visit(static_cast<int>(64 * i) + std::countr_zero(rest));
    }
    // Likewise until visit returns true; whether it did.
    template <class Visit>
    bool any(Visit visit) const {
        for (std::size_t i = 0; i < words.size(); ++i)
            for (Word rest = words[i]; rest; rest &= rest - 1)
                if (visit(static_cast<int>(64 * i) + std::countr_zero(rest))) return true;
        return false;
    }
    // Members below `end`, the highest first, until visit returns false.
    template <class Visit>
    void each_down(int end, Visit visit) const {
        for (int i = static_cast<int>(words.size()) - 1; i >= 0; --i) {
            Word rest = words[i];
            if (64 * i >= end) continue;
            if (64 * (i + 1) > end && end % 64) rest &= bit(end) - 1;
            while (rest) {
                const int place = 63 - std::countl_zero(rest);
                if (!visit(64 * i + place)) return;
                rest &= ~bit(place);
            }
        }
    }

    static constexpr Word bit(int v) { return Word{1} << (v % 64); }
};

// Members below 64 · Count, as a value.
template <std::size_t Count>
using FixedBits = Bits<std::array<Word, Count>>;
using DynamicBits = Bits<std::vector<Word>>;
using BitsView = Bits<std::span<const Word>>;  // of words that are held elsewhere, as long as they are
using BitsSpan = Bits<std::span<Word>>;        // likewise, and they may change

template <std::size_t Count>
FixedBits<Count> operator|(FixedBits<Count> one, const FixedBits<Count>& other) {
    return one |= other;
}
template <std::size_t Count>
FixedBits<Count> operator&(FixedBits<Count> one, const FixedBits<Count>& other) {
    return one &= other;
}
template <std::size_t Count>
FixedBits<Count> operator-(FixedBits<Count> one, const FixedBits<Count>& other) {
    return one -= other;
}

// So many words hold members below `count`; none is made of no words.
inline int words_for(int count) { return std::max(1, (count + 63) / 64); }

inline DynamicBits no_bits(int words) { return DynamicBits(std::vector<Word>(words, 0)); }

// Sets of one width, a row each.
class BitsTable {
public:
    explicit BitsTable(int words, std::size_t rows = 0) : width_(words), words_(rows * width_, 0) {}
    BitsSpan operator[](std::size_t row) { return BitsSpan({&words_[row * width_], width_}); }
    BitsView operator[](std::size_t row) const { return BitsView({&words_[row * width_], width_}); }
    void clear() { words_.clear(); }
    // Rows move when one is added.
    void push_back(BitsView row) { words_.insert(words_.end(), row.words.begin(), row.words.end()); }

private:
    std::size_t width_;
    std::vector<Word> words_;
};

struct BitsHash {
    // Of one word the word itself, as std::hash has it: cheap enough that a map need not keep it (noexcept says so).
    std::size_t operator()(const FixedBits<1>& set) const noexcept { return set.words[0]; }
    template <class Words>
    std::size_t operator()(const Bits<Words>& set) const {
        Word hash = 0x9e3779b97f4a7c15ull;
        for (const Word word : set.words) {
            hash ^= word;
            hash *= 0xff51afd7ed558ccdull;
            hash ^= hash >> 32;
        }
        return hash;
    }
};

}  // namespace downset
