// Offsets in one arena by local search over the sequence in which records are placed, each at its lowest free offset.
// Every placement that cannot be lowered arises from some sequence, so nothing is lost by searching sequences.
// Specified by `lowest_gap` in downset/arenas/gaps.py and the checker in downset/arenas/check_records.py.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

namespace downset {

struct ArenaProblem {
    using Size = std::int64_t;
    using Interval = std::pair<std::int64_t, std::int64_t>;
    std::vector<Size> nbytes, alignment, pinned;  // pinned: an offset, or -1
    std::vector<std::vector<int>> rivals;         // records alive at the same time

    ArenaProblem(std::vector<Size> sizes, std::vector<Size> alignments, std::vector<Size> offsets,
                 const std::vector<std::vector<Interval>>& active)
        : nbytes(std::move(sizes)), alignment(std::move(alignments)), pinned(std::move(offsets)),
          rivals(nbytes.size()) {
        if (alignment.size() != nbytes.size() || pinned.size() != nbytes.size() || active.size() != nbytes.size())
            throw std::invalid_argument("arena problem: lists of different lengths");
        // Sweep over starts: only records still alive are compared.
        struct Piece {
            std::int64_t start, stop;
            int record;
        };
        std::vector<Piece> pieces;
        for (int i = 0; i < static_cast<int>(active.size()); ++i)
            for (auto [start, stop] : active[i])
                if (start < stop) pieces.push_back({start, stop, i});
        std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
            return std::pair(a.start, a.record) < std::pair(b.start, b.record);
        });
        std::vector<Piece> alive;
        for (const Piece& piece : pieces) {
            std::erase_if(alive, [&](const Piece& other) { return other.stop <= piece.start; });
            for (const Piece& other : alive)
                if (other.record != piece.record) {
                    rivals[piece.record].push_back(other.record);
                    rivals[other.record].push_back(piece.record);
                }
            alive.push_back(piece);
        }
        for (auto& list : rivals) {
            std::sort(list.begin(), list.end());
            list.erase(std::unique(list.begin(), list.end()), list.end());
        }
    }
    int count() const { return static_cast<int>(nbytes.size()); }
};

class ArenaPlacer {
public:
    using Size = ArenaProblem::Size;
    explicit ArenaPlacer(const ArenaProblem& problem) : problem_(problem), offsets_(problem.nbytes.size()) {}

    // Places the records in this sequence, pinned ones first; returns the height.
    Size place(const std::vector<int>& sequence) {
        std::fill(offsets_.begin(), offsets_.end(), -1);
        Size height = 0;
        for (int i = 0; i < problem_.count(); ++i)
            if (problem_.pinned[i] >= 0) {
                offsets_[i] = problem_.pinned[i];
                height = std::max(height, offsets_[i] + problem_.nbytes[i]);
            }
        for (int i : sequence) {
            if (offsets_[i] >= 0) continue;
            taken_.clear();
            for (int other : problem_.rivals[i])
                if (offsets_[other] >= 0)
                    taken_.emplace_back(offsets_[other], offsets_[other] + problem_.nbytes[other]);
            std::sort(taken_.begin(), taken_.end());
            Size cursor = 0;
            for (auto [low, high] : taken_) {
                if (up(cursor, i) + problem_.nbytes[i] <= low) break;
                cursor = std::max(cursor, high);
            }
            offsets_[i] = up(cursor, i);
            height = std::max(height, offsets_[i] + problem_.nbytes[i]);
        }
        return height;
    }
    const std::vector<Size>& offsets() const { return offsets_; }

private:
    const ArenaProblem& problem_;
    std::vector<Size> offsets_;
    std::vector<std::pair<Size, Size>> taken_;

    Size up(Size value, int record) const {
        const Size alignment = problem_.alignment[record];
        return (value + alignment - 1) / alignment * alignment;
    }
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
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
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
        if (round % 64 == 0 && std::chrono::steady_clock::now() > deadline) break;
        std::vector<int> top;
        for (int i = 0; i < count; ++i)
            if (offsets[i] + problem.nbytes[i] == height && problem.pinned[i] < 0) top.push_back(i);
        if (top.empty()) break;  // a pinned record is the top
        for (int at = 0; at < count; ++at) place_of[current[at]] = at;
        trial = current;
        int mover = top[below(top.size())];
        if (!problem.rivals[mover].empty() && below(4) == 0)
            mover = problem.rivals[mover][below(problem.rivals[mover].size())];
        const int from = place_of[mover];
        int to;
        if (!problem.rivals[mover].empty() && below(3) != 0) {
            to = place_of[problem.rivals[mover][below(problem.rivals[mover].size())]];
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
