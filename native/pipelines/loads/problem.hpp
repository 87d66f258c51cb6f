// Pipelines by the loads of their resources: segments priced by rows, devices by type, the network between them, and
// where frames come from and results go to. Everything is checked where it is made; the searches rely on it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "check.hpp"
#include "pipelines/device_sets.hpp"
#include "pipelines/problem.hpp"

namespace downset {

// Strip [lo, hi) of a segment costs upper[hi] - lower[lo], or final[lo] where hi is the last row.
struct StripCosts {
    std::vector<double> upper, lower, final;  // by row, and behind the last

    double of(int lo, int hi) const {
        return hi + 1 == static_cast<int>(upper.size()) ? final[lo] : upper[hi] - lower[lo];
    }
};

// The units between two cuts. Strips differ in MACs, bytes in, bytes out, and their work for each class of devices.
struct LoadSegment {
    int rows = 0;
    StripCosts macs, in, out;
    std::vector<StripCosts> work;
    bool inner_in = false, inner_out = false;  // whether strips above the last row have bytes in, and out

    LoadSegment() = default;

    // `tables`: macs, in, out and the classes of work, of each upper, lower and final, of each rows + 1 numbers.
    LoadSegment(int row_count, const double* tables, std::size_t quantities) : rows(row_count) {
        require(rows > 0 && rows < kMostRows, "segment: ", rows, " is not a number of rows");
        require(quantities > 3, "segment: no class of work");
        const std::size_t width = static_cast<std::size_t>(rows) + 1;
        std::vector<StripCosts> all(quantities);
        for (StripCosts& costs : all)
            for (auto* list : {&costs.upper, &costs.lower, &costs.final})
                list->assign(tables, tables + width), tables += width;
        for (const StripCosts& costs : all) require_rising(costs);
        macs = std::move(all[0]), in = std::move(all[1]), out = std::move(all[2]);
        work.assign(std::make_move_iterator(all.begin() + 3), std::make_move_iterator(all.end()));
        inner_in = rows > 1 && in.of(0, 1) > 0;
        inner_out = rows > 1 && out.of(0, 1) > 0;
    }

    // Bytes in and out together.
    StripCosts in_and_out() const {
        StripCosts both = in;
        for (auto list : {&StripCosts::upper, &StripCosts::lower, &StripCosts::final})
            for (std::size_t row = 0; row < (both.*list).size(); ++row) (both.*list)[row] += (out.*list)[row];
        return both;
    }

    // The least bytes a MAC of any strip, by Dinkelbach's method: lower the ratio until no strip is below it.
    double strip_ratio(const StripCosts& strip_bytes) const {
        if (macs.final[0] <= 0) return 0;
        double ratio = strip_bytes.final[0] / macs.final[0];
        for (int round = 0; round < 50; ++round) {
            double least = 0, better = ratio;  // of bytes - ratio · MACs
            double base = -kNever;
            int base_row = 0;
            const auto offer = [&](double nbytes, double strip_macs) {
                const double value = nbytes - ratio * strip_macs;
                if (strip_macs > 0 && value < least) least = value, better = std::max(0.0, nbytes / strip_macs);
            };
            for (int hi = 1; hi < rows; ++hi) {
                const double here = strip_bytes.lower[hi - 1] - ratio * macs.lower[hi - 1];
                if (here > base) base = here, base_row = hi - 1;
                offer(strip_bytes.upper[hi] - strip_bytes.lower[base_row], macs.upper[hi] - macs.lower[base_row]);
            }
            for (int lo = 0; lo < rows; ++lo) offer(strip_bytes.final[lo], macs.final[lo]);
            if (better >= ratio * (1 - 1e-12)) return ratio * (1 - 1e-9);
            ratio = better;
        }
        return 0;  // not settled: no bound
    }

private:
    static constexpr int kMostRows = 1 << 30;

    // No strip ends at row 0 and none starts behind the last row: what stands there means nothing.
    void require_rising(const StripCosts& costs) const {
        for (int row = 0; row < rows; ++row) {
            require(std::isfinite(costs.upper[row + 1]) && std::isfinite(costs.lower[row]) && costs.final[row] >= 0 &&
                        std::isfinite(costs.final[row]),
                    "segment: no number at row ", row);
            require(row + 1 == rows || costs.upper[row + 1] >= costs.lower[row], "segment: less than nothing at row ",
                    row);
            require(row == 0 || row + 1 == rows || costs.upper[row + 1] >= costs.upper[row],
                    "segment: costs fall at row ", row);
            require(row == 0 || costs.lower[row] >= costs.lower[row - 1], "segment: costs fall at row ", row);
        }
    }
};

// Units one after another: what each run of them costs, and what crosses each cut, the first and the last included.
struct LoadChain {
    using Segments = std::map<std::pair<int, int>, LoadSegment>;  // by cut of start and stop: all there are

    int cuts = 0;                       // the last cut; the first is 0
    std::vector<LoadSegment> segments;  // (start, stop) at index(start, stop)
    std::vector<double> macs_before;    // by cut: the least of any plan
    std::vector<double> crossing;       // by cut: bytes of all tensors over it

    LoadChain(const Segments& given, std::vector<double> macs_by_cut, std::vector<double> bytes_by_cut)
        : macs_before(std::move(macs_by_cut)), crossing(std::move(bytes_by_cut)) {
        require(macs_before.size() > 1 && macs_before.size() <= kMostCuts, "MACs before a cut: ", macs_before.size(),
                " cuts are not a chain");
        require_size("bytes over a cut", crossing.size(), macs_before.size());
        require_at_least("MACs before a cut", macs_before, 0.0);
        require_at_least("bytes over a cut", crossing, 0.0);
        require(std::is_sorted(macs_before.begin(), macs_before.end()), "MACs before a cut: they fall");
        for (const auto* list : {&macs_before, &crossing})
            for (double number : *list) require(std::isfinite(number), "MACs and bytes of a cut: they are not finite");
        cuts = static_cast<int>(macs_before.size()) - 1;
        for (const auto& [cuts_of, segment] : given)
            require_size("classes of work", segment.work.size(), given.begin()->second.work.size());
        segments = segments_in_place(given, cuts);
    }

    int index(int start, int stop) const { return start * (cuts + 1) + stop; }

private:
    static constexpr std::size_t kMostCuts = 1 << 15;  // indices of segments stay below 2^31
};

struct LoadDevice {
    int type, work_class;  // those of a type are interchangeable; which table of work it goes by
    double speed, peak;    // work a second; MACs a second at most
    bool full;             // sends and receives at once

    LoadDevice(int kind, int by_class, double work_per_second, double macs_per_second, bool full_duplex)
        : type(kind), work_class(by_class), speed(work_per_second), peak(macs_per_second), full(full_duplex) {}
};

// What is asked for: a pipeline of the chain on the devices, in the order that strips lie in.
struct LoadProblem {
    using Forbidden = std::tuple<int, int, int>;  // start, stop, device

    LoadChain chain;
    PipelineNetwork network;
    std::vector<LoadDevice> devices;  // types rising
    int source, sink;                 // devices, or -1: outside
    DeviceSets sets;
    std::vector<std::vector<int>> forbidden;  // by segment: devices (any of a type: all of it) that may not run it

    LoadProblem(LoadChain units, std::vector<LoadDevice> members, PipelineNetwork links, int from, int to,
                const std::vector<Forbidden>& none_of)
        : chain(std::move(units)), network(std::move(links)), devices(std::move(members)), source(from), sink(to),
          sets(peaks(devices), types(devices)), forbidden(chain.segments.size()) {
        require_size("seconds by pair", network.per_byte.size(), devices.size());
        for (const auto* table : {&network.per_byte, &network.latency})
            for (const auto& line : *table)
                for (double seconds : line) require(std::isfinite(seconds), "seconds by pair: they are not finite");
        const int classes = static_cast<int>(chain.segments[index(0, 1)].work.size());
        for (std::size_t k = 0; k < devices.size(); ++k) {
            const LoadDevice& device = devices[k];
            require(device.speed > 0 && device.peak > 0 && std::isfinite(device.speed) && std::isfinite(device.peak),
                    "devices: a speed is not above 0");
            require(0 <= device.work_class && device.work_class < classes, "devices: ", device.work_class,
                    " is not a class of work");
            if (k == 0 || device.type != devices[k - 1].type) continue;
            const LoadDevice& before = devices[k - 1];
            require(device.speed == before.speed && device.peak == before.peak && device.full == before.full &&
                        device.work_class == before.work_class,
                    "devices: two of a type differ");
        }
        const int count = static_cast<int>(devices.size());
        require(-1 <= source && source < count && -1 <= sink && sink < count, "source and sink: no such device");
        for (int end : {source, sink})
            require(end < 0 || std::count_if(
                                   devices.begin(), devices.end(),
                                   [&](const LoadDevice& other) { return other.type == devices[end].type; }) == 1,
                    "source and sink: devices of types of their own");
        require(network.uniform || !network.shared, "network: a shared one has one rate");
        require(network.uniform || sets.count == 1 << count, "network: where pairs differ each device is a type");
        for (const auto& [start, stop, device] : none_of) {
            require(0 <= start && start < stop && stop <= chain.cuts && 0 <= device && device < count, "forbidden: (",
                    start, ", ", stop, ", ", device, ") is not a stage on a device");
            forbidden[index(start, stop)].push_back(device);
        }
    }

    int device_count() const { return static_cast<int>(devices.size()); }
    int index(int start, int stop) const { return chain.index(start, stop); }
    const LoadSegment& segment(int start, int stop) const { return chain.segments[index(start, stop)]; }
    double macs(int start, int stop) const { return chain.macs_before[stop] - chain.macs_before[start]; }
    // One resource computes and transfers.
    bool alone() const { return !network.overlap; }
    // A leader's sending and receiving are apart.
    bool full(int device) const { return network.overlap && !network.shared && devices[device].full; }

    double per_byte(int from, int to) const {
        if (devices.size() < 2 || from == to) return 0;
        return network.uniform ? network.per_byte[0][1] : network.per_byte[from][to];
    }
    double latency(int from, int to) const {
        if (devices.size() < 2 || from == to) return 0;
        return network.uniform ? network.latency[0][1] : network.latency[from][to];
    }

    // Seconds of what crosses a cut, from one device to another.
    double hand(int cut, int from, int to) const {
        if (from == to || chain.crossing[cut] == 0) return 0;
        return chain.crossing[cut] * per_byte(from, to) + latency(from, to);
    }
    // Likewise between any two: the least.
    double least_hand(int cut) const {
        if (devices.size() < 2) return 0;
        if (network.uniform) return hand(cut, 0, 1);
        double least = kNever;
        for (int from = 0; from < device_count(); ++from) least = std::min(least, least_from(cut, from));
        return least;
    }
    double least_from(int cut, int device) const {
        double least = kNever;
        for (int to = 0; to < device_count(); ++to)
            if (to != device) least = std::min(least, hand(cut, device, to));
        return least == kNever ? 0 : least;
    }

private:
    static std::vector<double> peaks(const std::vector<LoadDevice>& devices) {
        std::vector<double> peaks;
        for (const LoadDevice& device : devices) peaks.push_back(device.peak);
        return peaks;
    }
    static std::vector<int> types(const std::vector<LoadDevice>& devices) {
        std::vector<int> types;
        for (const LoadDevice& device : devices) types.push_back(device.type);
        return types;
    }
};

struct PipelineStage {
    int leader = 0;
    std::vector<std::tuple<int, int, std::vector<int>>> blocks;  // start, stop, boundaries (one more than devices)
    std::vector<int> devices;
};

}  // namespace downset
