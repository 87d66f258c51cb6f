// Which rows each strip of a segment computes. The twin of `_new_rows` in downset/partial/strip_program.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "partial/network.hpp"

namespace downset {

class StripRows {
public:
    StripRows(const StripSegment& segment, std::int64_t strips, const std::vector<bool>& recomputed, bool even)
        : segment_(segment), strips_(strips) {
        std::vector<std::vector<std::int64_t>> paces;
        if (even) {
            for (auto number = strips; number > 0 || !nothing(paces.back()); --number) paces.push_back(pace(number));
            if (nothing(paces.back())) paces.pop_back();
            std::reverse(paces.begin(), paces.end());
        } else {
            paces.assign(strips, {});
        }
        count_ = paces.size();
        rows_.resize(count_ * segment.ops.size());
        auto before = first_rows();
        std::vector<Rows> wanted;
        for (std::size_t number = 0; number < count_; ++number) {
            wanted.assign(segment.rows.size(), {});
            strip(static_cast<std::int64_t>(number) - static_cast<std::int64_t>(count_) + strips, strips, paces[number],
                  recomputed, before, wanted, &rows_[number * segment.ops.size()]);
        }
    }

    std::size_t count() const { return count_; }
    // The rows that an operator of the segment computes in a strip; empty for none.
    Rows at(std::size_t strip, std::size_t index) const { return rows_[strip * segment_.ops.size() + index]; }

private:
    const StripSegment& segment_;
    std::int64_t strips_;
    std::size_t count_ = 0;
    std::vector<Rows> rows_;

    static bool nothing(const std::vector<std::int64_t>& stops) {
        return std::all_of(stops.begin(), stops.end(), [](auto stop) { return stop <= 0; });
    }

    // By operator: the first row of its result that rows of the results are made from; 0 for one of which none is.
    std::vector<std::int64_t> first_rows() const {
        const auto count = segment_.ops.size();
        std::vector<std::int64_t> first(count, 0);
        std::vector<Rows> wanted(segment_.rows.size()), rows(count);
        strip(0, 1, {}, std::vector<bool>(count, true), first, wanted, rows.data());
        for (std::size_t index = 0; index < count; ++index) first[index] = rows[index].start;
        return first;
    }

    std::vector<std::int64_t> pace(std::int64_t number) const {
        std::vector<std::int64_t> ends(segment_.rows.size());
        std::vector<bool> bounded(segment_.rows.size(), false);
        for (const auto tensor : segment_.results) {
            ends[tensor] = number * segment_.rows[tensor];
            bounded[tensor] = true;
        }
        for (auto each = segment_.ops.rbegin(); each != segment_.ops.rend(); ++each) {
            const auto& op = *each;
            bool any = false;
            std::int64_t end = 0;
            for (const auto tensor : op.outputs)
                if (bounded[tensor]) {
                    end = any ? std::max(end, ends[tensor]) : ends[tensor];
                    any = true;
                }
            if (!any) continue;
            for (const auto& input : op.inputs) {
                if (input.per == 0 && end <= 0) continue;  // what is read whole waits until a row is made of it
                const auto behind =
                    input.per == 0
                        ? segment_.rows[input.tensor] * strips_
                        : floor_div(input.scale * (end - strips_) + input.high * strips_, input.per) + strips_;
                ends[input.tensor] = bounded[input.tensor] ? std::max(ends[input.tensor], behind) : behind;
                bounded[input.tensor] = true;
            }
        }
        for (std::size_t tensor = 0; tensor < ends.size(); ++tensor)
            ends[tensor] = bounded[tensor] ? std::min(std::max<std::int64_t>(floor_div(ends[tensor], strips_), 0),
                                                      segment_.rows[tensor])
                                           : 0;
        return ends;
    }

    void strip(std::int64_t number, std::int64_t strips, const std::vector<std::int64_t>& pace,
               const std::vector<bool>& recomputed, std::vector<std::int64_t>& before, std::vector<Rows>& wanted,
               Rows* result) const {
        for (const auto tensor : segment_.results)
            if (number >= 0) {
                const auto rows = segment_.rows[tensor];
                const Rows part{number * rows / strips, (number + 1) * rows / strips};
                wanted[tensor] = part.empty() ? Rows{} : part;
            }
        for (auto index = segment_.ops.size(); index-- > 0;) {
            const auto& op = segment_.ops[index];
            Rows rows;
            for (const auto tensor : op.outputs) rows.cover(wanted[tensor]);
            if (!recomputed[index]) {
                auto stop = rows.stop;
                if (!pace.empty())
                    for (const auto tensor : op.outputs) stop = std::max(stop, pace[tensor]);
                rows = {before[index], stop};
                before[index] = std::max(before[index], stop);
            }
            if (rows.empty()) continue;
            result[index] = rows;
            for (const auto& input : op.inputs)
                wanted[input.tensor].cover(input.read(rows, segment_.rows[input.tensor]));
        }
    }
};

}  // namespace downset
