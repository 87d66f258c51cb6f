// Shared objects at scale: records one after the other into a free object. Oracle:
// tests/arenas/oracles/objects.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "arenas/ranks.hpp"
#include "arenas/records.hpp"
#include "bits.hpp"
#include "check.hpp"
#include "deadline.hpp"

namespace downset {

// Steps 0 to count, cut into 64 parts of equal length.
class Parts {
public:
    explicit Parts(std::int32_t count) : length_(count / 64 + 1) {}
    // The parts that [low, high) has a step in, and those of which it has all steps.
    FixedBits<1> touched(std::int32_t low, std::int32_t high) const {
        return between(low / length_, (high - 1) / length_ + 1);
    }
    FixedBits<1> filled(std::int32_t low, std::int32_t high) const {
        return between((low + length_ - 1) / length_, high / length_);
    }

private:
    std::int32_t length_;
    static FixedBits<1> between(int first, int last) {
        return first < last ? below(last) - below(first) : FixedBits<1>{};
    }
    static FixedBits<1> below(int part) { return FixedBits<1>({part >= 64 ? ~Word{0} : FixedBits<1>::bit(part) - 1}); }
};

// -1: the time was over before, or the record is not in the sequence.
inline std::vector<int> assign_in_order(const Records& records, const std::vector<int>& sequence, bool first,
                                        double seconds) {
    const Deadline deadline(seconds);
    const auto& nbytes = records.nbytes;
    const auto& active = records.active;
    require_indices("sequence", sequence, nbytes.size());
    std::vector<int> object_of(nbytes.size(), -1);
    std::vector<std::set<Interval>> busy;
    std::vector<std::int64_t> sizes;
    // Time in 64 parts, a bit each: most objects are told free or busy without looking at their intervals.
    const Ranks rank(active);
    const Parts parts(rank.count());
    std::vector<FixedBits<1>> touched, filled;
    FixedBits<1> wanted;
    const auto is_free = [&](int object, int record) {
        if (filled[object].meets(wanted)) return false;
        if (!touched[object].meets(wanted)) return true;
        for (auto [low, high] : active[record]) {
            auto next = busy[object].lower_bound({high, high});  // intervals of an object never overlap
            if (next != busy[object].begin() && std::prev(next)->second > low) return false;
        }
        return true;
    };
    struct Entry {
        std::int64_t size;
        int object;
        FixedBits<1> filled;  // in addition to the size: the walk below reads nothing else of most objects
    };
    std::vector<Entry> by_size;  // ascending, then by object
    const auto place_of = [&](std::int64_t size, int object) {
        return std::lower_bound(by_size.begin(), by_size.end(), std::pair(size, object),
                                [](const Entry& entry, auto key) { return std::pair(entry.size, entry.object) < key; });
    };
    std::size_t tried = 0;
    for (int record : sequence) {
        if (++tried % 16 == 0 && deadline.passed()) break;
        const auto size = nbytes[record];
        int chosen = -1;
        wanted = {};
        for (auto [low, high] : active[record]) wanted |= parts.touched(rank(low), rank(high));
        if (first) {
            for (int object = 0; object < static_cast<int>(busy.size()) && chosen < 0; ++object)
                if (is_free(object, record)) chosen = object;
        } else {
            const auto large_enough = place_of(size, -1);
            for (auto it = large_enough; it != by_size.end() && chosen < 0; ++it)
                if (!it->filled.meets(wanted) && is_free(it->object, record)) chosen = it->object;
            // None: the largest of the smaller ones, the lowest number among equals.
            std::int64_t grown = -1;
            for (auto it = large_enough; it != by_size.begin();) {
                if (chosen >= 0 && grown < 0) break;
                --it;
                if (grown >= 0 && it->size < grown) break;
                if (!it->filled.meets(wanted) && is_free(it->object, record)) {
                    chosen = it->object;
                    grown = it->size;
                }
            }
        }
        if (chosen < 0) {
            chosen = static_cast<int>(busy.size());
            busy.emplace_back();
            sizes.push_back(0);
            touched.emplace_back();
            filled.emplace_back();
        } else if (!first) {
            by_size.erase(place_of(sizes[chosen], chosen));
        }
        sizes[chosen] = std::max(sizes[chosen], size);
        for (const auto& piece : active[record]) {
            busy[chosen].insert(piece);
            filled[chosen] |= parts.filled(rank(piece.first), rank(piece.second));
        }
        touched[chosen] |= wanted;
        if (!first) by_size.insert(place_of(sizes[chosen], chosen), {sizes[chosen], chosen, filled[chosen]});
        object_of[record] = chosen;
    }
    return object_of;
}

}  // namespace downset
