// What pipelines are searched on: the segments of a chain, devices by type, and the network between them. Everything is
// checked where it is made; the search relies on it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "check.hpp"

namespace downset {

constexpr int kAnyLeader = -1;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kBelow = 1.0 - 1e-9;   // values closer than this are equal
constexpr double kAbout = 1.0 + 1e-12;  // room for rounding

// Devices by type, rising; how many multisets of them there are has a limit.
inline void require_sets(const std::vector<int>& types) {
    constexpr std::size_t kMostDevices = 1 << 15;
    constexpr std::int64_t kMostSets = 1 << 22;  // DeviceSets' numbers of them then fit into 64 bits
    require(!types.empty() && types.size() <= kMostDevices, "devices: there are ", types.size());
    require(std::is_sorted(types.begin(), types.end()), "devices: they are not in order of type");
    std::int64_t sets = 1;
    for (auto begin = types.begin(); begin != types.end();) {
        const auto end = std::upper_bound(begin, types.end(), *begin);
        sets *= end - begin + 1;
        require(sets <= kMostSets, "devices: more than ", kMostSets, " sets of them; take more of them as alike");
        begin = end;
    }
}

// By start and stop, at start * (cuts + 1) + stop: the segments of a chain, all there are of them.
template <class Segment>
std::vector<Segment> segments_in_place(const std::map<std::pair<int, int>, Segment>& given, int cuts) {
    const std::size_t width = static_cast<std::size_t>(cuts) + 1;
    require_size("segments", given.size(), width * cuts / 2);
    std::vector<Segment> segments(width * width);
    for (const auto& [cuts_of, segment] : given) {
        const auto [start, stop] = cuts_of;
        require(0 <= start && start < stop && stop <= cuts, "segments: (", start, ", ", stop, ") is not in the chain");
        segments[start * width + stop] = segment;
    }
    return segments;
}

// The seconds that bytes take between two devices.
struct PipelineNetwork {
    std::vector<std::vector<double>> per_byte, latency;  // seconds, by pair
    bool uniform, overlap, shared;  // all pairs alike; sending at the same time as computing; one medium for all

    PipelineNetwork(std::vector<std::vector<double>> seconds_per_byte, std::vector<std::vector<double>> seconds,
                    bool all_alike, bool sends_beside, bool one_medium)
        : per_byte(std::move(seconds_per_byte)), latency(std::move(seconds)), uniform(all_alike), overlap(sends_beside),
          shared(one_medium) {
        require_size("latency by pair", latency.size(), per_byte.size());
        for (const auto* table : {&per_byte, &latency})
            for (std::size_t first = 0; first < table->size(); ++first) {
                const auto& line = (*table)[first];
                require_size("seconds by pair", line.size(), table->size());
                require_at_least("seconds by pair", line, 0.0);
                for (std::size_t second = 0; second < line.size() && uniform; ++second)
                    require(first == second || line[second] == (*table)[0][1], "seconds by pair: they are not uniform");
            }
    }
};

}  // namespace downset
