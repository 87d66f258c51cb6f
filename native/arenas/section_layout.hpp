// Time cut into sections, stretches of steps in which the same records live, and sizes in the grains that divide them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "arenas/problem.hpp"

namespace downset {

class SectionLayout {
public:
    using Size = Offset;

    // Part of a larger problem, in its grains: no offset below `rest`, steps are sections.
    struct Window {
        Records records;
        std::vector<Size> rest;
        std::vector<double> length, weight;
    };

protected:
    const ArenaProblem& problem_;
    int count_, sections_ = 0;
    Size grain_ = 0;  // all sizes and offsets are in grains: what divides all of them
    std::vector<double> length_;
    std::vector<std::vector<std::pair<int, int>>> ranges_;  // the sections a record lives in
    std::vector<Size> size_, alignment_, pinned_, least_;   // least_: no lower offset from the start
    std::vector<std::vector<int>> members_, obstacles_;

    explicit SectionLayout(const ArenaProblem& problem)
        : problem_(problem), count_(problem.count()), length_(count_, 0.0), ranges_(count_),
          size_(problem.records.nbytes), alignment_(problem.records.alignment), pinned_(problem.records.pinned),
          least_(count_, 0) {
        for (int i = 0; i < count_; ++i) {
            grain_ = std::gcd(grain_, size_[i]);
            if (pinned_[i] > 0) grain_ = std::gcd(grain_, pinned_[i]);
        }
        grain_ = std::max<Size>(grain_, 1);
        // An alignment that divides the grain is met by itself; one that the grain divides keeps offsets whole grains.
        for (bool changed = true; changed;) {
            changed = false;
            for (Size alignment : alignment_)
                if (grain_ % alignment != 0 && alignment % grain_ != 0) {
                    grain_ = std::gcd(grain_, alignment);
                    changed = true;
                }
        }
        for (int i = 0; i < count_; ++i) {
            size_[i] /= grain_;
            alignment_[i] = std::max<Size>(alignment_[i] / grain_, 1);
            if (pinned_[i] > 0) pinned_[i] /= grain_;
            for (auto [start, stop] : problem.records.active[i]) length_[i] += static_cast<double>(stop - start);
        }
        lay_out();
    }
    SectionLayout(const ArenaProblem& problem, const Window& window)
        : problem_(problem), count_(problem.count()), grain_(1), length_(window.length), ranges_(count_),
          size_(problem.records.nbytes), alignment_(problem.records.alignment), pinned_(problem.records.pinned),
          least_(window.rest) {
        lay_out();
    }

    template <class Visit>
    void each_section(int record, Visit visit) const {
        for (auto [start, stop] : ranges_[record])
            for (int s = start; s < stop; ++s) visit(s);
    }
    int first_section(int record) const { return ranges_[record].front().first; }
    int last_section(int record) const { return ranges_[record].back().second; }

    Size above_obstacles(int record, Size offset) const {
        const Size alignment = alignment_[record];
        if (alignment > 1) offset = round_up(offset, alignment);
        for (int other : obstacles_[record])
            if (offset < pinned_[other] + size_[other]) {
                if (offset + size_[record] <= pinned_[other]) break;
                offset = round_up(pinned_[other] + size_[other], alignment);
            }
        return offset;
    }

private:
    void lay_out() {
        const auto& active = problem_.records.active;
        std::vector<std::int64_t> points;
        for (const auto& pieces : active)
            for (auto [start, stop] : pieces) {
                points.push_back(start);
                points.push_back(stop);
            }
        std::sort(points.begin(), points.end());
        points.erase(std::unique(points.begin(), points.end()), points.end());
        sections_ = std::max<int>(0, static_cast<int>(points.size()) - 1);
        const auto section_of = [&](std::int64_t point) {
            return static_cast<int>(std::lower_bound(points.begin(), points.end(), point) - points.begin());
        };
        members_.resize(sections_);
        for (int i = 0; i < count_; ++i) {
            for (auto [start, stop] : active[i]) {
                // Pieces that touch become one, so that a boundary is where a record really begins or ends.
                if (!ranges_[i].empty() && ranges_[i].back().second == section_of(start))
                    ranges_[i].back().second = section_of(stop);
                else
                    ranges_[i].emplace_back(section_of(start), section_of(stop));
                for (int s = section_of(start); s < section_of(stop); ++s) members_[s].push_back(i);
            }
        }
        obstacles_.resize(count_);
        for (int i = 0; i < count_; ++i)
            for (int other : problem_.conflicts[i])
                if (pinned_[other] >= 0 && pinned_[i] < 0) obstacles_[i].push_back(other);
        for (auto& list : obstacles_)
            std::sort(list.begin(), list.end(), [&](int a, int b) { return pinned_[a] < pinned_[b]; });
    }
};

}  // namespace downset
