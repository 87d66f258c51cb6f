// What every entry point asks of its arguments: whatever Python passes, no search reads outside its lists.
#pragma once

#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace downset {

// ValueError in Python; the fault is put together only if there is one.
template <class... Parts>
void require(bool lawful, const Parts&... fault) {
    if (lawful) return;
    std::ostringstream text;
    (text << ... << fault);
    throw std::invalid_argument(text.str());
}

inline void require_size(const char* list, std::size_t size, std::size_t wanted) {
    require(size == wanted, list, ": ", size, " entries; ", wanted, " are needed");
}

template <class Index>
void require_indices(const char* list, const std::vector<Index>& indices, std::size_t count) {
    for (const Index index : indices)
        require(index >= 0 && static_cast<std::size_t>(index) < count, list, ": ", index, " is not an index below ",
                count);
}

// All indices below `count`, once each.
inline void require_order(const char* list, const std::vector<int>& order, int count) {
    require_size(list, order.size(), count);
    require_indices(list, order, count);
    std::vector<bool> seen(count, false);
    for (const int index : order) {
        require(!seen[index], list, ": ", index, " comes twice");
        seen[index] = true;
    }
}

// NaN is not at least anything.
template <class Number>
void require_at_least(const char* list, const std::vector<Number>& numbers, Number least) {
    for (const Number number : numbers) require(number >= least, list, ": ", number, " is not at least ", least);
}

}  // namespace downset
