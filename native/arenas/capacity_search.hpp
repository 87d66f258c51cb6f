// Offsets under a capacity, by complete search. Records are placed in the order of their offsets, each resting as low
// as those placed before it allow; among all placements, the one whose offsets have the least sum has this form, so
// nothing is lost. Where each technique comes from:
//   minimalloc (Moffitt, 2023)          this form of the search; sections; what could sink whole below a record keeps
//                                       it from being next (dominance); parts without a common record are solved one
//                                       by one (decomposition); several static orders in turn, with growing limits
//   disjunctive scheduling (Carlier     a section is a machine and its records are jobs: the earliest-release bound on
//   and Pinson, 1989; Baptiste et al.)  every subset of a section, and not-first inference (arenas/section_state.hpp)
//   Boussemart et al., 2004             records that took part in failures come first after a restart
//   Luby et al., 1993                   the lengths of the runs between restarts
//   our own                             remembered failures: a set of records and where each could rest at the lowest
//                                       is searched once, whatever led there. Windows: where a node fails, the stretch
//                                       of sections that failed is searched by itself; if what is left there does not
//                                       fit whatever happens elsewhere, that is a nogood, and no node above it need be
//                                       tried in another way: as by backjumping, in a search whose order of
//                                       decisions is not free
// All limits are counts of tried placements; the clock only ends the search. Specified by brute force in the tests.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "arenas/section_state.hpp"
#include "bits.hpp"
#include "deadline.hpp"
#include "outcome.hpp"

namespace downset {

class CapacitySearch : public SectionState {
public:
    explicit CapacitySearch(const ArenaProblem& problem)
        : SectionState(problem), failures_(std::size_t{1} << table_bits_, 0), salts_(salts(count_)) {}

    // Looks for a placement within `capacity`. kImpossible is a proof.
    Outcome run(Size capacity, double seconds, std::int64_t node_limit) {
        require(capacity >= 0, "capacity: ", capacity, " bytes are less than nothing");
        require(count_ <= kMostRecords, "records: ", count_, " are more than a search that nests as deep can take");
        capacity_ = capacity / grain_;
        deadline_ = Deadline(seconds);
        timed_out_ = false;
        std::fill(failures_.begin(), failures_.end(), 0);
        nogoods_.clear();
        std::int64_t longest = 0;
        for (std::int64_t turn = 1; total_nodes_ < node_limit && !timed_out_; ++turn) {
            const std::int64_t length = luby(turn);
            // Every doubling of the longest run tries the static orders; all other runs follow the weights.
            for (int order = 0; length > longest && order < kOrders; ++order) {
                const Outcome outcome = attempt(order, false, length, node_limit);
                if (outcome != Outcome::kLimit) return outcome;
            }
            longest = std::max(longest, length);
            for (double& weight : weight_) weight = 1.0 + (weight - 1.0) * kDecay;
            const Outcome outcome = attempt(static_cast<int>(turn % kOrders), true, length, node_limit);
            if (outcome != Outcome::kLimit) return outcome;
        }
        return Outcome::kLimit;
    }

    std::vector<Size> offsets() const {
        std::vector<Size> all(count_);
        for (int i = 0; i < count_; ++i) all[i] = (pinned_[i] >= 0 ? pinned_[i] : low_[i]) * grain_;
        return all;
    }
    std::int64_t nodes() const { return total_nodes_; }
    std::int64_t nogoods() const { return learnt_; }

private:
    static constexpr int kMostRecords = 10'000;
    static constexpr int kOrders = 3;
    static constexpr int kRun = 4;               // nodes by record in a run of length 1
    static constexpr double kDecay = 0.95;       // of weights, from run to run
    static constexpr std::int64_t kThrash = 40;  // nodes below a failed node that make it worth a window
    static constexpr int kWindowBudget = 10;     // nodes in a window by node below
    static constexpr int kMargin = 2;            // sections added on both sides of what failed
    static constexpr std::size_t kMostNogoods = 200;

    using Candidate = std::tuple<Size, int, int>;  // lowest offset, place in the order at hand, record

    int table_bits_ = 18;
    std::vector<std::uint64_t> failures_;
    std::vector<std::uint64_t> salts_;  // by record, in its marks
    struct Bound {
        int record;
        Size low;
    };
    std::vector<Candidate> candidates_;        // of every node on the way
    std::uint64_t marks_sum_ = 0;              // of all that is not placed, where it could rest
    std::vector<std::vector<Bound>> nogoods_;  // not all of these can be at or above the offsets named
    bool weighted_ = false, windows_ = true;
    int order_ = 0;
    std::int64_t slice_ = 0, total_nodes_ = 0, asked_ = 0, learnt_ = 0;

    CapacitySearch(const ArenaProblem& problem, const Window& window, const CapacitySearch& outer)
        : SectionState(problem, window), table_bits_(12), failures_(std::size_t{1} << table_bits_, 0),
          salts_(salts(count_)), weighted_(outer.weighted_), windows_(false), order_(outer.order_) {
        capacity_ = outer.capacity_;
        deadline_ = outer.deadline_;
    }

    static std::int64_t luby(std::int64_t turn) {
        std::int64_t size = 1;
        while (2 * size - 1 < turn) size *= 2;
        return turn == 2 * size - 1 ? size : luby(turn - size + 1);
    }
    Outcome attempt(int order, bool weighted, std::int64_t length, std::int64_t node_limit) {
        if (timed_out_ || total_nodes_ >= node_limit) return Outcome::kLimit;
        order_ = order;
        weighted_ = weighted;
        slice_ = std::min(length * kRun * count_ + 16, node_limit - total_nodes_);
        nodes_ = asked_ = 0;
        candidates_.clear();
        const Outcome outcome = from_start();
        total_nodes_ += nodes_;
        return outcome;
    }

    struct Part {
        std::vector<int> records;
        int begin, end;                  // sections
        std::uint64_t marks_beside = 0;  // of what is not placed outside it
    };
    Outcome from_start() {
        if (!reset() || !propagate(0)) return Outcome::kImpossible;
        marks_sum_ = 0;
        for (int i = 0; i < count_; ++i) marks_sum_ += mark(i, rest_[i]);
        std::vector<int> free, borders;
        for (int i = 0; i < count_; ++i)
            if (pinned_[i] < 0) free.push_back(i);
        for (int s = 1; s <= sections_; ++s)
            if (s == sections_ || spans_[s] == 0) borders.push_back(s);
        return solve_parts(free, 0, borders);
    }
    Outcome solve_parts(const std::vector<int>& records, int begin, const std::vector<int>& borders) {
        for (int end : borders) {
            Part part{{}, begin, end, 0};
            begin = end;
            for (int i : records)
                if (!placed_[i] && first_section(i) < end && part.begin < last_section(i)) part.records.push_back(i);
            if (part.records.empty()) continue;
            const Outcome outcome = solve(part);
            if (outcome != Outcome::kSolved) return outcome;
        }
        return Outcome::kSolved;
    }

    // A part by itself, in the order at hand: by the longest life, the largest area, or the fullest section first.
    Outcome solve(Part& part) {
        part.marks_beside = marks_sum_ - marks(part);
        const std::uint64_t state = signature(part, 0);
        if (slot(state) == state) return Outcome::kImpossible;
        struct Keyed {
            std::array<double, 3> key;
            int record;
        };
        static constexpr int kTurns[kOrders][3] = {{0, 1, 2}, {2, 1, 0}, {2, 0, 1}};
        const auto& turn = kTurns[order_];
        std::vector<Keyed> keyed;
        for (int i : part.records) {
            Size fullest = 0;
            each_section(i, [&](int s) { fullest = std::max(fullest, unplaced_[s]); });
            const double weight = weighted_ ? weight_[i] : 1.0;
            const std::array<double, 3> key = {length_[i] * weight, length_[i] * static_cast<double>(size_[i]) * weight,
                                               static_cast<double>(fullest) * weight};
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
        const std::int64_t entered = nodes_, learnt = learnt_;
        // A record that would leave room for a whole other one below it is not next: that one could sink there.
        Size ceiling = std::numeric_limits<Size>::max();
        const std::size_t first = candidates_.size();
        for (int place = 0; place < static_cast<int>(part.records.size()); ++place) {
            const int i = part.records[place];
            if (placed_[i]) continue;
            ceiling = std::min(ceiling, rest_[i] + size_[i]);
            if (low_[i] >= last && low_[i] < ceiling) candidates_.emplace_back(low_[i], place, i);
        }
        if (ceiling == std::numeric_limits<Size>::max()) return Outcome::kSolved;
        const auto own = candidates_.begin() + first;
        candidates_.erase(
            std::remove_if(own, candidates_.end(), [&](const Candidate& one) { return std::get<0>(one) >= ceiling; }),
            candidates_.end());
        std::sort(candidates_.begin() + first, candidates_.end());
        const std::size_t end = candidates_.size();
        const std::size_t changes = trail_.size(), depth = stack_.size();
        const std::uint64_t marks_sum = marks_sum_;
        for (std::size_t next = first; next < end; ++next) {
            const auto [offset, place, record] = candidates_[next];
            candidates_.resize(end);
            if (nodes_ % 8 == 0 && deadline_.passed()) timed_out_ = true;
            if (++nodes_ > slice_ || timed_out_) return Outcome::kLimit;
            const Outcome outcome = after(part, record, offset);
            if (outcome != Outcome::kImpossible) return outcome;
            undo(depth, changes);
            marks_sum_ = marks_sum;
            if (learnt_ != learnt && refuted()) return Outcome::kImpossible;
        }
        candidates_.resize(first);
        const std::int64_t below = nodes_ - entered;
        if (windows_ && below >= kThrash && nodes_ - asked_ >= below / 2) search_window(part, entered, below);
        return Outcome::kImpossible;
    }
    // What comes of placing this record next.
    Outcome after(const Part& part, int record, Size offset) {
        const std::size_t changes = trail_.size();
        marks_sum_ -= mark(record, rest_[record]);
        put(record);
        for (std::size_t change = changes; change < trail_.size(); ++change) {
            const auto& [list, other, before] = trail_[change];
            marks_sum_ += mark(other, rest_[other]) - mark(other, before);
        }
        if (!cuts_.empty()) {
            if (!propagate_from(record) || refuted()) return Outcome::kImpossible;
            std::vector<int> borders = cuts_;
            borders.push_back(part.end);
            return solve_parts(part.records, part.begin, borders);
        }
        const std::uint64_t state = signature(part, offset);
        if (slot(state) == state || !propagate_from(record) || refuted()) return Outcome::kImpossible;
        const Outcome outcome = descend(part, offset);
        if (outcome == Outcome::kImpossible) slot(state) = state;
        return outcome;
    }

    // What the rest of the search depends on. Two states are taken for one if 64 bits agree.
    std::uint64_t signature(const Part& part, Size last) const {
        assert(marks_sum_ - part.marks_beside == marks(part));  // in the build of `make sanitize`
        return (mixed(static_cast<std::uint64_t>(last) + 1) + marks_sum_ - part.marks_beside) | 1;
    }
    std::uint64_t marks(const Part& part) const {
        std::uint64_t sum = 0;
        for (int i : part.records)
            if (!placed_[i]) sum += mark(i, rest_[i]);
        return sum;
    }
    std::uint64_t mark(int record, Size rest) const { return mixed(salts_[record] + static_cast<std::uint64_t>(rest)); }
    static std::vector<std::uint64_t> salts(int count) {
        std::vector<std::uint64_t> all(count);
        for (int i = 0; i < count; ++i) all[i] = mixed(static_cast<std::uint64_t>(i) + 1);
        return all;
    }
    std::uint64_t& slot(std::uint64_t state) { return failures_[state >> (64 - table_bits_)]; }

    // Whether a nogood holds: all its records are, or can only come, at or above the offsets named.
    bool refuted() {
        for (auto& nogood : nogoods_) {
            std::size_t k = 0;
            while (k < nogood.size() && low_[nogood[k].record] >= nogood[k].low) ++k;
            if (k == nogood.size()) return true;
            std::swap(nogood[k], nogood[k / 2]);  // what saves this state is looked at earlier in the next
        }
        return false;
    }
    // Searches the stretch of sections that failed below a node, by itself, from where its records could rest.
    void search_window(const Part& part, std::int64_t since, std::int64_t below) {
        int begin = part.begin, end = part.end;
        while (begin < end && failed_at_[begin] <= since) ++begin;
        while (end > begin && failed_at_[end - 1] <= since) --end;
        if (begin == end) return;
        begin = std::max(part.begin, begin - kMargin);
        end = std::min(part.end, end + kMargin);
        if (end - begin >= (part.end - part.begin) * 9 / 10) return;
        Window window;
        std::vector<int> records;
        for (int i = 0; i < count_; ++i) {
            Pieces clipped;
            for (auto [start, stop] : ranges_[i])
                if (start < end && begin < stop) clipped.emplace_back(std::max(start, begin), std::min(stop, end));
            if (placed_[i] || clipped.empty()) continue;
            records.push_back(i);
            window.records.nbytes.push_back(size_[i]);
            window.records.alignment.push_back(alignment_[i]);
            window.records.pinned.push_back(pinned_[i]);
            window.rest.push_back(rest_[i]);
            window.records.active.push_back(std::move(clipped));
            window.length.push_back(length_[i]);
            window.weight.push_back(weight_[i]);
        }
        const ArenaProblem problem(window.records);
        CapacitySearch search(problem, window, *this);
        search.slice_ = kWindowBudget * below;
        const Outcome outcome = search.from_start();
        nodes_ += search.nodes_;
        asked_ = nodes_;
        if (outcome != Outcome::kImpossible) return;
        std::vector<Bound> nogood;
        for (int i : records)
            if (pinned_[i] < 0 && rest_[i] > above_obstacles(i, least_[i])) nogood.push_back({i, rest_[i]});
        nogoods_.insert(nogoods_.begin(), std::move(nogood));
        if (nogoods_.size() > kMostNogoods) nogoods_.pop_back();
        ++learnt_;
    }
};

}  // namespace downset
