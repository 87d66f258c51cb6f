// Pipelines as the searches see them: segments of a chain priced by rows, devices by type, and sets of devices.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace downset {

constexpr int kAnyLeader = -1;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kBelow = 1.0 - 1e-9;   // values closer than this are equal
constexpr double kAbout = 1.0 + 1e-12;  // room for rounding

// Strip [lo, hi) of a segment takes upper[hi] - lower[lo], or final[lo] where hi is the last row.
struct PipelineSegment {
    int rows = 1;
    // by row: MACs, and bytes in and out together
    std::vector<double> macs_upper, macs_lower, macs_final, io_upper, io_lower, io_final;
};

struct PipelineProblem {
    int cuts = 0;
    std::vector<PipelineSegment> segments;       // (start, stop) at start * (cuts + 1) + stop
    std::vector<std::int64_t> macs_before;       // by cut
    std::vector<std::int64_t> handover;          // by cut: bytes charged between stages (0: not charged)
    std::vector<double> speed;                   // by device, in the order that strips lie in
    std::vector<int> type;                       // by device, ascending; devices of a type are interchangeable
    std::vector<std::vector<double>> per_byte;   // seconds, by pair
    std::vector<std::vector<double>> latency;    // seconds, by pair
    bool uniform = true;                         // all pairs alike
    bool overlap = false, shared = false;
    double latency_limit = kNever;
    bool several_blocks = true;
    std::vector<std::vector<int>> forbidden;  // by segment: devices (any of a type: all of it) that may not run it

    int index(int start, int stop) const { return start * (cuts + 1) + stop; }
    const PipelineSegment& segment(int start, int stop) const { return segments[index(start, stop)]; }
    double macs(int start, int stop) const { return static_cast<double>(macs_before[stop] - macs_before[start]); }
    bool summed() const { return !overlap && !shared; }

    // Seconds a byte between the leader and whichever of the devices it is nearest to; of all pairs alike, of these.
    double least_rate(const std::vector<int>& devices, int leader) const {
        if (speed.size() < 2) return 0;
        if (uniform) return per_byte[0][1];
        double least = kNever;
        for (int second : devices) {
            if (leader != kAnyLeader && second != devices[leader]) least = std::min(least, per_byte[devices[leader]][second]);
            for (int first : devices)
                if (leader == kAnyLeader && first != second) least = std::min(least, per_byte[first][second]);
        }
        return least == kNever ? 0 : least;
    }

    // Seconds that the stage behind a cut waits for its input.
    double hand_over(int cut, int from, int to) const {
        if (cut == 0 || handover[cut] == 0 || speed.size() < 2) return 0;
        if (uniform) return static_cast<double>(handover[cut]) * per_byte[0][1] + latency[0][1];
        return static_cast<double>(handover[cut]) * per_byte[from][to] + latency[from][to];
    }
};

struct PipelineStage {
    int leader = 0;
    std::vector<std::tuple<int, int, std::vector<int>>> blocks;  // start, stop, boundaries (one more than devices)
    std::vector<int> devices;
};

// Multisets of devices: how many of each type, numbered in mixed radix, so that disjoint sets add.
class DeviceSets {
  public:
    explicit DeviceSets(const PipelineProblem& problem) {
        const int devices = static_cast<int>(problem.speed.size());
        for (int device = 0; device < devices; ++device) {
            if (device == 0 || problem.type[device] != problem.type[device - 1]) first.push_back(device), have.push_back(0);
            ++have.back();
        }
        std::vector<int> place, shift;
        int bits = 0;
        for (int count_of_type : have) {
            place.push_back(count);
            count *= count_of_type + 1;
            if (count > (1 << 22)) throw std::invalid_argument("pipeline: too many different devices");
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
                for (int k = 0; k < used; ++k) members[set].push_back(first[type] + k), speed[set] += problem.speed[first[type]];
                if (used) fastest[set] = std::max(fastest[set], problem.speed[first[type]]);
            }
        all = count - 1;
        led_count = count;
        for (const auto& devices : members) first_led_.push_back(led_count), led_count += static_cast<int>(devices.size());
    }

    bool within(int part, int whole) const { return (((packed[whole] | guards) - packed[part]) & guards) == guards; }
    // Whether both can be had at once; then their union is numbered a + b.
    bool disjoint(int a, int b) const { return (((packed[all] | guards) - packed[a] - packed[b]) & guards) == guards; }

    // Numbers sets with their leader, a position among the set's devices; with any leader, as the set alone.
    int led(int set, int leader) const { return leader == kAnyLeader ? set : first_led_[set] + leader; }

    // The device that leads, or any.
    int device(int set, int leader) const { return leader == kAnyLeader ? kAnyLeader : members[set][leader]; }

    int count = 1, all = 0, led_count = 0;
    std::vector<int> first, have;               // by type: its first device, how many there are
    std::vector<std::vector<int>> counts;       // by set: of each type
    std::vector<std::vector<int>> members;      // by set: devices
    std::vector<double> speed, fastest;         // by set: together, and of the fastest

  private:
    std::vector<int> first_led_;
    std::vector<std::uint64_t> packed;  // by set: counts, each with a free bit above it
    std::uint64_t guards = 0;
};

}  // namespace downset
