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
    // By strip, by operator of the segment: the rows computed; empty for none.
    std::vector<std::vector<Rows>> by_strip;

    StripRows(const StripNetwork& network, const StripSegment& segment, std::int64_t strips,
              const std::vector<bool>& recomputed, bool even)
        : form_(network.form), segment_(segment), strips_(strips) {
        std::vector<std::vector<std::int64_t>> paces;
        if (even) {
            for (auto number = strips; number > 0 || !nothing(paces.back()); --number) paces.push_back(pace(number));
            if (nothing(paces.back())) paces.pop_back();
            std::reverse(paces.begin(), paces.end());
        } else {
            paces.assign(strips, {});
        }
        const auto count = static_cast<std::int64_t>(paces.size());
        std::vector<std::int64_t> before(segment.stop - segment.first, 0);
        for (std::int64_t number = 0; number < count; ++number)
            by_strip.push_back(strip(number - count + strips, paces[number], recomputed, before));
    }

private:
    const RowForm& form_;
    const StripSegment& segment_;
    std::int64_t strips_;

    static bool nothing(const std::vector<std::int64_t>& stops) {
        return std::all_of(stops.begin(), stops.end(), [](auto stop) { return stop <= 0; });
    }

    std::vector<std::int64_t> pace(std::int64_t number) const {
        std::vector<std::int64_t> ends(form_.rows.size());
        std::vector<bool> bounded(form_.rows.size(), false);
        for (const auto tensor : segment_.results) {
            ends[tensor] = number * form_.rows[tensor];
            bounded[tensor] = true;
        }
        for (auto operator_index = segment_.stop - 1; operator_index >= segment_.first; --operator_index) {
            const auto& op = form_.ops[operator_index];
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
                        ? form_.rows[input.tensor] * strips_
                        : floor_div(input.scale * (end - strips_) + input.high * strips_, input.per) + strips_;
                ends[input.tensor] = bounded[input.tensor] ? std::max(ends[input.tensor], behind) : behind;
                bounded[input.tensor] = true;
            }
        }
        for (std::size_t tensor = 0; tensor < ends.size(); ++tensor)
            ends[tensor] = bounded[tensor] ? std::min(std::max<std::int64_t>(floor_div(ends[tensor], strips_), 0),
                                                      form_.rows[tensor])
                                           : 0;
        return ends;
    }

    std::vector<Rows> strip(std::int64_t number, const std::vector<std::int64_t>& pace,
                            const std::vector<bool>& recomputed, std::vector<std::int64_t>& before) const {
        std::vector<Rows> wanted(form_.rows.size()), result(segment_.stop - segment_.first);
        for (const auto tensor : segment_.results)
            if (number >= 0) {
                const auto rows = form_.rows[tensor];
                const Rows part{number * rows / strips_, (number + 1) * rows / strips_};
                wanted[tensor] = part.empty() ? Rows{} : part;
            }
        for (auto operator_index = segment_.stop - 1; operator_index >= segment_.first; --operator_index) {
            const auto& op = form_.ops[operator_index];
            const auto index = operator_index - segment_.first;
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
            for (const auto& input : op.inputs) wanted[input.tensor].cover(input.read(rows, form_.rows[input.tensor]));
        }
        return result;
    }
};

}  // namespace downset
