// What is known of a placement under a capacity while it is built: by record the least offset still possible, by
// section (a stretch of steps in which the same records live) what is left, and inference from both. Everything is
// undone from a trail. The search that drives it: arenas/capacity_search.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "arenas/section_layout.hpp"
#include "deadline.hpp"

namespace downset {

class SectionState : public SectionLayout {
public:
    std::int64_t inferences() const { return inferences_; }

protected:
    Size capacity_ = -1;
    std::vector<double> weight_;
    bool timed_out_ = false;
    Deadline deadline_{0};
    std::int64_t nodes_ = 0, inferences_ = 0;
    std::vector<std::int64_t> failed_at_;  // by section: the node of its last failure

    std::vector<Size> low_;   // no placement that is left has a lower offset; a placed record's offset
    std::vector<Size> rest_;  // where the placed ones alone would let it rest
    std::vector<char> placed_;
    std::vector<Size> unplaced_;              // their sum in a section
    std::vector<int> begins_, ends_, spans_;  // unplaced that begin or end at a boundary, or live on both its sides
    struct Change {
        std::vector<Size>* list;
        int record;
        Size before;
    };
    std::vector<Change> trail_;
    std::vector<int> stack_, cuts_;  // placed records; boundaries that the last one placed was the last to span

    explicit SectionState(const ArenaProblem& problem) : SectionLayout(problem), weight_(count_, 1.0) {}
    SectionState(const ArenaProblem& problem, const Window& window)
        : SectionLayout(problem, window), weight_(window.weight) {}

    // Back to the start; false if it is plain that nothing fits.
    bool reset() {
        low_.assign(count_, 0);
        rest_.assign(count_, 0);
        placed_.assign(count_, 0);
        unplaced_.assign(sections_, 0);
        begins_.assign(sections_ + 1, 0);
        ends_.assign(sections_ + 1, 0);
        spans_.assign(sections_ + 1, 0);
        queued_.assign(sections_, 0);
        failed_at_.assign(sections_, -1);
        queue_.clear();
        trail_.clear();
        stack_.clear();
        for (int i = 0; i < count_; ++i) {
            count_in(i, 1);
            low_[i] = rest_[i] = pinned_[i] >= 0 ? pinned_[i] : above_obstacles(i, least_[i]);
            if (low_[i] + size_[i] > capacity_) return false;
            if (pinned_[i] < 0)
                for (int s = first_section(i) + 1; s < last_section(i); ++s) ++spans_[s];
            enqueue(i);
        }
        return true;
    }

    bool propagate(Size last) {
        const std::size_t most = queue_.size() * kRounds;
        for (std::size_t head = 0; head < queue_.size() && head <= most; ++head) {
            if (head % 64 == 63 && deadline_.passed()) timed_out_ = true;
            if (timed_out_) break;
            const int section = queue_[head];
            queued_[section] = 0;
            if (unplaced_[section] > 0 && maximal(section) && !consistent(section, last)) return drop_queue(false);
        }
        return drop_queue(true);
    }

    // Puts a record at its lowest offset: what lives with it rests above it. Inference is left to `propagate`.
    void put(int record) {
        const Size top = low_[record] + size_[record];
        placed_[record] = 1;
        stack_.push_back(record);
        count_in(record, -1);
        cuts_.clear();
        for (int s = first_section(record) + 1; s < last_section(record); ++s)
            if (--spans_[s] == 0) cuts_.push_back(s);
        for (int other : problem_.conflicts[record])
            if (!placed_[other] && pinned_[other] < 0 && rest_[other] < top)
                raise(rest_, other, above_obstacles(other, top));
    }
    // False if it is seen that what is left no longer fits after `record` was put.
    bool propagate_from(int record) {
        enqueue(record);
        for (int other : problem_.conflicts[record])
            if (!placed_[other] && pinned_[other] < 0 && low_[other] < rest_[other]) {
                raise(low_, other, rest_[other]);
                if (low_[other] + size_[other] > capacity_) {
                    weight_[other] += 1.0;
                    failed_at_[first_section(other)] = failed_at_[last_section(other) - 1] = nodes_;
                    return drop_queue(false);
                }
                enqueue(other);
            }
        return propagate(low_[record]);
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

private:
    static constexpr int kRounds = 3;  // inference visits each section about this often before the search goes on

    struct Job {
        Size low, size, end;
        int record;
    };
    std::vector<Job> jobs_;
    std::vector<Size> sums_;
    std::vector<int> queue_;
    std::vector<char> queued_;

    void count_in(int record, int sign) {
        for (auto [start, stop] : ranges_[record]) {
            begins_[start] += sign;
            ends_[stop] += sign;
            for (int s = start; s < stop; ++s) unplaced_[s] += sign * size_[record];
        }
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

    // The jobs from `first` on do not fit: they gain weight.
    bool failed(int section, int first) {
        failed_at_[section] = nodes_;
        for (std::size_t k = first; k < jobs_.size(); ++k) weight_[jobs_[k].record] += 1.0;
        return false;
    }

    // Bounds and inference in one section, given that nothing unplaced goes below `last`.
    bool consistent(int section, Size last) {
        ++inferences_;
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
        if (lowest + total > capacity_) return failed(section, 0);
        if (highest + total <= capacity_) return true;
        const int count = static_cast<int>(jobs_.size());
        sort_jobs([](const Job& one, const Job& other) { return one.low < other.low; });
        Size above = 0;
        for (int k = count - 1; k >= 0; --k) {
            above += jobs_[k].size;
            if (jobs_[k].low + above > capacity_) return failed(section, k);
        }
        if (count < 2) return true;
        // Not first: a job that does not fit below all of a set goes above one of it, so not below their least end.
        std::reverse(jobs_.begin(), jobs_.end());  // nearly the order by ends then
        sort_jobs([](const Job& one, const Job& other) {
            if (one.end != other.end) return one.end > other.end;
            return one.low != other.low ? one.low < other.low : one.record < other.record;
        });
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
            if (pinned_[job.record] >= 0) return failed(section, 0);
            const Size value = above_obstacles(job.record, jobs_[low].end);
            if (value + job.size > capacity_) return failed(section, 0);
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
        if (jobs_.size() > 64) return std::sort(jobs_.begin(), jobs_.end(), less);
        for (std::size_t k = 1; k < jobs_.size(); ++k) {
            const Job job = jobs_[k];
            std::size_t place = k;
            for (; place > 0 && less(job, jobs_[place - 1]); --place) jobs_[place] = jobs_[place - 1];
            jobs_[place] = job;
        }
    }
};

}  // namespace downset
