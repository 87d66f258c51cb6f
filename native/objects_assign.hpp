// Shared objects at scale: records one after the other into a free object. Specified by `assign_in_order` in
// downset/arenas/objects_fit.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace downset {

inline std::vector<int> assign_in_order(const std::vector<std::int64_t>& nbytes,
                                        const std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>& active,
                                        const std::vector<int>& sequence, bool first) {
    using Interval = std::pair<std::int64_t, std::int64_t>;
    if (active.size() != nbytes.size()) throw std::invalid_argument("objects: lists of different lengths");
    std::vector<int> object_of(nbytes.size(), -1);
    std::vector<std::set<Interval>> busy;
    std::vector<std::int64_t> sizes;
    const auto is_free = [&](int object, int record) {
        for (auto [low, high] : active[record]) {
            auto next = busy[object].lower_bound({high, high});  // intervals of an object never overlap
            if (next != busy[object].begin() && std::prev(next)->second > low) return false;
        }
        return true;
    };
    std::set<std::pair<std::int64_t, int>> by_size;  // (size, object)
    for (int record : sequence) {
        const auto size = nbytes[record];
        int chosen = -1;
        if (first) {
            for (int object = 0; object < static_cast<int>(busy.size()) && chosen < 0; ++object)
                if (is_free(object, record)) chosen = object;
        } else {
            const auto large_enough = by_size.lower_bound({size, -1});
            for (auto it = large_enough; it != by_size.end() && chosen < 0; ++it)
                if (is_free(it->second, record)) chosen = it->second;
            // None: the largest of the smaller ones, the lowest number among equals.
            std::int64_t grown = -1;
            for (auto it = large_enough; it != by_size.begin();) {
                if (chosen >= 0 && grown < 0) break;
                --it;
                if (grown >= 0 && it->first < grown) break;
                if (is_free(it->second, record)) {
                    chosen = it->second;
                    grown = it->first;
                }
            }
        }
        if (chosen < 0) {
            chosen = static_cast<int>(busy.size());
            busy.emplace_back();
            sizes.push_back(0);
        } else if (!first) {
            by_size.erase({sizes[chosen], chosen});
        }
        sizes[chosen] = std::max(sizes[chosen], size);
        if (!first) by_size.insert({sizes[chosen], chosen});
        for (const auto& piece : active[record]) busy[chosen].insert(piece);
        object_of[record] = chosen;
    }
    return object_of;
}

}  // namespace downset
