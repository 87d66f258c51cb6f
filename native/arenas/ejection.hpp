// Lowers a placement to a target height: what ends above it is taken out and placed again, at its lowest gap or, where
// there is none, at the offset where the records in its way are worth the least; those are taken out in turn.
//   Nagata and Bräysy, 2009     ejection: a stack of what is to be placed, and weights that grow with each failure, so
//                               that what is hard to place is not taken out again
//   Glover, 1986                what was just placed stays for some steps
//   our own                     the target: half way from the bound to the height, nearer to the height after a failure
// A step is a placement; its cost is that of what lives at the same time. Oracle: the checker in
// downset/arenas/check_records.py, and brute force in the tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "arenas/placed.hpp"
#include "arenas/placement.hpp"
#include "arenas/ranks.hpp"
#include "arenas/records.hpp"
#include "check.hpp"
#include "deadline.hpp"

namespace downset {

class EjectionSearch {
public:
    EjectionSearch(const Records& records, std::vector<Offset> offsets, std::uint64_t seed)
        : records_(records), best_(std::move(offsets)), placed_(Ranks(records.active), records.active), random_(seed) {
        require_size("offsets", best_.size(), records.nbytes.size());
        const auto count = best_.size();
        std::vector<double> area(count);
        const Ranks rank(records.active);
        for (std::size_t i = 0; i < count; ++i) {
            require(best_[i] >= 0 && best_[i] < kMost && (records.pinned[i] < 0 || best_[i] == records.pinned[i]),
                    "offsets: record ", i, " is at ", best_[i]);
            pieces_.push_back(ranked(rank, records.active[i]));
            std::int64_t life = 0;
            for (auto [low, high] : pieces_[i]) life += high - low;
            area[i] = static_cast<double>(life) * static_cast<double>(records.nbytes[i]);
        }
        const double largest = area.empty() ? 1 : std::max(1.0, *std::max_element(area.begin(), area.end()));
        for (std::size_t i = 0; i < count; ++i)
            worth_.push_back(1 + static_cast<std::int64_t>(1000 * std::sqrt(area[i] / largest)));
        met_at_.assign(count, 0);
        offsets_ = best_;
        for (std::size_t i = 0; i < count; ++i) insert(static_cast<int>(i));
        height_ = height_of(best_);
    }

    // Goes on until the height is `bound` or the end of a pinned record, or a limit ends it. What is found within a
    // limit is found within a larger.
    void run(Offset bound, double seconds, std::int64_t step_limit, std::int64_t visit_limit) {
        deadline_ = Deadline(seconds);
        step_limit_ = step_limit;
        visit_limit_ = visit_limit;
        require(bound >= 0, "bound: ", bound, " bytes are less than nothing");
        for (std::size_t i = 0; i < best_.size(); ++i)
            if (records_.pinned[i] >= 0) bound = std::max(bound, end(static_cast<int>(i)));
        int failures = 0;
        while (height_ > bound && !stopped()) {
            // Half the gap, a quarter, ... and once more from there; always more patient.
            const Offset gain = std::max<Offset>(1, (height_ - bound) >> (1 + failures % kShares));
            const std::int64_t visits = kPatience * (1000 + static_cast<std::int64_t>(best_.size()));
            if (reach(height_ - gain, visits << std::min(failures, kMostDoublings))) {
                best_ = offsets_;
                height_ = height_of(best_);
                failures = 0;
            } else {
                restore();
                ++failures;
            }
            touched_.clear();
        }
    }
    const std::vector<Offset>& offsets() const { return best_; }
    Offset height() const { return height_; }
    std::int64_t steps() const { return steps_; }

private:
    static constexpr std::int64_t kPatience = 16;  // visits by record without fewer records to place
    static constexpr int kShares = 8, kMostDoublings = 20;
    static constexpr std::int64_t kMostWeight = 1 << 10, kStay = 1 << 10;
    static constexpr Offset kMost = Offset{1} << 61;
    static constexpr std::int64_t kPinned = std::int64_t{1} << 40;
    static constexpr std::uint64_t kStaySteps = 10;

    const Records& records_;
    std::vector<Offset> best_, offsets_;  // offsets_: -1 while not placed
    PlacedByTime placed_;
    std::vector<PlacedList::Ranked> pieces_;
    std::vector<std::int64_t> worth_, weight_, stays_, met_at_;
    std::vector<int> waiting_, touched_;
    std::mt19937_64 random_;
    Offset height_ = 0;
    Deadline deadline_{0};
    std::int64_t steps_ = 0, visits_ = 0, step_limit_ = 0, visit_limit_ = 0;
    bool late_ = false;
    struct Met {
        Offset begin, end;
        int record;
    };
    std::vector<Met> met_;

    bool stopped() {
        if (steps_ % 16 == 0 && deadline_.passed()) late_ = true;
        return late_ || steps_ >= step_limit_ || visits_ >= visit_limit_;
    }
    Offset end(int record) const { return offsets_[record] + records_.nbytes[record]; }
    Offset height_of(const std::vector<Offset>& offsets) const {
        Offset height = 0;
        for (std::size_t i = 0; i < offsets.size(); ++i) height = std::max(height, offsets[i] + records_.nbytes[i]);
        return height;
    }
    void insert(int record) {
        for (auto [low, high] : pieces_[record]) placed_.insert(low, high, offsets_[record], end(record), record);
    }
    void take_out(int record) {
        for (auto [low, high] : pieces_[record]) placed_.erase(low, high, offsets_[record], record);
        offsets_[record] = -1;
        touched_.push_back(record);
    }
    // Everything as in the best placement: what was taken out since then may lie anywhere or nowhere.
    void restore() {
        const auto touched = std::move(touched_);
        touched_.clear();
        for (int record : touched)
            if (offsets_[record] >= 0) take_out(record);
        for (int record : touched)
            if (offsets_[record] < 0) {
                offsets_[record] = best_[record];
                insert(record);
            }
    }

    // Whether all records were placed below `target`. Ends at a limit, or where for so many steps no fewer were left.
    bool reach(Offset target, std::int64_t patience) {
        const int count = static_cast<int>(best_.size());
        weight_.assign(count, 1);
        stays_.assign(count, 0);
        waiting_.clear();
        for (int i = 0; i < count; ++i)
            if (end(i) > target) waiting_.push_back(i);
        for (int i : waiting_) take_out(i);
        std::sort(waiting_.begin(), waiting_.end(),
                  [&](int a, int b) { return std::pair(records_.nbytes[a], a) < std::pair(records_.nbytes[b], b); });
        auto fewest = waiting_.size();
        for (std::int64_t since = visits_; !waiting_.empty();) {
            if (stopped() || visits_ - since > patience) return false;
            ++steps_;
            const int record = waiting_.back();
            waiting_.pop_back();
            Offset offset = lowest(record);
            if (offset + records_.nbytes[record] > target) {
                offset = cheapest(record, target);
                if (offset < 0) return false;
            }
            offsets_[record] = offset;
            insert(record);
            if (waiting_.size() < fewest) {
                fewest = waiting_.size();
                since = visits_;
            }
        }
        return true;
    }
    // The lowest gap; without one, the end of what is met, all of which is in `met_` then.
    Offset lowest(int record) {
        const Offset nbytes = records_.nbytes[record], alignment = records_.alignment[record];
        Offset cursor = 0;
        met_.clear();
        placed_.overlapping(pieces_[record], [&](Offset begin, Offset end, int other) {
            if (begin - cursor >= nbytes && begin - round_up(cursor, alignment) >= nbytes) return true;
            cursor = std::max(cursor, end);
            if (met_at_[other] != steps_) met_.push_back({begin, end, other});
            met_at_[other] = steps_;
            return false;
        });
        visits_ += static_cast<std::int64_t>(met_.size()) + 16;
        return round_up(cursor, alignment);
    }
    // The offset below `target` where what is in the way is worth the least; takes that out. -1: only pinned ones are.
    Offset cheapest(int record, Offset target) {
        const Offset nbytes = records_.nbytes[record], alignment = records_.alignment[record];
        if (nbytes > target) return -1;
        weight_[record] = std::min(weight_[record] + 1, kMostWeight);
        using Leaving = std::pair<Offset, std::int64_t>;  // (end, worth)
        std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> inside;
        std::int64_t worth = 0, least = std::numeric_limits<std::int64_t>::max();
        Offset chosen = -1;
        std::uint64_t equal = 0;
        std::size_t next = 0;
        // Any offset can be lowered, and meets no other records, until it is 0 or the end of one.
        for (Offset offset = 0; offset + nbytes <= target;) {
            for (; next < met_.size() && met_[next].begin < offset + nbytes; ++next) {
                const std::int64_t price = worth_of(met_[next].record);
                inside.emplace(met_[next].end, price);
                worth += price;
            }
            for (; !inside.empty() && inside.top().first <= offset; inside.pop()) worth -= inside.top().second;
            if (worth < least || (worth == least && random_() % ++equal == 0)) {
                if (worth < least) equal = 1;
                least = worth;
                chosen = offset;
            }
            if (inside.empty()) break;  // nothing is met above: the target alone is in the way
            offset = round_up(inside.top().first, alignment);
        }
        for (const Met& other : met_)
            if (other.begin < chosen + nbytes && chosen < other.end && records_.pinned[other.record] >= 0) return -1;
        for (const Met& other : met_)
            if (other.begin < chosen + nbytes && chosen < other.end) {
                take_out(other.record);
                waiting_.push_back(other.record);
            }
        stays_[record] = steps_ + static_cast<std::int64_t>(random_() % kStaySteps) + 1;
        return chosen;
    }
    std::int64_t worth_of(int record) const {
        if (records_.pinned[record] >= 0) return kPinned;
        return worth_[record] * weight_[record] * (stays_[record] > steps_ ? kStay : 1);
    }
};

}  // namespace downset
