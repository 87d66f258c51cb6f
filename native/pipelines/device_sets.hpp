// Multisets of devices, numbered.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "pipelines/problem.hpp"

namespace downset {

// Multisets of devices: how many of each type, numbered in mixed radix, so that disjoint sets add.
class DeviceSets {
public:
    // By device, those of a type next to each other: MACs a second, and type.
    DeviceSets(const std::vector<double>& speeds, const std::vector<int>& types) {
        require_sets(types);
        const int devices = static_cast<int>(types.size());
        for (int device = 0; device < devices; ++device) {
            if (device == 0 || types[device] != types[device - 1]) first.push_back(device), have.push_back(0);
            ++have.back();
        }
        std::vector<int> place, shift;
        int bits = 0;
        for (int count_of_type : have) {
            place.push_back(count);
            count *= count_of_type + 1;
            shift.push_back(bits);
            bits += std::bit_width(static_cast<unsigned>(count_of_type)) + 1;
            guards |= std::uint64_t{1} << (bits - 1);
        }
        counts.resize(count), members.resize(count), packed.resize(count);
        speed.assign(count, 0.0), fastest.assign(count, 0.0);
        for (int set = 0; set < count; ++set)
            for (std::size_t type = 0; type < have.size(); ++type) {
                const int used = set / place[type] % (have[type] + 1);
                counts[set].push_back(used);
                packed[set] |= static_cast<std::uint64_t>(used) << shift[type];
                for (int k = 0; k < used; ++k)
                    members[set].push_back(first[type] + k), speed[set] += speeds[first[type]];
                if (used) fastest[set] = std::max(fastest[set], speeds[first[type]]);
            }
        all = count - 1;
        led_count = count;
        for (const auto& devices : members)
            first_led_.push_back(led_count), led_count += static_cast<int>(devices.size());
    }

    bool within(int part, int whole) const { return (((packed[whole] | guards) - packed[part]) & guards) == guards; }
    // Whether both can be had at once; then their union is numbered a + b.
    bool disjoint(int a, int b) const { return (((packed[all] | guards) - packed[a] - packed[b]) & guards) == guards; }

    // Numbers sets with their leader, a position among the set's devices; with any leader, as the set alone.
    int led(int set, int leader) const { return leader == kAnyLeader ? set : first_led_[set] + leader; }

    // The device that leads, or any.
    int device(int set, int leader) const { return leader == kAnyLeader ? kAnyLeader : members[set][leader]; }

    int count = 1, all = 0, led_count = 0;
    std::vector<int> first, have;           // by type: its first device, how many there are
    std::vector<std::vector<int>> counts;   // by set: of each type
    std::vector<std::vector<int>> members;  // by set: devices
    std::vector<double> speed, fastest;     // by set: together, and of the fastest

private:
    std::vector<int> first_led_;
    std::vector<std::uint64_t> packed;  // by set: counts, each with a free bit above it
    std::uint64_t guards = 0;
};

}  // namespace downset
