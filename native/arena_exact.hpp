// Offsets under a capacity, by complete search. Records are placed in the order of their offsets, each resting at the
// lowest offset above those placed before it; among all placements the one of least total offset has this form, so
// nothing is lost. Specified by brute force over all sequences in the tests.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "arena_search.hpp"

namespace downset {

class CapacitySearch {
public:
    using Size = ArenaProblem::Size;
    using Interval = ArenaProblem::Interval;
    enum class Outcome { kPlaced, kImpossible, kLimit };

    CapacitySearch(const ArenaProblem& problem, const std::vector<std::vector<Interval>>& active)
        : problem_(problem), sections_of_(active.size()), weight_(active.size(), 1.0) {
        std::vector<std::int64_t> points;
        for (const auto& pieces : active)
            for (auto [start, stop] : pieces) {
                points.push_back(start);
                points.push_back(stop);
            }
        std::sort(points.begin(), points.end());
        points.erase(std::unique(points.begin(), points.end()), points.end());
        const int sections = std::max<int>(0, static_cast<int>(points.size()) - 1);
        members_.resize(sections);
        const auto at = [&](std::int64_t point) {
            return static_cast<int>(std::lower_bound(points.begin(), points.end(), point) - points.begin());
        };
        for (int i = 0; i < problem.count(); ++i)
            for (auto [start, stop] : active[i])
                for (int s = at(start); s < at(stop); ++s) {
                    sections_of_[i].push_back(s);
                    members_[s].push_back(i);
                }
    }

    // Looks for a placement within `capacity`. kImpossible is a proof. Restarts with growing node limits; records in
    // sections where the search failed become first choice after a restart.
    Outcome run(Size capacity, double seconds, std::int64_t node_limit) {
        capacity_ = capacity;
        deadline_ = std::chrono::steady_clock::now() +
                    std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
        const int count = problem_.count();
        std::int64_t spent = 0, slice = 2000;
        for (int attempt = 0; spent < node_limit; ++attempt) {
            reset();
            rank(attempt);
            nodes_ = 0;
            slice_ = std::min(slice, node_limit - spent);
            const Outcome outcome = consistent() ? descend(0) : Outcome::kImpossible;
            spent += nodes_;
            if (outcome == Outcome::kPlaced) {
                for (int i = 0; i < count; ++i)
                    if (problem_.pinned[i] >= 0) low_[i] = problem_.pinned[i];
                total_nodes_ += spent;
                return outcome;
            }
            if (outcome == Outcome::kImpossible) {
                total_nodes_ += spent;
                return outcome;
            }
            if (std::chrono::steady_clock::now() > deadline_) break;
            slice = slice + slice / 2;
            for (double& weight : weight_) weight = 1.0 + (weight - 1.0) * 0.9;
        }
        total_nodes_ += spent;
        return Outcome::kLimit;
    }

    const std::vector<Size>& offsets() const { return low_; }
    std::int64_t nodes() const { return total_nodes_; }

private:
    const ArenaProblem& problem_;
    std::vector<std::vector<int>> sections_of_, members_;
    std::vector<double> weight_;
    std::vector<Size> low_;       // an unplaced record's lowest offset; a placed one's offset
    std::vector<char> placed_;
    std::vector<Size> rest_;      // unplaced bytes in a section
    std::vector<Size> floor_;     // the lowest offset of anything unplaced in a section
    struct Undo {
        std::vector<std::pair<int, Size>> low, floor;
    };
    std::vector<double> score_;
    Size capacity_ = 0, last_ = 0;
    int last_record_ = -1;
    std::int64_t nodes_ = 0, slice_ = 0, total_nodes_ = 0;
    std::chrono::steady_clock::time_point deadline_;

    void reset() {
        const int count = problem_.count();
        low_.assign(count, 0);
        placed_.assign(count, 0);
        rest_.assign(members_.size(), 0);
        floor_.assign(members_.size(), 0);
        last_ = 0;
        last_record_ = -1;
        for (int i = 0; i < count; ++i) {
            if (problem_.pinned[i] >= 0) {
                placed_[i] = 1;
                low_[i] = problem_.pinned[i];
                continue;
            }
            for (int s : sections_of_[i]) rest_[s] += problem_.nbytes[i];
        }
        for (int i = 0; i < count; ++i)
            if (!placed_[i]) low_[i] = above_obstacles(i, 0);
    }

    void rank(int attempt) {
        const int count = problem_.count();
        score_.assign(count, 0.0);
        for (int i = 0; i < count; ++i) {
            const double bytes = static_cast<double>(problem_.nbytes[i]);
            const double length = static_cast<double>(sections_of_[i].size());
            const double base[4] = {bytes * length, length, length * length * bytes, bytes};
            score_[i] = base[attempt % 4] * weight_[i];
        }
    }

    // Pinned records are obstacles: whoever does not fit under one goes above it.
    Size above_obstacles(int record, Size offset) const {
        bool moved = true;
        offset = up(offset, record);
        while (moved) {
            moved = false;
            for (int other : problem_.rivals[record])
                if (problem_.pinned[other] >= 0) {
                    const Size low = problem_.pinned[other], high = low + problem_.nbytes[other];
                    if (offset < high && low < offset + problem_.nbytes[record]) {
                        offset = up(high, record);
                        moved = true;
                    }
                }
        }
        return offset;
    }
    Size up(Size value, int record) const {
        const Size alignment = problem_.alignment[record];
        return (value + alignment - 1) / alignment * alignment;
    }

    void refresh(int section) {
        Size floor = std::numeric_limits<Size>::max();
        for (int i : members_[section])
            if (!placed_[i]) floor = std::min(floor, low_[i]);
        floor_[section] = floor;
    }
    // Whether what is left of a section can still fit: all of it lies at or above the lowest offset of any of it.
    bool fits(int section) {
        if (rest_[section] == 0 || std::max(floor_[section], last_) + rest_[section] <= capacity_) return true;
        for (int i : members_[section])
            if (!placed_[i]) weight_[i] += 0.05;
        return false;
    }
    bool consistent() {
        for (int i = 0; i < problem_.count(); ++i)
            if (low_[i] + problem_.nbytes[i] > capacity_) return false;
        for (int s = 0; s < static_cast<int>(members_.size()); ++s) {
            refresh(s);
            if (!fits(s)) return false;
        }
        return true;
    }

    Outcome descend(int depth) {
        if (++nodes_ > slice_ || (nodes_ % 256 == 0 && std::chrono::steady_clock::now() > deadline_))
            return Outcome::kLimit;
        const int count = problem_.count();
        // A record that would leave room for a whole other one below it is not next: that one could sink there.
        Size ceiling = std::numeric_limits<Size>::max();
        bool any = false;
        for (int i = 0; i < count; ++i)
            if (!placed_[i]) {
                any = true;
                ceiling = std::min(ceiling, low_[i] + problem_.nbytes[i]);
            }
        if (!any) return Outcome::kPlaced;
        std::vector<int> candidates;
        for (int i = 0; i < count; ++i)
            if (!placed_[i] && low_[i] >= last_ && low_[i] < ceiling &&
                (low_[i] > last_ || i > last_record_))  // among equal offsets the order of placement does not matter
                candidates.push_back(i);
        std::sort(candidates.begin(), candidates.end(), [&](int one, int other) {
            if (low_[one] != low_[other]) return low_[one] < low_[other];
            return score_[one] != score_[other] ? score_[one] > score_[other] : one < other;
        });
        const Size last = last_;
        const int last_record = last_record_;
        Undo undo;
        for (int choice : candidates) {
            undo.low.clear();
            undo.floor.clear();
            const bool alive = place(choice, undo);
            const Outcome outcome = alive ? descend(depth + 1) : Outcome::kImpossible;
            if (outcome != Outcome::kImpossible) return outcome;
            placed_[choice] = 0;
            for (int s : sections_of_[choice]) rest_[s] += problem_.nbytes[choice];
            for (auto it = undo.low.rbegin(); it != undo.low.rend(); ++it) low_[it->first] = it->second;
            for (auto it = undo.floor.rbegin(); it != undo.floor.rend(); ++it) floor_[it->first] = it->second;
            last_ = last;
            last_record_ = last_record;
        }
        return Outcome::kImpossible;
    }

    // Places a record where it rests; false if some record or section cannot fit any more.
    bool place(int record, Undo& undo) {
        placed_[record] = 1;
        const bool risen = low_[record] > last_;
        last_record_ = record;
        last_ = low_[record];
        for (int s : sections_of_[record]) rest_[s] -= problem_.nbytes[record];
        const Size top = low_[record] + problem_.nbytes[record];
        for (int other : problem_.rivals[record])
            if (!placed_[other] && low_[other] < top) {
                undo.low.emplace_back(other, low_[other]);
                low_[other] = above_obstacles(other, top);
                if (low_[other] + problem_.nbytes[other] > capacity_) return false;
            }
        // Every record alive with this one now lies above it, so the floor of all its sections has risen.
        for (int s : sections_of_[record])
            if (!raise(s, undo)) return false;
        for (const auto& [other, before] : undo.low)
            for (int s : sections_of_[other])
                if (floor_[s] == before && !raise(s, undo)) return false;
        if (risen)  // everything that is left lies at or above the new last offset
            for (int s = 0; s < static_cast<int>(members_.size()); ++s)
                if (rest_[s] && last_ + rest_[s] > capacity_) return false;
        return true;
    }
    bool raise(int section, Undo& undo) {
        undo.floor.emplace_back(section, floor_[section]);
        refresh(section);
        return fits(section);
    }
};

}  // namespace downset
