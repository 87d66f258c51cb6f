// Pipelines whose stages are whole layers between any two downsets, each stage on one device.
//
// A tensor goes from its maker to its first reader, and from every reader to the next one. So what a stage receives and
// sends depends on the downsets at its two ends alone, and the least period is a shortest path over pairs of (downset,
// multiset of devices used), whose length is the largest load of a stage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "check.hpp"
#include "deadline.hpp"
#include "outcome.hpp"
#include "pipelines/device_sets.hpp"

namespace downset {

// What is planned. `downsets`: vertices of each, the empty set first, the whole set last, every set behind its subsets.
struct WholeLayerProblem {
    using Set = Bits<std::vector<Word>>;
    using Lists = std::vector<std::vector<int>>;

    // `tensors`: its maker or -1, 1 if it is a result or 0, its readers. `message_s`: of each tensor. `compute_s`: by
    // type of device and vertex. `types`: of each device, rising. `full`: by type, whether it sends and receives at
    // once.
    WholeLayerProblem(int vertices, const Lists& sets, const Lists& tensors, std::vector<double> message_seconds,
                      const std::vector<std::vector<double>>& compute_seconds, const std::vector<int>& types,
                      std::vector<int> full_duplex, bool sends_beside, bool one_medium)
        : devices(std::vector<double>(types.size(), 1.0), types), message_s(std::move(message_seconds)),
          full(std::move(full_duplex)), overlap(sends_beside), shared(one_medium) {
        constexpr std::size_t kMostLabels = 1 << 26;
        require(vertices > 0, "vertices: there are none");
        require(sets.size() > 1 && sets.size() * devices.count <= kMostLabels, "downsets: there are ", sets.size());
        require_size("types of devices", compute_s_of(compute_seconds, vertices), devices.have.size());
        require_size("types of devices", full.size(), devices.have.size());
        require_size("tensors", message_s.size(), tensors.size());
        require_at_least("seconds of a message", message_s, 0.0);
        for (const auto& members : sets) {
            downsets.push_back(set_of(members, vertices));
            require(downsets.back().size() >= downsets[std::max<std::size_t>(downsets.size(), 2) - 2].size(),
                    "downsets: they are not in order of size");
        }
        require(downsets.front().empty() && downsets.back().size() == vertices, "downsets: not from none to all");
        compute_s.resize(devices.have.size());
        for (std::size_t type = 0; type < devices.have.size(); ++type)
            for (const auto& members : downsets) {
                double seconds = 0;
                members.each([&](int v) { seconds += compute_seconds[type][v]; });
                compute_s[type].push_back(seconds);
            }
        open.resize(downsets.size());
        for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
            const auto& given = tensors[tensor];
            require(given.size() >= 2 && given[0] >= -1 && given[0] < vertices, "tensors: maker of ", tensor);
            readers.push_back(set_of({given.begin() + 2, given.end()}, vertices));
            for (std::size_t place = 1; place + 1 < downsets.size(); ++place)
                if ((given[0] < 0 || downsets[place].has(given[0])) &&
                    (given[1] || !readers.back().within(downsets[place])))
                    open[place].push_back(static_cast<int>(tensor));
            kept.push_back(given[1] != 0);
        }
    }

    DeviceSets devices;
    std::vector<Set> downsets;
    std::vector<Set> readers;                    // by tensor
    std::vector<bool> kept;                      // by tensor: a result, which goes to the last stage
    std::vector<double> message_s;               // by tensor
    std::vector<std::vector<double>> compute_s;  // by type and downset
    std::vector<std::vector<int>> open;          // by downset: the tensors made before it and wanted after it
    std::vector<int> full;
    bool overlap, shared;

private:
    static std::size_t compute_s_of(const std::vector<std::vector<double>>& seconds, int vertices) {
        for (const auto& line : seconds) {
            require_size("seconds by vertex", line.size(), vertices);
            require_at_least("seconds by vertex", line, 0.0);
        }
        return seconds.size();
    }
    static Set set_of(const std::vector<int>& members, int vertices) {
        Set set(std::vector<Word>((vertices + 63) / 64));
        for (const int v : members) {
            require(0 <= v && v < vertices, "vertices: ", v, " is not one of ", vertices);
            set.add(v);
        }
        return set;
    }
};

class WholeLayerSearch {
public:
    using Stages = std::vector<std::pair<int, int>>;  // (downset behind it, type of its device)

    explicit WholeLayerSearch(const WholeLayerProblem& problem) : p_(problem) {
        int place = 1;
        for (const int have : p_.devices.have) {
            step_.push_back(place);
            place *= have + 1;
        }
        room_.resize(step_.size());
        for (int set = 0; set < p_.devices.count; ++set)
            for (std::size_t type = 0; type < step_.size(); ++type)
                if (p_.devices.counts[set][type] < p_.devices.have[type]) room_[type].push_back(set);
    }

    // The chain of least length within `limit` seconds. The length is the largest load; on a shared network the seconds
    // of the medium, while no load is above the limit.
    Outcome within(double limit, double seconds) {
        const Deadline deadline(seconds);
        const int count = p_.devices.count, last = static_cast<int>(p_.downsets.size()) - 1;
        labels_.assign(p_.downsets.size() * count, kNever);
        from_.assign(labels_.size(), {-1, -1});
        std::vector<double> least(p_.downsets.size(), kNever);
        labels_[0] = least[0] = 0;
        for (int to = 1; to <= last; ++to) {
            if (deadline.passed()) return Outcome::kLimit;
            for (int from = 0; from < to; ++from)
                if (least[from] <= limit && p_.downsets[from].within(p_.downsets[to])) relax(from, to, limit);
            least[to] = *std::min_element(&labels_[to * count], &labels_[to * count] + count);
        }
        if (least[last] > limit || least[last] == kNever) return Outcome::kImpossible;
        trace(last);
        return Outcome::kSolved;
    }

    const Stages& stages() const { return stages_; }
    std::int64_t states() const { return states_; }
    double length_s() const { return length_s_; }

private:
    void relax(int from, int to, double limit) {
        double least_compute = kNever;
        for (const auto& seconds : p_.compute_s) least_compute = std::min(least_compute, seconds[to] - seconds[from]);
        if (least_compute > limit) return;
        const auto [in, out] = messages(from, to);
        const int count = p_.devices.count;
        const double* before = &labels_[static_cast<std::size_t>(from) * count];
        double* after = &labels_[static_cast<std::size_t>(to) * count];
        for (std::size_t type = 0; type < step_.size(); ++type) {
            const double load =
                load_s(static_cast<int>(type), p_.compute_s[type][to] - p_.compute_s[type][from], in, out);
            if (load > limit) continue;
            states_ += static_cast<std::int64_t>(room_[type].size());
            for (const int set : room_[type]) {
                const double length = p_.shared ? before[set] + in : std::max(before[set], load);
                if (length > limit || length >= after[set + step_[type]]) continue;
                after[set + step_[type]] = length;
                from_[static_cast<std::size_t>(to) * count + set + step_[type]] = {from, static_cast<int>(type)};
            }
        }
    }

    // Seconds in which a stage receives and sends.
    std::pair<double, double> messages(int from, int to) const {
        const bool ends = static_cast<std::size_t>(to) + 1 == p_.downsets.size();
        double in = 0, out = 0;
        for (const int tensor : p_.open[to]) out += p_.message_s[tensor];
        for (const int tensor : p_.open[from]) {
            bool read = ends && p_.kept[tensor];
            for (std::size_t word = 0; word < p_.readers[tensor].words.size() && !read; ++word)
                read = p_.readers[tensor].words[word] & p_.downsets[to].words[word] & ~p_.downsets[from].words[word];
            const bool still_open = !ends && (p_.kept[tensor] || !p_.readers[tensor].within(p_.downsets[to]));
            if (read)
                in += p_.message_s[tensor];
            else if (still_open)
                out -= p_.message_s[tensor];  // it passes by
        }
        return {in, std::max(out, 0.0)};
    }

    double load_s(int type, double compute, double in, double out) const {
        if (!p_.overlap) return compute + in + out;
        if (p_.shared) return compute;
        return std::max(compute, p_.full[type] ? std::max(in, out) : in + out);
    }

    void trace(int last) {
        const int count = p_.devices.count;
        const double* ends = &labels_[static_cast<std::size_t>(last) * count];
        int set = static_cast<int>(std::min_element(ends, ends + count) - ends);
        length_s_ = ends[set];
        stages_.clear();
        for (int to = last; to > 0;) {
            const auto [from, type] = from_[static_cast<std::size_t>(to) * count + set];
            stages_.emplace_back(to, type);
            set -= step_[type];
            to = from;
        }
        std::reverse(stages_.begin(), stages_.end());
    }

    const WholeLayerProblem& p_;
    std::vector<int> step_;               // by type: what one more device adds to a set's number
    std::vector<std::vector<int>> room_;  // by type: the sets that may have one more
    std::vector<double> labels_;          // by downset and set: the least length
    std::vector<std::pair<int, int>> from_;
    Stages stages_;
    std::int64_t states_ = 0;
    double length_s_ = kNever;
};

}  // namespace downset
