// The sequence in which LiteRT's planner places tensors. Among those of equal size that one operator makes it is what
// the standard library leaves: the order in which a set of numbers gives them, then a sort that is not stable. LiteRT
// uses std::unordered_set and std::sort, and so does this. Oracle: LiteRT itself, tests/formats/test_litert_arena.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include "check.hpp"

namespace downset {

// Tensors by the step that first holds them, in the order in which LiteRT lists them: their numbers, each once, their
// bytes, and whether they live from the first step to the end.
inline std::vector<int> litert_sequence(const std::vector<int>& steps, const std::vector<int>& tensors,
                                        const std::vector<std::int64_t>& nbytes, const std::vector<bool>& whole) {
    require_size("steps", steps.size(), tensors.size());
    require_size("nbytes", nbytes.size(), tensors.size());
    require_size("whole", whole.size(), tensors.size());
    require_at_least<int>("tensors", tensors, 0);
    std::map<int, std::unordered_set<std::int32_t>> listed;
    std::map<std::int32_t, std::size_t> entry;
    for (std::size_t k = 0; k < tensors.size(); ++k) {
        require(entry.emplace(tensors[k], k).second, "tensors: ", tensors[k], " comes twice");
        listed[steps[k]].insert(tensors[k]);
    }
    std::vector<std::int32_t> sequence;
    for (const auto& [step, numbers] : listed) sequence.insert(sequence.end(), numbers.begin(), numbers.end());
    std::sort(sequence.begin(), sequence.end(), [&](std::int32_t one, std::int32_t other) {
        const std::size_t a = entry.at(one), b = entry.at(other);
        if (whole[a] || whole[b]) return whole[a] && (!whole[b] || one < other);
        return nbytes[a] != nbytes[b] ? nbytes[a] > nbytes[b] : steps[a] < steps[b];
    });
    return sequence;
}

}  // namespace downset
