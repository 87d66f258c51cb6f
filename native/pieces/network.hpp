// Vertices of a network, what they read, and what a vertex costs in a piece. The specification is PiecePrices of
// experiments/pico/algorithm_1.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "check.hpp"
#include "pieces/row_form.hpp"

namespace downset {

// Of vertices; more networks than this are divided first.
constexpr int kMostVertices = 1024;
using PieceSet = FixedBits<kMostVertices / 64>;

class PieceNetwork {
public:
    using Lists = std::vector<std::vector<std::int64_t>>;
    static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

    // vertices: their operators, ascending, numbered topologically; layers: what a vertex counts in the diameter.
    PieceNetwork(RowForm row_form, Lists vertex_ops, std::vector<int> is_layer, int strip_count, int most_layers)
        : form(std::move(row_form)), vertices(std::move(vertex_ops)), layers(std::move(is_layer)), strips(strip_count),
          diameter(most_layers), count(static_cast<int>(vertices.size())) {
        check();
        std::vector<int> made_by(form.rows.size(), -1);
        for (int v = 0; v < count; ++v)
            for (auto op : vertices[v])
                for (auto tensor : form.ops[op].outputs) made_by[tensor] = v;
        predecessors.resize(count);
        successors.resize(count);
        read_by.resize(form.rows.size());
        is_output.assign(form.rows.size(), false);
        for (auto tensor : form.outputs) is_output[tensor] = true;
        std::vector<bool> is_read(form.rows.size(), false);
        for (int v = 0; v < count; ++v)
            for (auto op : vertices[v])
                for (const auto& input : form.ops[op].inputs) {
                    is_read[input.tensor] = true;
                    const int from = made_by[input.tensor];
                    if (from < 0 || from == v) continue;
                    require(from < v, "vertices: they are not in a topological order");
                    predecessors[v].add(from);
                    successors[from].add(v);
                    read_by[input.tensor].add(v);
                }
        for (std::size_t t = 0; t < is_read.size(); ++t)
            if (made_by[t] >= 0 && !is_read[t]) is_output[t] = true;
        wanted_.resize(form.rows.size() * (strips + 1));
        length_.assign(count, 0);
        descendants.resize(count);
        for (int v = count - 1; v >= 0; --v) {
            all.add(v);
            descendants[v] = successors[v];
            successors[v].each([&](int later) { descendants[v] |= descendants[later]; });
            if (successors[v].empty()) ends.add(v);
        }
    }

    // What vertex v adds to the piece `piece` of what is `left`, all its successors in it being placed before; kNone if
    // the piece gets too long. Leaves the rows that v's inputs must have, and the path length, behind.
    std::int64_t place(int v, const PieceSet& left, const PieceSet& piece) {
        int longest = 0;
        (successors[v] & piece).each([&](int later) { longest = std::max(longest, length_[later]); });
        length_[v] = longest + layers[v];
        if (length_[v] > diameter) return kNone;
        std::int64_t total = 0;
        for (auto op : vertices[v])
            for (auto tensor : form.ops[op].outputs) collect(tensor, left, piece);
        for (auto it = vertices[v].rbegin(); it != vertices[v].rend(); ++it) total += sweep(form.ops[*it], v);
        return total;
    }

    // What may be added to a piece: vertices that feed it, or whose results nobody reads; their successors are all in.
    PieceSet candidates(const PieceSet& left, const PieceSet& piece) const {
        PieceSet feeders = ends;
        piece.each([&](int v) { feeders |= predecessors[v]; });
        return (feeders & left) - piece;
    }

    PieceSet feeding(const PieceSet& piece) const {
        PieceSet feeders;
        piece.each([&](int v) { feeders |= predecessors[v]; });
        return feeders;
    }

    std::int64_t cost_of(const PieceSet& left, const PieceSet& piece) {
        std::int64_t cost = 0;
        piece.each_down(count, [&](int v) { return cost += place(v, left, piece), true; });
        return cost;
    }

    RowForm form;
    Lists vertices;
    std::vector<int> layers;
    int strips, diameter;
    int count;
    std::vector<PieceSet> predecessors, successors, descendants, read_by;
    std::vector<bool> is_output;
    PieceSet all, ends;

private:
    static constexpr int kMostLayers = 1 << 20;  // of a vertex
    static constexpr int kMostStrips = 1 << 16;
    static constexpr std::int64_t kMostMacs = std::int64_t{1} << 61;

    void check() const {
        require(count <= kMostVertices, "vertices: ", count, " are more than ", kMostVertices);
        require(strips > 0 && strips <= kMostStrips, "strips: ", strips, " is not a number of strips");
        require(diameter > 0, "diameter: ", diameter, " layers are less than one");
        require_size("layers", layers.size(), count);
        require_indices("layers", layers, kMostLayers);
        std::vector<bool> taken(form.ops.size(), false);
        std::int64_t room = kMostMacs;  // of what a piece of all vertices could cost
        for (const auto& ops : vertices) {
            require_indices("vertices", ops, form.ops.size());
            for (const auto index : ops) {
                require(!taken[index], "vertices: operator ", index, " is in two of them");
                taken[index] = true;
                std::int64_t rows = form.ops[index].rows;
                for (const auto tensor : form.ops[index].outputs) rows = std::max(rows, form.rows[tensor]);
                require(form.ops[index].macs_per_row <= room / (rows * strips + 1), "MACs: they sum to more than 2^61");
                room -= form.ops[index].macs_per_row * rows * strips;
            }
        }
    }

    // The rows of a tensor that the piece's readers outside v, and later pieces, want: strip by strip, then whole.
    void collect(std::int64_t tensor, const PieceSet& left, const PieceSet& piece) {
        const auto rows = form.rows[tensor];
        const bool sink = is_output[tensor] || !read_by[tensor].within(left);
        Rows* wanted = &wanted_[tensor * (strips + 1)];
        for (int s = 0; s <= strips; ++s) wanted[s] = {};
        if (sink) {
            for (int s = 0; s < strips; ++s) wanted[s] = {s * rows / strips, (s + 1) * rows / strips};
            wanted[strips] = {0, rows};
        }
        (read_by[tensor] & piece).each([&](int reader) {
            for (auto index : vertices[reader]) {
                const auto& op = form.ops[index];
                for (const auto& input : op.inputs)
                    if (input.tensor == tensor)
                        for (int s = 0; s <= strips; ++s)
                            if (const auto result_rows = made_of(op, s); !result_rows.empty())
                                wanted[s].cover(input.read(result_rows, rows));
            }
        });
    }

    Rows made_of(const RowOp& op, int strip) const {
        Rows result_rows;
        for (auto tensor : op.outputs) result_rows.cover(wanted_[tensor * (strips + 1) + strip]);
        return op.whole && !result_rows.empty() ? Rows{0, op.rows} : result_rows;
    }

    std::int64_t sweep(const RowOp& op, int v) {
        std::int64_t spent = 0;
        for (int s = 0; s <= strips; ++s) {
            const auto result_rows = made_of(op, s);
            spent += s < strips ? result_rows.size() : -result_rows.size();
            if (result_rows.empty()) continue;
            for (auto tensor : op.outputs) wanted_[tensor * (strips + 1) + s] = result_rows;
            for (const auto& input : op.inputs)
                if (!read_by[input.tensor].has(v)) {  // made inside v, or given
                    wanted_[input.tensor * (strips + 1) + s].cover(input.read(result_rows, form.rows[input.tensor]));
                }
        }
        return std::max<std::int64_t>(spent, 0) * op.macs_per_row;
    }

    std::vector<Rows> wanted_;  // by tensor: its rows strip by strip, then whole
    std::vector<int> length_;
};

}  // namespace downset
