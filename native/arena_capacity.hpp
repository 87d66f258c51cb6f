// Offsets under a capacity, by complete search. Records are placed in the order of their offsets, each resting as low as
// those placed before it allow; among all placements, the one whose offsets have the least sum has this form, so nothing
// is lost. Where each technique comes from:
//   minimalloc (Moffitt, 2023)          this form of the search; sections; what could sink whole below a record keeps
//                                       it from being next (dominance); parts without a common record are solved one
//                                       by one (decomposition); several static orders in turn, with growing limits
//   disjunctive scheduling (Carlier     a section is a machine and its records are jobs: the earliest-release bound on
//   and Pinson, 1989; Baptiste et al.)  every subset of a section, and not-first inference, until nothing moves
//   Boussemart et al., 2004             records in sections that failed gain weight and come first after a restart
//   our own                             remembered failures: a set of records and where each could rest at the lowest
//                                       is searched once, whatever led there; only maximal sections are looked at
// All limits are counts of tried placements; the clock only ends the search. Specified by brute force in the tests.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "arena_search.hpp"

namespace downset {

class CapacitySearch {
public:
    using Size = ArenaProblem::Size;
    using Interval = ArenaProblem::Interval;
    enum class Outcome { kPlaced, kImpossible, kLimit };

    CapacitySearch(const ArenaProblem& problem, const std::vector<std::vector<Interval>>& active)
        : problem_(problem), count_(problem.count()), length_(count_, 0.0), ranges_(count_), weight_(count_, 1.0) {
        for (int i = 0; i < count_; ++i) {
            grain_ = std::gcd(grain_, std::gcd(problem.nbytes[i], problem.alignment[i]));
            if (problem.pinned[i] > 0) grain_ = std::gcd(grain_, problem.pinned[i]);
        }
        grain_ = std::max<Size>(grain_, 1);
        std::vector<std::int64_t> points;
        for (const auto& pieces : active)
            for (auto [start, stop] : pieces) {
                points.push_back(start);
                points.push_back(stop);
            }
        std::sort(points.begin(), points.end());
        points.erase(std::unique(points.begin(), points.end()), points.end());
        sections_ = std::max<int>(0, static_cast<int>(points.size()) - 1);
        const auto at = [&](std::int64_t point) {
            return static_cast<int>(std::lower_bound(points.begin(), points.end(), point) - points.begin());
        };
        members_.resize(sections_);
        for (int i = 0; i < count_; ++i) {
            size_.push_back(problem.nbytes[i] / grain_);
            alignment_.push_back(problem.alignment[i] / grain_);
            pinned_.push_back(problem.pinned[i] < 0 ? -1 : problem.pinned[i] / grain_);
            for (auto [start, stop] : active[i]) {
                length_[i] += static_cast<double>(stop - start);
                // Pieces that touch become one, so that a boundary is where a record really begins or ends.
                if (!ranges_[i].empty() && ranges_[i].back().second == at(start))
                    ranges_[i].back().second = at(stop);
                else
                    ranges_[i].emplace_back(at(start), at(stop));
                for (int s = at(start); s < at(stop); ++s) members_[s].push_back(i);
            }
        }
        obstacles_.resize(count_);
        for (int i = 0; i < count_; ++i)
            for (int other : problem.rivals[i]) {
                if (pinned_[other] >= 0 && pinned_[i] < 0) obstacles_[i].push_back(other);
            }
        for (auto& list : obstacles_)
            std::sort(list.begin(), list.end(), [&](int a, int b) { return pinned_[a] < pinned_[b]; });
        failures_.assign(std::size_t{1} << kTableBits, 0);
    }

    // Looks for a placement within `capacity`. kImpossible is a proof.
    Outcome run(Size capacity, double seconds, std::int64_t node_limit) {
        if (capacity / grain_ != capacity_) std::fill(failures_.begin(), failures_.end(), 0);
        capacity_ = capacity / grain_;
        deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
        timed_out_ = false;
        std::int64_t spent = 0;
        Outcome outcome = Outcome::kLimit;
        for (std::int64_t slice = 2 * count_ + 16; spent < node_limit && !timed_out_; slice *= 2)
            for (int attempt = 0; attempt < kAttempts && spent < node_limit && !timed_out_; ++attempt) {
                weighted_ = attempt % 2 == 1;
                order_ = attempt / 2;
                nodes_ = 0;
                slice_ = std::min(slice, node_limit - spent);
                outcome = attempt_once();
                spent += nodes_;
                if (outcome != Outcome::kLimit) {
                    total_nodes_ += spent;
                    return outcome;
                }
            }
        total_nodes_ += spent;
        return Outcome::kLimit;
    }

    std::vector<Size> offsets() const {
        std::vector<Size> all(count_);
        for (int i = 0; i < count_; ++i) all[i] = (pinned_[i] >= 0 ? pinned_[i] : low_[i]) * grain_;
        return all;
    }
    std::int64_t nodes() const { return total_nodes_; }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr int kTableBits = 18;
    static constexpr int kAttempts = 6;   // three orders, each without and with weights
    static constexpr int kRounds = 3;     // inference visits each section about this often before the search goes on

    const ArenaProblem& problem_;
    int count_, sections_ = 0;
    Size grain_ = 0, capacity_ = -1;
    std::vector<double> length_;
    std::vector<std::vector<std::pair<int, int>>> ranges_;  // the sections a record lives in
    std::vector<double> weight_;
    std::vector<Size> size_, alignment_, pinned_;
    std::vector<std::vector<int>> members_, obstacles_;
    std::vector<std::uint64_t> failures_;

    // The state of the search, by record and by section. All that changes is undone from the trail.
    std::vector<Size> low_;       // no placement that is left has a lower offset; a placed record's offset
    std::vector<Size> rest_;      // where the placed ones alone would let it rest
    std::vector<char> placed_;
    std::vector<Size> unplaced_;  // their sum in a section
    std::vector<int> begins_, ends_, spans_;  // unplaced that begin or end at a boundary, or live on both its sides
    struct Change {
        std::vector<Size>* list;
        int record;
        Size before;
    };
    std::vector<Change> trail_;
    std::vector<int> stack_, queue_, cuts_;
    std::vector<char> queued_;
    struct Job {
        Size low, size, end;
        int record;
    };
    std::vector<Job> jobs_;
    std::vector<Size> sums_;
    bool weighted_ = false, timed_out_ = false;
    int order_ = 0;
    std::int64_t nodes_ = 0, slice_ = 0, total_nodes_ = 0;
    Clock::time_point deadline_;

    template <class Visit>
    void each_section(int record, Visit visit) const {
        for (auto [start, stop] : ranges_[record])
            for (int s = start; s < stop; ++s) visit(s);
    }
    int first_section(int record) const { return ranges_[record].front().first; }
    int last_section(int record) const { return ranges_[record].back().second; }

    void count_in(int record, int sign) {
        for (auto [start, stop] : ranges_[record]) {
            begins_[start] += sign;
            ends_[stop] += sign;
            for (int s = start; s < stop; ++s) unplaced_[s] += sign * size_[record];
        }
    }
    bool reset() {
        low_.assign(count_, 0);
        rest_.assign(count_, 0);
        placed_.assign(count_, 0);
        unplaced_.assign(sections_, 0);
        begins_.assign(sections_ + 1, 0);
        ends_.assign(sections_ + 1, 0);
        spans_.assign(sections_ + 1, 0);
        queued_.assign(sections_, 0);
        queue_.clear();
        trail_.clear();
        stack_.clear();
        for (int i = 0; i < count_; ++i) {
            count_in(i, 1);
            low_[i] = rest_[i] = pinned_[i] >= 0 ? pinned_[i] : above_obstacles(i, 0);
            if (low_[i] + size_[i] > capacity_) return false;
            if (pinned_[i] < 0)
                for (int s = first_section(i) + 1; s < last_section(i); ++s) ++spans_[s];
            enqueue(i);
        }
        return true;
    }

    Size above_obstacles(int record, Size offset) const {
        const Size alignment = alignment_[record];
        if (alignment > 1) offset = (offset + alignment - 1) / alignment * alignment;
        for (int other : obstacles_[record])
            if (offset < pinned_[other] + size_[other]) {
                if (offset + size_[record] <= pinned_[other]) break;
                offset = (pinned_[other] + size_[other] + alignment - 1) / alignment * alignment;
            }
        return offset;
    }

    void enqueue(int record) {
        each_section(record, [&](int s) {
            if (!queued_[s]) {
                queued_[s] = 1;
                queue_.push_back(s);
            }
        });
    }
    bool drop_queue(bool alive) {
        for (int s : queue_) queued_[s] = 0;
        queue_.clear();
        return alive;
    }
    void raise(std::vector<Size>& list, int record, Size value) {
        trail_.push_back({&list, record, list[record]});
        list[record] = value;
    }

    // Whether no other section holds all that is unplaced here and more: such another one says all that this one could.
    // A section is maximal if something begins at it and, before anything else begins, something ends.
    bool maximal(int section) const {
        if (!begins_[section]) return false;
        int next = section + 1;
        while (next < sections_ && !begins_[next] && !ends_[next]) ++next;
        return next == sections_ || ends_[next] > 0;
    }

    bool failed(int section) {
        for (int i : members_[section])
            if (!placed_[i]) weight_[i] += 1.0;
        return false;
    }

    // Bounds and inference in one section, given that nothing unplaced goes below `last`.
    bool consistent(int section, Size last) {
        jobs_.clear();
        Size lowest = std::numeric_limits<Size>::max(), highest = 0, total = 0;
        bool pins = false;
        for (int i : members_[section])
            if (!placed_[i]) {
                if (pinned_[i] >= 0) {
                    pins = true;
                    continue;
                }
                const Size low = std::max(low_[i], last);
                jobs_.push_back({low, size_[i], low + size_[i], i});
                lowest = std::min(lowest, low);
                highest = std::max(highest, low);
                total += size_[i];
            }
        if (jobs_.empty()) return true;
        if (pins)  // a pinned record above the lowest is a job that cannot move
            for (int i : members_[section])
                if (pinned_[i] >= lowest) {
                    jobs_.push_back({pinned_[i], size_[i], pinned_[i] + size_[i], i});
                    highest = std::max(highest, pinned_[i]);
                    total += size_[i];
                }
        if (lowest + total > capacity_) return failed(section);
        if (highest + total <= capacity_) return true;
        const int count = static_cast<int>(jobs_.size());
        sort_jobs([](const Job& one, const Job& other) { return one.low < other.low; });
        Size above = 0;
        for (int k = count - 1; k >= 0; --k) {
            above += jobs_[k].size;
            if (jobs_[k].low + above > capacity_) return failed(section);
        }
        if (count < 2) return true;
        // Not first: a job that does not fit below all of a set goes above one of it, so not below their least end.
        sort_jobs([](const Job& one, const Job& other) { return one.end > other.end; });
        sums_.resize(count);
        Size sum = 0;
        for (int k = 0; k < count; ++k) sums_[k] = sum += jobs_[k].size;
        for (int k = 0; k < count; ++k) {
            const Job& job = jobs_[k];
            const Size room = capacity_ - job.end;  // for the set
            if (sum - job.size <= room) continue;
            int low = 0, high = count - 1;  // the fewest of the latest ends that are too many
            while (low < high) {
                const int middle = (low + high) / 2;
                if (sums_[middle] - (k <= middle ? job.size : 0) > room)
                    high = middle;
                else
                    low = middle + 1;
            }
            if (low == k || jobs_[low].end <= job.low) continue;
            if (pinned_[job.record] >= 0) return failed(section);
            const Size value = above_obstacles(job.record, jobs_[low].end);
            if (value + job.size > capacity_) return failed(section);
            if (value > low_[job.record]) {
                raise(low_, job.record, value);
                enqueue(job.record);
            }
        }
        return true;
    }
    // Few jobs, nearly in order.
    template <class Less>
    void sort_jobs(Less less) {
        for (std::size_t k = 1; k < jobs_.size(); ++k) {
            const Job job = jobs_[k];
            std::size_t at = k;
            for (; at > 0 && less(job, jobs_[at - 1]); --at) jobs_[at] = jobs_[at - 1];
            jobs_[at] = job;
        }
    }

    bool propagate(Size last) {
        const std::size_t most = queue_.size() * kRounds;
        for (std::size_t head = 0; head < queue_.size(); ++head) {
            if (head > most) return drop_queue(true);
            const int section = queue_[head];
            queued_[section] = 0;
            if (unplaced_[section] > 0 && maximal(section) && !consistent(section, last)) return drop_queue(false);
        }
        return drop_queue(true);
    }

    static std::uint64_t mixed(std::uint64_t value) {
        value += 0x9e3779b97f4a7c15ULL;
        value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
        value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
        return value ^ (value >> 31);
    }
    // What the rest of the search depends on. Two states are taken for one if 64 bits agree.
    std::uint64_t signature(const std::vector<int>& records, Size last) const {
        std::uint64_t all = mixed(static_cast<std::uint64_t>(last) + 1);
        for (int i : records)
            if (!placed_[i]) all += mixed(mixed(static_cast<std::uint64_t>(i) + 1) + static_cast<std::uint64_t>(rest_[i]));
        return all | 1;
    }
    std::uint64_t& slot(std::uint64_t state) { return failures_[state >> (64 - kTableBits)]; }

    // Places a record at its lowest offset; false if it is seen that the rest does not fit any more.
    bool place(int record, const std::vector<int>& records, std::uint64_t& state) {
        const Size last = low_[record], top = last + size_[record];
        placed_[record] = 1;
        stack_.push_back(record);
        count_in(record, -1);
        cuts_.clear();
        for (int s = first_section(record) + 1; s < last_section(record); ++s)
            if (--spans_[s] == 0) cuts_.push_back(s);
        for (int other : problem_.rivals[record])
            if (!placed_[other] && pinned_[other] < 0 && rest_[other] < top)
                raise(rest_, other, above_obstacles(other, top));
        if (cuts_.empty()) {
            state = signature(records, last);
            if (slot(state) == state) return false;
        }
        enqueue(record);
        for (int other : problem_.rivals[record])
            if (!placed_[other] && pinned_[other] < 0 && low_[other] < rest_[other]) {
                raise(low_, other, rest_[other]);
                if (low_[other] + size_[other] > capacity_) {
                    weight_[other] += 1.0;
                    return drop_queue(false);
                }
                enqueue(other);
            }
        return propagate(last);
    }
    void undo(std::size_t depth, std::size_t changes) {
        for (; trail_.size() > changes; trail_.pop_back())
            (*trail_.back().list)[trail_.back().record] = trail_.back().before;
        for (; stack_.size() > depth; stack_.pop_back()) {
            const int record = stack_.back();
            placed_[record] = 0;
            count_in(record, 1);
            for (int s = first_section(record) + 1; s < last_section(record); ++s) ++spans_[s];
        }
    }

    struct Part {
        std::vector<int> records;
        int begin, end;  // sections
    };
    Part part(const std::vector<int>& records, int begin, int end) const {
        Part found{{}, begin, end};
        for (int i : records)
            if (!placed_[i] && first_section(i) < end && begin < last_section(i)) found.records.push_back(i);
        return found;
    }

    Outcome attempt_once() {
        if (!reset() || !propagate(0)) return Outcome::kImpossible;
        std::vector<int> free;
        for (int i = 0; i < count_; ++i)
            if (pinned_[i] < 0) free.push_back(i);
        std::vector<int> borders;
        for (int s = 1; s <= sections_; ++s)
            if (s == sections_ || spans_[s] == 0) borders.push_back(s);
        return solve_parts(free, 0, borders);
    }
    Outcome solve_parts(const std::vector<int>& records, int begin, const std::vector<int>& borders) {
        for (int end : borders) {
            Part next = part(records, begin, end);
            begin = end;
            if (next.records.empty()) continue;
            const Outcome outcome = solve(next);
            if (outcome != Outcome::kPlaced) return outcome;
        }
        return Outcome::kPlaced;
    }

    // A part by itself, in the order at hand: by the longest life, the largest area, or the fullest section first.
    Outcome solve(Part& part) {
        const std::uint64_t state = signature(part.records, 0);
        if (slot(state) == state) return Outcome::kImpossible;
        struct Keyed {
            std::array<double, 3> key;
            int record;
        };
        std::vector<Keyed> keyed;
        for (int i : part.records) {
            Size fullest = 0;
            each_section(i, [&](int s) { fullest = std::max(fullest, unplaced_[s]); });
            const double weight = weighted_ ? weight_[i] : 1.0;
            const std::array<double, 3> key = {length_[i] * weight, length_[i] * static_cast<double>(size_[i]) * weight,
                                               static_cast<double>(fullest) * weight};
            static constexpr int kOrders[3][3] = {{0, 1, 2}, {2, 1, 0}, {2, 0, 1}};
            const auto& turn = kOrders[order_];
            keyed.push_back({{key[turn[0]], key[turn[1]], key[turn[2]]}, i});
        }
        std::sort(keyed.begin(), keyed.end(), [](const Keyed& one, const Keyed& other) {
            return one.key != other.key ? one.key > other.key : one.record < other.record;
        });
        for (std::size_t k = 0; k < keyed.size(); ++k) part.records[k] = keyed[k].record;
        const Outcome outcome = descend(part, 0);
        if (outcome == Outcome::kImpossible) slot(state) = state;
        return outcome;
    }

    Outcome descend(const Part& part, Size last) {
        // A record that would leave room for a whole other one below it is not next: that one could sink there.
        Size ceiling = std::numeric_limits<Size>::max();
        for (int i : part.records)
            if (!placed_[i]) ceiling = std::min(ceiling, rest_[i] + size_[i]);
        if (ceiling == std::numeric_limits<Size>::max()) return Outcome::kPlaced;
        std::vector<std::pair<Size, int>> candidates;
        for (int i : part.records)
            if (!placed_[i] && low_[i] >= last && low_[i] < ceiling) candidates.emplace_back(low_[i], i);
        std::stable_sort(candidates.begin(), candidates.end(),
                         [](const auto& one, const auto& other) { return one.first < other.first; });
        const std::size_t changes = trail_.size(), depth = stack_.size();
        for (auto [offset, record] : candidates) {
            if (++nodes_ > slice_) return Outcome::kLimit;
            if (nodes_ % 8 == 0 && Clock::now() > deadline_) {
                timed_out_ = true;
                return Outcome::kLimit;
            }
            std::uint64_t state = 0;
            if (place(record, part.records, state)) {
                Outcome outcome;
                if (cuts_.empty()) {
                    outcome = descend(part, offset);
                    if (outcome == Outcome::kImpossible) slot(state) = state;
                } else {
                    std::vector<int> borders = cuts_;
                    borders.push_back(part.end);
                    outcome = solve_parts(part.records, part.begin, borders);
                }
                if (outcome != Outcome::kImpossible) return outcome;
            }
            undo(depth, changes);
        }
        return Outcome::kImpossible;
    }
};

}  // namespace downset
