// Offsets in one arena by local search over the sequence in which records are placed, each at its lowest free offset.
// Every placement that cannot be lowered arises from some sequence, so nothing is lost by searching sequences.
// Oracles: `lowest_gap` in tests/arenas/oracles/gaps.py and the checker in downset/arenas/check_records.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "arenas/problem.hpp"
#include "check.hpp"
#include "deadline.hpp"

namespace downset {

class ArenaPlacer {
public:
    using Size = Offset;
    explicit ArenaPlacer(const ArenaProblem& problem) : problem_(problem), offsets_(problem.records.nbytes.size()) {}

    // Places the records in this sequence, pinned ones first; returns the height.
    Size place(const std::vector<int>& sequence) {
        std::fill(offsets_.begin(), offsets_.end(), -1);
        Size height = 0;
        for (int i = 0; i < problem_.count(); ++i)
            if (problem_.records.pinned[i] >= 0) {
                offsets_[i] = problem_.records.pinned[i];
                height = std::max(height, offsets_[i] + problem_.records.nbytes[i]);
            }
        for (int i : sequence) {
            if (offsets_[i] >= 0) continue;
            taken_.clear();
            for (int other : problem_.conflicts[i])
                if (offsets_[other] >= 0)
                    taken_.emplace_back(offsets_[other], offsets_[other] + problem_.records.nbytes[other]);
            std::sort(taken_.begin(), taken_.end());
            Size cursor = 0;
            for (auto [low, high] : taken_) {
                if (up(cursor, i) + problem_.records.nbytes[i] <= low) break;
                cursor = std::max(cursor, high);
            }
            offsets_[i] = up(cursor, i);
            height = std::max(height, offsets_[i] + problem_.records.nbytes[i]);
        }
        return height;
    }
    const std::vector<Size>& offsets() const { return offsets_; }

private:
    const ArenaProblem& problem_;
    std::vector<Size> offsets_;
    std::vector<std::pair<Size, Size>> taken_;

    Size up(Size value, int record) const { return round_up(value, problem_.records.alignment[record]); }
};

struct ArenaResult {
    std::vector<std::int64_t> offsets;
    std::int64_t height, rounds;
};

// Starts from the best of the given sequences; each round moves a record that ends at the top, or one of those below
// it, to another place in the sequence and keeps the change unless it is worse. Stops at `bound`, or at a limit. The
// same seed and round limit give the same answer.
inline ArenaResult local_search(const ArenaProblem& problem, const std::vector<std::vector<int>>& sequences,
                                std::int64_t bound, double seconds, std::int64_t round_limit, std::uint64_t seed) {
    const Deadline deadline(seconds);
    require(!sequences.empty(), "sequences: there are none");
    for (const auto& sequence : sequences) require_order("sequences", sequence, problem.count());
    ArenaPlacer placer(problem);
    ArenaResult best{{}, std::numeric_limits<std::int64_t>::max(), 0};
    std::vector<int> sequence;
    for (const auto& candidate : sequences) {
        const auto height = placer.place(candidate);
        if (height < best.height) {
            best = {placer.offsets(), height, 0};
            sequence = candidate;
        }
    }
    const int count = problem.count();
    if (count < 2) return best;
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t limit) { return static_cast<int>(random() % limit); };
    std::vector<int> current = sequence, trial, place_of(count);
    auto height = placer.place(current);
    auto offsets = placer.offsets();
    std::int64_t since = 0;
    for (std::int64_t round = 1; round <= round_limit && best.height > bound; ++round) {
        best.rounds = round;
        if (round % 64 == 0 && deadline.passed()) break;
        std::vector<int> top;
        for (int i = 0; i < count; ++i)
            if (offsets[i] + problem.records.nbytes[i] == height && problem.records.pinned[i] < 0) top.push_back(i);
        if (top.empty()) break;  // a pinned record is the top
        for (int place = 0; place < count; ++place) place_of[current[place]] = place;
        trial = current;
        int mover = top[below(top.size())];
        if (!problem.conflicts[mover].empty() && below(4) == 0)
            mover = problem.conflicts[mover][below(problem.conflicts[mover].size())];
        const int from = place_of[mover];
        int to;
        if (!problem.conflicts[mover].empty() && below(3) != 0) {
            to = place_of[problem.conflicts[mover][below(problem.conflicts[mover].size())]];
        } else {
            to = below(count);
        }
        if (below(2) == 0) {
            std::swap(trial[from], trial[to]);
        } else {
            trial.erase(trial.begin() + from);
            trial.insert(trial.begin() + to, mover);
        }
        const auto reached = placer.place(trial);
        // Now and then a slightly worse sequence is let through, or the search sits in its first valley for good.
        const bool worse_but_allowed = reached <= height + height / 32 && below(200) == 0;
        if (reached <= height || worse_but_allowed) {
            current = trial;
            height = reached;
            offsets = placer.offsets();
        }
        ++since;
        if (reached < best.height) {
            best.height = reached;
            best.offsets = placer.offsets();
            sequence = trial;
            since = 0;
        } else if (since > 4000 + 20 * count) {  // back to the best known
            current = sequence;
            height = placer.place(current);
            offsets = placer.offsets();
            since = 0;
        }
    }
    return best;
}

}  // namespace downset
