// The operators that compute a segment in strips, and the pieces of tensors that they read and make: the twin of
// downset/partial/strip_program.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "partial/lag.hpp"
#include "partial/network.hpp"
#include "partial/rows.hpp"
#include "partial/strip_lists.hpp"

namespace downset {

class StripProgram {
public:
    StripProgram(const StripNetwork& network, const StripSegment& segment, const StripRows& rows,
                 const std::vector<bool>& recomputed)
        : network_(network), segment_(segment), rows_(rows), recomputed_(recomputed), held_(segment.rows.size()),
          join_of_(segment.rows.size(), -1), maker_(segment.rows.size(), -1) {
        for (std::size_t index = 0; index < segment.ops.size(); ++index)
            for (const auto tensor : segment.ops[index].outputs) maker_[tensor] = index;
        for (std::size_t i = 0; i < segment.inputs.size(); ++i) {
            const auto& input = segment.inputs[i];
            held_[input.tensor] = {piece(input.tensor, {0, segment.rows[input.tensor]})};
            pieces_.back().nbytes = input.nbytes;
            pieces_.back().kept = input.kept;
        }
        joins_.resize(segment.results.size());
        for (std::size_t i = 0; i < segment.results.size(); ++i) join_of_[segment.results[i]] = i;
        write();
        if (possible_) drop_unread();
    }

    // Whether the segment can be computed in these strips; without that, the rest says nothing.
    bool possible() const { return possible_; }
    // The first ones are the inputs of the segment.
    const std::vector<StripPiece>& pieces() const { return pieces_; }
    const std::vector<StripRun>& runs() const { return runs_; }
    StripIds reads(const StripRun& run) const { return {ids_.data() + run.reads, ids_.data() + run.writes}; }
    StripIds writes(const StripRun& run) const { return {ids_.data() + run.writes, ids_.data() + run.over}; }
    // What it may make its result in.
    StripIds over(const StripRun& run) const { return {ids_.data() + run.over, ids_.data() + run.stop}; }
    // The operators on rows whose scratch the network does not hold yet; it counts as none.
    const std::vector<StripNetwork::Call>& unknown() const { return unknown_; }

private:
    struct Join {
        std::vector<std::vector<std::int64_t>> levels{1};
    };
    static constexpr std::size_t kMostJoined = 10;

    const StripNetwork& network_;
    const StripSegment& segment_;
    const StripRows& rows_;
    const std::vector<bool>& recomputed_;
    std::vector<std::vector<std::int64_t>> held_;
    std::vector<std::int64_t> join_of_, maker_;
    std::vector<Join> joins_;
    LentStripLists lists_;
    std::vector<StripPiece>& pieces_ = lists_.pieces;
    std::vector<StripRun>& runs_ = lists_.runs;
    std::vector<std::int64_t>& ids_ = lists_.ids;
    std::vector<StripNetwork::Call> unknown_;
    Lags lags_;
    // Of one operator in one strip: the rows that it reads, pieces, and what it makes before it is cut.
    struct {
        std::vector<Rows> read;
        std::vector<std::int64_t> reads, writes, results, over;
    } one_;
    bool possible_ = true;

    std::int64_t piece(std::int64_t tensor, Rows rows) {
        const auto bits = segment_.row_bits[tensor] * rows.size();
        pieces_.push_back({tensor, rows, network_.aligned_bytes(bits), (bits + 7) / 8});
        return static_cast<std::int64_t>(pieces_.size()) - 1;
    }

    using Ids = std::vector<std::int64_t>;

    void add_run(StripIds reads, StripIds writes) {
        const auto first = ids_.size();
        ids_.insert(ids_.end(), reads.begin(), reads.end());
        ids_.insert(ids_.end(), writes.begin(), writes.end());
        runs_.push_back({first, first + reads.size(), ids_.size(), ids_.size()});
    }

    static StripIds all(const Ids& ids) { return {ids.data(), ids.data() + ids.size()}; }
    static StripIds one(const std::int64_t& id) { return {&id, &id + 1}; }

    std::int64_t step(std::int64_t tensor, Rows rows, StripIds reads) {
        const auto result = piece(tensor, rows);
        add_run(reads, one(result));
        return result;
    }

    // Of each strip, by tensor: the first row that later strips read, or -1.
    Ids first_read_later() const {
        const auto tensors = held_.size();
        Ids later(rows_.count() * tensors, -1);
        for (auto strip = rows_.count() - 1; strip > 0; --strip) {
            auto* earlier = &later[(strip - 1) * tensors];
            std::copy_n(earlier + tensors, tensors, earlier);
            for (std::size_t index = 0; index < segment_.ops.size(); ++index) {
                const auto result_rows = rows_.at(strip, index);
                if (result_rows.empty()) continue;
                for (const auto& input : segment_.ops[index].inputs) {
                    const auto start = input.read(result_rows, segment_.rows[input.tensor]).start;
                    auto& first = earlier[input.tensor];
                    first = first < 0 ? start : std::min(first, start);
                }
            }
        }
        return later;
    }

    void write() {
        const auto later = first_read_later();
        std::vector<std::vector<std::int64_t>> whole(held_.size());
        for (const auto& input : segment_.inputs) whole[input.tensor] = held_[input.tensor];
        Ids last;  // by tensor: the last operator of the strip that reads it, or -1
        for (std::size_t strip = 0; strip < rows_.count() && possible_; ++strip) {
            last.assign(held_.size(), -1);
            const auto count = static_cast<std::int64_t>(segment_.ops.size());
            for (std::int64_t index = 0; index < count; ++index)
                if (!rows_.at(strip, index).empty())
                    for (const auto& input : segment_.ops[index].inputs) last[input.tensor] = index;
            for (std::int64_t index = 0; index < count && possible_; ++index)
                if (const auto result_rows = rows_.at(strip, index); !result_rows.empty())
                    compute(index, result_rows, last, &later[strip * held_.size()], whole);
        }
        if (!possible_) return;
        for (std::size_t i = 0; i < joins_.size(); ++i) {
            auto& result = pieces_[finish(i)];
            result.kept = true;
            if (!segment_.results_counted[i]) result.nbytes = 0;
        }
    }

    void compute(std::int64_t index, Rows result_rows, const std::vector<std::int64_t>& last, const std::int64_t* later,
                 const std::vector<Ids>& whole) {
        const auto& op = segment_.ops[index];
        auto& [read, reads, writes, results, over] = one_;
        read.clear();
        reads.clear();
        writes.clear();
        for (const auto& input : op.inputs) read.push_back(input.read(result_rows, segment_.rows[input.tensor]));
        for (std::size_t i = 0; i < read.size(); ++i) reads.push_back(cut(op.inputs[i].tensor, read[i]));
        for (const auto& input : op.inputs)
            if (last[input.tensor] == index) keep(input.tensor, later[input.tensor], whole[input.tensor]);
        const auto given = rows_given(index, result_rows, read);
        if (!possible_) return;
        for (const auto tensor : op.outputs) writes.push_back(piece(tensor, given));
        run(index);
        for (std::size_t i = 0; i < writes.size(); ++i) {
            const auto tensor = op.outputs[i];
            const auto exact = given.start == result_rows.start && given.stop == result_rows.stop
                                   ? writes[i]
                                   : step(tensor, result_rows, one(writes[i]));
            held_[tensor].push_back(exact);
            writes[i] = exact;
        }
        for (std::size_t i = 0; i < writes.size(); ++i) {
            const auto tensor = op.outputs[i];
            if (join_of_[tensor] >= 0) join(join_of_[tensor], writes[i]);
            if (last[tensor] < 0) keep(tensor, later[tensor], {});
        }
    }

    void run(std::int64_t index) {
        const auto& op = network_.ops[segment_.first + index];
        auto& [read, reads, writes, results, over] = one_;
        over.clear();
        for (const auto position : op.overwritten) over.push_back(reads[position]);
        Sides sides;
        bool padded = false;
        auto made_rows = pieces_[writes[0]].rows.size();
        results = writes;
        const auto read_rows = read.empty() ? 0 : read[0].size();  // none: it reads constants alone
        const bool window = op.given == StripOp::Given::window && op.first_read == 0;
        if (!read.empty() && (op.padded_row_bits > 0 || op.walk.order != StripWalk::Order::none ||
                              (network_.rules.counts_scratch && window)))
            sides = sides_of(index, read[0], pieces_[writes[0]].rows);
        if (!read.empty() && op.padded_row_bits > 0 && pads(op, sides, read_rows)) {
            if (op.cut_off) {
                made_rows = (read_rows + op.stride - 1) / op.stride;
                sides = same_sides(op, read_rows);
                results = {unnamed_piece(segment_.row_bits[segment_.ops[index].outputs[0]] * made_rows)};
            } else {
                const auto whole = unnamed_piece(op.padded_row_bits * (read_rows + sides.top + sides.bottom));
                add_run(one(reads[0]), one(whole));
                reads[0] = whole;
                padded = true;
            }
        }
        const auto lag = lags_.of(op, index, read_rows, made_rows, sides, padded);
        add_run(all(reads), all(results));
        auto& added = runs_.back();
        for (const auto taken : over)
            if (std::find(reads.begin(), reads.end(), taken) != reads.end()) ids_.push_back(taken);
        added.stop = ids_.size();
        added.lagged = lag < 0 ? -1 : reads[0];
        added.lag = lag;
        added.computes = true;
        added.persistent_bytes = op.persistent_bytes;
        added.view = op.view;
        added.makes_output = op.makes_output;
        if (network_.rules.counts_scratch) added.scratch = scratch(index, read, made_rows, sides, padded);
        added.macs = segment_.ops[index].macs_per_row * made_rows;
        if (results != writes) add_run(all(results), all(writes));
    }

    std::int64_t scratch(std::int64_t index, const std::vector<Rows>& read, std::int64_t made_rows, Sides sides,
                         bool padded) {
        StripNetwork::Call call{segment_.first + index, made_rows, sides.top, sides.bottom, padded};
        for (const auto rows : read) call.push_back(rows.size());
        const auto stated = network_.scratch.find(call);
        if (stated != network_.scratch.end()) return stated->second;
        if (std::find(unknown_.begin(), unknown_.end(), call) == unknown_.end()) unknown_.push_back(std::move(call));
        return 0;
    }

    std::int64_t unnamed_piece(std::int64_t bits) {
        pieces_.push_back({-1, {}, network_.aligned_bytes(bits), (bits + 7) / 8});
        return static_cast<std::int64_t>(pieces_.size()) - 1;
    }

    // Rows of padding above and below.
    Sides sides_of(std::int64_t index, Rows read, Rows result_rows) const {
        const auto& op = network_.ops[segment_.first + index];
        const auto rows = segment_.rows[segment_.ops[index].inputs[0].tensor];
        if (result_rows.start == 0 && result_rows.stop == segment_.ops[index].rows && read.start == 0 &&
            read.stop == rows)
            return {op.begin, op.end};
        const auto first = result_rows.start * op.stride - op.begin;
        const auto last = (result_rows.stop - 1) * op.stride - op.begin + op.reach;
        return {read.start - first, std::max<std::int64_t>(std::min(last, rows + op.end) - read.stop, 0)};
    }

    static Sides same_sides(const StripOp& op, std::int64_t size) {
        const auto total =
            std::max<std::int64_t>(((size + op.stride - 1) / op.stride - 1) * op.stride + op.reach - size, 0);
        return {total / 2, total - total / 2};
    }

    // Whether the pads are neither SAME's nor none.
    static bool pads(const StripOp& op, Sides sides, std::int64_t size) {
        const auto as_same = same_sides(op, size);
        const bool same = op.same_columns && sides.top == as_same.top && sides.bottom == as_same.bottom;
        const bool none = sides.top == 0 && sides.bottom == 0 && op.left == 0 && op.right == 0;
        return !same && !none;
    }

    Rows rows_given(std::int64_t index, Rows result_rows, const std::vector<Rows>& read) {
        const auto& op = network_.ops[segment_.first + index];
        bool all = result_rows.start == 0 && result_rows.stop == segment_.ops[index].rows;
        for (std::size_t i = 0; i < read.size(); ++i)
            all = all && read[i].start == 0 && read[i].stop == segment_.rows[segment_.ops[index].inputs[i].tensor];
        if (op.given == StripOp::Given::exact || all) return result_rows;
        const auto first = op.first_read < 0 ? Rows{} : read[op.first_read];
        Rows given = result_rows;
        switch (op.given) {
            case StripOp::Given::window:
                given = {
                    std::min(result_rows.start, floor_div(first.start + op.begin, op.stride)),
                    std::max(result_rows.stop, std::min(-floor_div(op.reach - op.begin - first.stop, op.stride) + 1,
                                                        segment_.ops[index].rows))};
                break;
            case StripOp::Given::transposed:
                given.start = std::min(result_rows.start, (first.stop - 1) * op.stride - op.begin + op.reach - 1);
                break;
            case StripOp::Given::factor: given = {first.start * op.factor, first.stop * op.factor}; break;
            case StripOp::Given::pad:
                given = {std::min(result_rows.start, first.start + op.begin),
                         std::max(result_rows.stop, first.stop + op.begin)};
                break;
            case StripOp::Given::exact: break;
        }
        if (op.adds && (given.start != result_rows.start || given.stop != result_rows.stop)) possible_ = false;
        return given;
    }

    std::int64_t cut(std::int64_t tensor, Rows rows) {
        if (const auto piece_held = within(tensor, rows); piece_held >= 0) return piece_held;
        std::vector<std::int64_t> parts;
        for (const auto part : chain(tensor, rows)) parts.push_back(cut(tensor, part));
        const auto joined = step(tensor, rows, all(parts));
        held_[tensor].push_back(joined);
        return joined;
    }

    std::int64_t within(std::int64_t tensor, Rows rows) {
        std::int64_t least = -1;
        for (const auto piece : held_[tensor]) {
            const auto& has = pieces_[piece].rows;
            if (has.start <= rows.start && rows.stop <= has.stop)
                if (least < 0 || has.size() < pieces_[least].rows.size()) least = piece;
        }
        if (least < 0) return -1;
        const auto& has = pieces_[least].rows;
        if (has.start == rows.start && has.stop == rows.stop) return least;
        const auto result = step(tensor, rows, one(least));
        held_[tensor].push_back(result);
        return result;
    }

    std::vector<Rows> chain(std::int64_t tensor, Rows rows) const {
        std::vector<Rows> parts;
        for (auto start = rows.start; start < rows.stop;) {
            auto stop = start;
            for (const auto one : held_[tensor]) {
                const auto& has = pieces_[one].rows;
                if (has.start <= start && start < has.stop) stop = std::max(stop, has.stop);
            }
            require(stop > start, "strips: rows that were dropped are read");
            stop = std::min(stop, rows.stop);
            parts.push_back({start, stop});
            start = stop;
        }
        return parts;
    }

    void keep(std::int64_t tensor, std::int64_t first, const std::vector<std::int64_t>& whole) {
        if (!whole.empty()) {
            held_[tensor] = whole;
            return;
        }
        std::int64_t stop = 0;
        for (const auto piece : held_[tensor]) stop = std::max(stop, pieces_[piece].rows.stop);
        if (first < 0 || first >= stop || (maker_[tensor] >= 0 && recomputed_[maker_[tensor]])) {
            held_[tensor].clear();
        } else if (const auto piece = within(tensor, {first, stop}); piece >= 0) {
            held_[tensor] = {piece};
        } else {
            std::vector<std::int64_t> parts;
            for (const auto part : chain(tensor, {first, stop})) parts.push_back(cut(tensor, part));
            held_[tensor] = std::move(parts);
        }
    }

    void join(std::int64_t number, std::int64_t piece) {
        auto& levels = joins_[number].levels;
        const bool last = pieces_[piece].rows.stop == segment_.rows[pieces_[piece].tensor];
        levels[0].push_back(piece);
        for (std::size_t level = 0; level < levels.size(); ++level) {
            if (levels[level].size() < kMostJoined || last) break;
            if (level + 1 == levels.size()) levels.emplace_back();
            levels[level + 1].push_back(joined(levels[level]));
            levels[level].clear();
        }
    }

    std::int64_t finish(std::size_t number) {
        auto& levels = joins_[number].levels;
        for (std::size_t level = 0; level + 1 < levels.size(); ++level) {
            std::size_t left = 0;
            for (const auto& one : levels) left += one.size();
            if (left > kMostJoined && levels[level].size() > 1) {
                levels[level + 1].push_back(joined(levels[level]));
                levels[level].clear();
            }
        }
        std::vector<std::int64_t> parts;
        for (auto level = levels.rbegin(); level != levels.rend(); ++level)
            parts.insert(parts.end(), level->begin(), level->end());
        return joined(parts);
    }

    std::int64_t joined(const std::vector<std::int64_t>& parts) {
        require(!parts.empty(), "strips: a result without rows");
        if (parts.size() == 1) return parts[0];
        const Rows rows{pieces_[parts.front()].rows.start, pieces_[parts.back()].rows.stop};
        return step(pieces_[parts.front()].tensor, rows, all(parts));
    }

    // Operators may make rows, on their way to later ones, that nobody reads.
    void drop_unread() {
        std::vector<bool> read(pieces_.size());
        for (std::size_t piece = 0; piece < pieces_.size(); ++piece) read[piece] = pieces_[piece].kept;
        auto first = runs_.size();  // those from here on are needed
        for (auto place = runs_.size(); place-- > 0;) {
            const auto results = writes(runs_[place]);
            if (std::none_of(results.begin(), results.end(), [&](auto piece) { return read[piece]; })) continue;
            for (const auto piece : reads(runs_[place])) read[piece] = true;
            runs_[--first] = runs_[place];
        }
        runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(first));
    }
};

}  // namespace downset
