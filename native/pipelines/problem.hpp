// Pipelines as the searches see them: segments of a chain priced by rows, devices by type, and the network between
// them. Everything is checked where it is made; the searches rely on it.
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

// Strip [lo, hi) of a segment takes upper[hi] - lower[lo], or final[lo] where hi is the last row.
struct StripTable {
    std::vector<double> upper, lower, final;  // by row, and behind the last

    StripTable() = default;
    StripTable(const char* name, int rows, const std::array<std::vector<std::int64_t>, 3>& lists)
        : upper(lists[0].begin(), lists[0].end()), lower(lists[1].begin(), lists[1].end()),
          final(lists[2].begin(), lists[2].end()) {
        for (const auto& list : lists) require_size(name, list.size(), static_cast<std::size_t>(rows) + 1);
        // No strip ends at row 0 and none starts behind the last row: what stands there means nothing.
        for (int row = 0; row < rows; ++row)
            require(upper[row + 1] >= 0 && lower[row] >= 0 && final[row] >= 0, name, ": less than nothing at row ",
                    row);
    }
};

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

// The units between two cuts.
struct PipelineSegment {
    using Lists = std::array<std::vector<std::int64_t>, 3>;  // upper, lower, final

    int rows = 0;
    StripTable macs, moved;  // moved: bytes in and out together

    PipelineSegment() = default;
    PipelineSegment(int row_count, const Lists& strip_macs, const Lists& strip_moved) : rows(row_count) {
        require(rows > 0 && rows < kMostRows, "segment: ", rows, " is not a number of rows");
        macs = StripTable("MACs of a segment", rows, strip_macs);
        moved = StripTable("bytes of a segment", rows, strip_moved);
    }

private:
    static constexpr int kMostRows = 1 << 30;
};

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

// Units one after another: what each run of them costs, and what crosses each cut.
struct PipelineChain {
    using Segments = std::map<std::pair<int, int>, PipelineSegment>;  // by cut of start and stop: all there are

    int cuts = 0;                           // the last cut; the first is 0
    std::vector<PipelineSegment> segments;  // (start, stop) at index(start, stop)
    std::vector<std::int64_t> macs_before;  // by cut
    std::vector<std::int64_t> handover;     // by cut: bytes charged between stages (0: not charged)

    PipelineChain(const Segments& given, std::vector<std::int64_t> macs_by_cut, std::vector<std::int64_t> bytes_by_cut)
        : macs_before(std::move(macs_by_cut)), handover(std::move(bytes_by_cut)) {
        require(macs_before.size() > 1 && macs_before.size() <= kMostCuts, "MACs before a cut: ", macs_before.size(),
                " cuts are not a chain");
        require_size("bytes handed over", handover.size(), macs_before.size());
        require_at_least<std::int64_t>("MACs before a cut", macs_before, 0);
        require_at_least<std::int64_t>("bytes handed over", handover, 0);
        require(std::is_sorted(macs_before.begin(), macs_before.end()), "MACs before a cut: they fall");
        cuts = static_cast<int>(macs_before.size()) - 1;
        segments = segments_in_place(given, cuts);
    }

    int index(int start, int stop) const { return start * (cuts + 1) + stop; }

private:
    static constexpr std::size_t kMostCuts = 1 << 15;  // indices of segments stay below 2^31
};

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

// What is asked for: a pipeline of the chain on the devices, in the order that strips lie in.
struct PipelineProblem {
    using Device = std::pair<int, double>;        // type, MACs a second; those of a type are interchangeable
    using Forbidden = std::tuple<int, int, int>;  // start, stop, device

    PipelineChain chain;
    PipelineNetwork network;
    std::vector<double> speed;                // by device, falling
    std::vector<int> type;                    // by device, rising
    double latency_limit;                     // seconds, or infinity
    bool several_blocks;                      // a stage may be several fused blocks
    std::vector<std::vector<int>> forbidden;  // by segment: devices (any of a type: all of it) that may not run it

    PipelineProblem(PipelineChain units, const std::vector<Device>& devices, PipelineNetwork links,
                    double latency_seconds, bool blocks, const std::vector<Forbidden>& none_of)
        : chain(std::move(units)), network(std::move(links)), latency_limit(latency_seconds), several_blocks(blocks),
          forbidden(chain.segments.size()) {
        require_size("seconds by pair", network.per_byte.size(), devices.size());
        require(latency_limit >= 0, "latency limit: it is not at least 0 seconds");
        for (const auto& [kind, macs_per_second] : devices) {
            require(macs_per_second > 0, "devices: a speed is not above 0");
            require(speed.empty() || macs_per_second <= speed.back(), "devices: they are not in order of speed");
            require(type.empty() || kind >= type.back(), "devices: they are not in order of type");
            require(type.empty() || kind != type.back() || macs_per_second == speed.back(),
                    "devices: two of a type differ in speed");
            speed.push_back(macs_per_second);
            type.push_back(kind);
        }
        require_sets(type);
        for (const auto& [start, stop, device] : none_of) {
            require(0 <= start && start < stop && stop <= chain.cuts && 0 <= device && device < device_count(),
                    "forbidden: (", start, ", ", stop, ", ", device, ") is not a stage on a device");
            forbidden[index(start, stop)].push_back(device);
        }
    }

    int device_count() const { return static_cast<int>(speed.size()); }
    int index(int start, int stop) const { return chain.index(start, stop); }
    const PipelineSegment& segment(int start, int stop) const { return chain.segments[index(start, stop)]; }
    double macs(int start, int stop) const {
        return static_cast<double>(chain.macs_before[stop] - chain.macs_before[start]);
    }
    bool summed() const { return !network.overlap && !network.shared; }

    // Seconds a byte between the leader and whichever of the devices it is nearest to; of all pairs alike, of these.
    double least_rate(const std::vector<int>& devices, int leader) const {
        if (speed.size() < 2) return 0;
        if (network.uniform) return network.per_byte[0][1];
        double least = kNever;
        for (int second : devices) {
            if (leader != kAnyLeader && second != devices[leader])
                least = std::min(least, network.per_byte[devices[leader]][second]);
            for (int first : devices)
                if (leader == kAnyLeader && first != second) least = std::min(least, network.per_byte[first][second]);
        }
        return least == kNever ? 0 : least;
    }

    // Seconds that the stage behind a cut waits for its input.
    double hand_over(int cut, int from, int to) const {
        if (cut == 0 || chain.handover[cut] == 0 || speed.size() < 2) return 0;
        if (network.uniform)
            return static_cast<double>(chain.handover[cut]) * network.per_byte[0][1] + network.latency[0][1];
        return static_cast<double>(chain.handover[cut]) * network.per_byte[from][to] + network.latency[from][to];
    }
};

struct PipelineStage {
    int leader = 0;
    std::vector<std::tuple<int, int, std::vector<int>>> blocks;  // start, stop, boundaries (one more than devices)
    std::vector<int> devices;
};

}  // namespace downset
