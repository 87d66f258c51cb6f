// Chains of pieces: the least threshold on the redundant work of a piece (PICO, Algorithm 1 as a bottleneck path over
// downsets). The Python twin is downset.pipelines.pieces.
//
// A state is what is left, a downset. Of the operators left, those that feed what was already taken must be in the next
// piece, and a piece takes all successors, so its least form is known; larger ones add one maximal vertex at a time.
// The sinks of a piece are fixed by the state, so a vertex that is added costs the same whichever others are in: the
// cost is a sum, it never falls as a piece grows, and whatever exceeds the threshold is cut with all its supersets.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "row_form.hpp"

namespace downset {

constexpr int kPieceWords = 16;

struct PieceSet {
    std::array<std::uint64_t, kPieceWords> words{};
    bool has(int v) const { return words[v >> 6] >> (v & 63) & 1; }
    void add(int v) { words[v >> 6] |= std::uint64_t{1} << (v & 63); }
    void remove(int v) { words[v >> 6] &= ~(std::uint64_t{1} << (v & 63)); }
    int size() const {
        int total = 0;
        for (auto word : words) total += __builtin_popcountll(word);
        return total;
    }
    bool empty() const {
        for (auto word : words)
            if (word) return false;
        return true;
    }
    bool within(const PieceSet& other) const {
        for (int i = 0; i < kPieceWords; ++i)
            if (words[i] & ~other.words[i]) return false;
        return true;
    }
    bool operator==(const PieceSet& other) const { return words == other.words; }
    PieceSet& operator|=(const PieceSet& other) {
        for (int i = 0; i < kPieceWords; ++i) words[i] |= other.words[i];
        return *this;
    }
    PieceSet operator-(const PieceSet& other) const {
        PieceSet result;
        for (int i = 0; i < kPieceWords; ++i) result.words[i] = words[i] & ~other.words[i];
        return result;
    }
    PieceSet operator&(const PieceSet& other) const {
        PieceSet result;
        for (int i = 0; i < kPieceWords; ++i) result.words[i] = words[i] & other.words[i];
        return result;
    }
    template <class Visit>
    void each(Visit visit) const {
        for (int i = 0; i < kPieceWords; ++i)
            for (auto word = words[i]; word; word &= word - 1) visit(64 * i + __builtin_ctzll(word));
    }
    // Members below `end`, the highest first, until visit returns false.
    template <class Visit>
    void each_down(int end, Visit visit) const {
        for (int i = kPieceWords - 1; i >= 0; --i) {
            auto word = words[i];
            if (64 * i >= end) continue;
            if (64 * (i + 1) > end && (end & 63)) word &= (std::uint64_t{1} << (end & 63)) - 1;
            while (word) {
                const int bit = 63 - __builtin_clzll(word);
                if (!visit(64 * i + bit)) return;
                word &= ~(std::uint64_t{1} << bit);
            }
        }
    }
};

struct PieceHash {
    std::size_t operator()(const PieceSet& set) const {
        std::uint64_t hash = 0x9e3779b97f4a7c15ull;
        for (auto word : set.words) {
            hash ^= word;
            hash *= 0xff51afd7ed558ccdull;
            hash ^= hash >> 32;
        }
        return hash;
    }
};

class PieceSearch {
public:
    using Lists = std::vector<std::vector<std::int64_t>>;
    static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
    enum class Outcome { kFound, kImpossible, kLimit };

    // vertices: their operators, ascending, numbered topologically; layers: 1 where a vertex counts in the diameter.
    PieceSearch(const Lists& inputs, const Lists& outputs, const Lists& numbers, std::vector<std::int64_t> tensor_rows,
                const std::vector<std::int64_t>& graph_outputs, Lists vertices, std::vector<int> layers, int strips,
                int diameter, std::int64_t state_limit)
        : form_(inputs, outputs, numbers, std::move(tensor_rows)),
          vertices_(std::move(vertices)),
          layers_(std::move(layers)),
          strips_(strips),
          diameter_(diameter),
          state_limit_(state_limit),
          count_(static_cast<int>(vertices_.size())) {
        std::vector<int> made_by(form_.rows.size(), -1);
        for (int v = 0; v < count_; ++v)
            for (auto op : vertices_[v])
                for (auto tensor : form_.ops[op].outputs) made_by[tensor] = v;
        predecessors_.resize(count_);
        successors_.resize(count_);
        read_by_.resize(form_.rows.size());
        is_output_.assign(form_.rows.size(), false);
        for (auto tensor : graph_outputs) is_output_[tensor] = true;
        std::vector<bool> read(form_.rows.size(), false);
        for (int v = 0; v < count_; ++v)
            for (auto op : vertices_[v])
                for (const auto& input : form_.ops[op].inputs) {
                    read[input.tensor] = true;
                    const int from = made_by[input.tensor];
                    if (from < 0 || from == v) continue;
                    predecessors_[v].add(from);
                    successors_[from].add(v);
                    read_by_[input.tensor].add(v);
                }
        for (std::size_t t = 0; t < read.size(); ++t)
            if (made_by[t] >= 0 && !read[t]) is_output_[t] = true;
        wanted_.resize(form_.rows.size() * (strips_ + 1));
        length_.assign(count_, 0);
        descendants_.resize(count_);
        for (int v = count_ - 1; v >= 0; --v) {
            all_.add(v);
            descendants_[v] = successors_[v];
            successors_[v].each([&](int later) { descendants_[v] |= descendants_[later]; });
            if (successors_[v].empty()) ends_.add(v);
        }
    }

    // A chain in which no piece costs more than `threshold`. After kImpossible, `next` is a cost that has to be allowed.
    Outcome within(std::int64_t threshold, double seconds) {
        threshold_ = threshold;
        next_ = kNone;
        deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
        limit_ = false;
        chain_.clear();
        if (count_ == 0) return Outcome::kFound;
        if (most_.empty()) possible_ = bound_levels();
        if (!possible_) return Outcome::kImpossible;
        if (reach(all_, {})) {
            std::reverse(chain_.begin(), chain_.end());  // the recursion ended with the first piece
            return Outcome::kFound;
        }
        return limit_ ? Outcome::kLimit : Outcome::kImpossible;
    }

    // Among chains within the threshold: the least sum of costs, then the most pieces; or (first) the paper's choice, at
    // each state the first piece, from small to large, of least max. False at the time limit.
    bool refine(std::int64_t threshold, bool first, double seconds) {
        threshold_ = threshold;
        first_ = first;
        deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
        limit_ = false;
        best_.clear();
        if (count_ == 0) return true;
        solve(all_, {});
        if (limit_) return false;
        chain_.clear();
        PieceSet left = all_;
        while (!left.empty()) {
            const auto piece = best_.at(left).piece;
            chain_.push_back({piece, cost_of(left, piece)});
            left = left - piece;
        }
        return true;
    }

    std::int64_t next() const { return next_; }
    std::int64_t states() const { return static_cast<std::int64_t>(dead_.size() + best_.size()); }
    std::int64_t pairs() const { return pairs_; }
    // From the first piece; chain_ starts with the last.
    Lists pieces() const {
        Lists result;
        for (auto it = chain_.rbegin(); it != chain_.rend(); ++it) {
            result.emplace_back();
            it->first.each([&](int v) { result.back().push_back(v); });
        }
        return result;
    }
    std::vector<std::int64_t> costs() const {
        std::vector<std::int64_t> result;
        for (auto it = chain_.rbegin(); it != chain_.rend(); ++it) result.push_back(it->second);
        return result;
    }

private:
    using Clock = std::chrono::steady_clock;
    using Level = std::int16_t;
    static constexpr Level kFar = 8000, kLow = -8000;
    struct Best {
        std::int64_t value = kNone, pieces = 0;  // value: the sum, or the max
        PieceSet piece;
    };

    bool out_of_time() {
        if ((++pairs_ & 255) == 0 && (Clock::now() > deadline_ || states() > state_limit_)) limit_ = true;
        return limit_;
    }

    // What vertex v adds to the piece `piece` of what is `left`, all its successors in it being placed before; kNone if
    // the piece gets too long. Leaves the rows that v's inputs must have, and the path length, behind.
    std::int64_t place(int v, const PieceSet& left, const PieceSet& piece) {
        int longest = 0;
        (successors_[v] & piece).each([&](int later) { longest = std::max(longest, length_[later]); });
        length_[v] = longest + layers_[v];
        if (length_[v] > diameter_) return kNone;
        std::int64_t total = 0;
        for (auto op : vertices_[v])
            for (auto tensor : form_.ops[op].outputs) collect(tensor, left, piece);
        for (auto it = vertices_[v].rbegin(); it != vertices_[v].rend(); ++it) total += sweep(form_.ops[*it], v);
        return total;
    }

    // The rows of a tensor that the piece's readers outside v, and later pieces, want: strip by strip, then whole.
    void collect(std::int64_t tensor, const PieceSet& left, const PieceSet& piece) {
        const auto rows = form_.rows[tensor];
        const bool sink = is_output_[tensor] || !read_by_[tensor].within(left);
        Rows* wanted = &wanted_[tensor * (strips_ + 1)];
        for (int s = 0; s <= strips_; ++s) wanted[s] = {};
        if (sink) {
            for (int s = 0; s < strips_; ++s) wanted[s] = {s * rows / strips_, (s + 1) * rows / strips_};
            wanted[strips_] = {0, rows};
        }
        (read_by_[tensor] & piece).each([&](int reader) {
            for (auto index : vertices_[reader]) {
                const auto& op = form_.ops[index];
                for (const auto& input : op.inputs)
                    if (input.tensor == tensor)
                        for (int s = 0; s <= strips_; ++s)
                            if (const auto made = made_of(op, s); !made.empty()) wanted[s].cover(input.read(made, rows));
            }
        });
    }

    Rows made_of(const RowOp& op, int strip) const {
        Rows made;
        for (auto tensor : op.outputs) made.cover(wanted_[tensor * (strips_ + 1) + strip]);
        return op.whole && !made.empty() ? Rows{0, op.rows} : made;
    }

    std::int64_t sweep(const RowOp& op, int v) {
        std::int64_t spent = 0;
        for (int s = 0; s <= strips_; ++s) {
            const auto made = made_of(op, s);
            spent += s < strips_ ? made.size() : -made.size();
            if (made.empty()) continue;
            for (auto tensor : op.outputs) wanted_[tensor * (strips_ + 1) + s] = made;
            for (const auto& input : op.inputs)
                if (!read_by_[input.tensor].has(v)) {  // made inside v, or given
                    wanted_[input.tensor * (strips_ + 1) + s].cover(input.read(made, form_.rows[input.tensor]));
                }
        }
        return std::max<std::int64_t>(spent, 0) * op.macs_per_row;
    }

    // The least piece that may come next: what feeds the part already taken (`forced`), with all its successors. kNone:
    // too long.
    std::int64_t least(const PieceSet& left, const PieceSet& forced, PieceSet& piece) {
        piece = forced;
        forced.each([&](int v) { piece |= descendants_[v] & left; });
        std::int64_t cost = 0;
        bool fits = true;
        piece.each_down(count_, [&](int v) {
            const auto extra = place(v, left, piece);
            if (extra == kNone) return fits = false;
            cost += extra;
            return true;
        });
        return fits ? cost : kNone;
    }

    // What may be added to a piece: vertices that feed it, or whose results nobody reads; their successors are all in.
    PieceSet candidates(const PieceSet& left, const PieceSet& piece) const {
        PieceSet found = ends_;
        piece.each([&](int v) { found |= predecessors_[v]; });
        return (found & left) - piece;
    }

    PieceSet feeding(const PieceSet& piece) const {
        PieceSet found;
        piece.each([&](int v) { found |= predecessors_[v]; });
        return found;
    }

    std::int64_t cost_of(const PieceSet& left, const PieceSet& piece) {
        std::int64_t cost = 0;
        piece.each_down(count_, [&](int v) { return cost += place(v, left, piece), true; });
        return cost;
    }

    void too_dear(std::int64_t cost) {
        if (cost != kNone) next_ = std::min(next_, cost);
    }

    // Whether what is left can be cut into pieces within the threshold; chain_ then ends with the piece taken here.
    bool reach(const PieceSet& left, const PieceSet& forced) {
        if (left.empty()) return true;
        if (const auto found = dead_.find(left); found != dead_.end() && found->second.first >= threshold_) {
            too_dear(found->second.second);
            return false;
        }
        const auto outer = next_;
        next_ = kNone;
        PieceSet piece;
        const auto cost = least(left, forced, piece);
        bool found = false;
        if (cost != kNone && cost <= threshold_) {
            const auto n = static_cast<std::size_t>(count_);
            Levels levels{std::vector<Level>(n, kLow), std::vector<Level>(n, kFar)};
            left.each([&](int v) { levels.low[v] = 0; });
            bool open = true;
            piece.each_down(count_, [&](int v) { return open = decide(levels, v, true); });
            found = open && grow(left, piece, cost, count_ - 1, std::move(levels));
        } else {
            too_dear(cost);
        }
        if (!found && !limit_) dead_[left] = {threshold_, next_};
        next_ = std::min(next_, outer);
        return found;
    }

    // Levels counted from the piece that is being made, as far as the diameter and the chain constraint bound them.
    struct Levels {
        std::vector<Level> low, high;
    };

    // Vertex v is in the piece (level 0), or (in = false) in a later one. False: some vertex has no level left.
    bool decide(Levels& levels, int v, bool in) const {
        const Level* up = &most_[static_cast<std::size_t>(v) * count_];
        const Level* down = &most_by_[static_cast<std::size_t>(v) * count_];
        Level* low = levels.low.data();
        Level* high = levels.high.data();
        const Level at = in ? 0 : 1;
        Level worst = 0;
        for (int u = 0; u < count_; ++u) {
            low[u] = std::max<Level>(low[u], at - up[u]);
            if (in) high[u] = std::min(high[u], down[u]);
            worst = std::max<Level>(worst, low[u] - high[u]);
        }
        return worst <= 0;
    }

    // Pieces that contain `piece`, larger ones first; vertices above `from` are decided. A vertex becomes possible when a
    // higher one is added, never a lower one, so every piece comes once.
    bool grow(const PieceSet& left, const PieceSet& piece, std::int64_t cost, int from, Levels levels) {
        if (out_of_time()) return false;
        bool found = false, dead = false;
        candidates(left, piece).each_down(from + 1, [&](int v) {
            if (levels.low[v] == 0 && (successors_[v] & left).within(piece)) {
                const auto extra = place(v, left, piece);
                if (extra != kNone && cost + extra <= threshold_) {
                    PieceSet larger = piece;
                    larger.add(v);
                    Levels inside = levels;
                    if (decide(inside, v, true)) found = grow(left, larger, cost + extra, v - 1, std::move(inside));
                    if (found || limit_) return false;
                } else if (extra != kNone) {
                    too_dear(cost + extra);
                }
            }
            dead = levels.high[v] < 1 || !decide(levels, v, false);
            return !dead;
        });
        if (dead) return false;
        if (found || limit_) return found;
        const auto rest = left - piece;
        if (piece.empty() || !reach(rest, feeding(piece) & rest)) return false;
        chain_.push_back({piece, cost});
        return true;
    }

    // most_[u · V + v]: the most by which u's level (counted from the end) can exceed v's: an edge spans one level at
    // most, none against its direction, and a path of more layers than the diameter at least one. Shortest paths.
    bool bound_levels() {
        const auto n = static_cast<std::size_t>(count_);
        most_.assign(n * n, kFar);
        std::vector<int> longest(n);
        for (int u = 0; u < count_; ++u) {
            most_[u * n + u] = 0;
            std::fill(longest.begin(), longest.end(), -1);
            longest[u] = layers_[u];
            for (int v = u; v < count_; ++v) {
                if (v > u) {
                    predecessors_[v].each([&](int before) {
                        if (longest[before] >= 0) longest[v] = std::max(longest[v], longest[before] + layers_[v]);
                    });
                }
                if (v > u && longest[v] >= 0)
                    most_[v * n + u] = static_cast<Level>(longest[v] > diameter_ ? -((longest[v] - 1) / diameter_) : 0);
            }
            successors_[u].each([&](int v) { most_[u * n + v] = 1; });
        }
        for (std::size_t k = 0; k < n; ++k)
            for (std::size_t u = 0; u < n; ++u) {
                const Level through = most_[u * n + k];
                if (through >= kFar) continue;
                for (std::size_t v = 0; v < n; ++v)
                    most_[u * n + v] = std::min<Level>(most_[u * n + v], through + most_[k * n + v]);
            }
        most_by_.resize(n * n);
        for (std::size_t u = 0; u < n; ++u) {
            if (most_[u * n + u] < 0) return false;
            for (std::size_t v = 0; v < n; ++v) most_by_[v * n + u] = most_[u * n + v];
        }
        return true;
    }

    using Priced = std::pair<PieceSet, std::int64_t>;

    const Best& solve(const PieceSet& left, const PieceSet& forced) {
        if (const auto found = best_.find(left); found != best_.end()) return found->second;
        Best best;
        if (left.empty()) {
            best.value = 0;
        } else if (const auto known = dead_.find(left); known == dead_.end() || known->second.first < threshold_) {
            PieceSet piece;
            std::vector<Priced> options;
            const auto cost = least(left, forced, piece);
            if (cost != kNone && cost <= threshold_) collect_all(left, piece, cost, count_ - 1, options);
            std::sort(options.begin(), options.end(), [](const Priced& a, const Priced& b) {
                const int one = a.first.size(), two = b.first.size();
                if (one != two) return one < two;
                return std::lexicographical_compare(a.first.words.rbegin(), a.first.words.rend(),
                                                    b.first.words.rbegin(), b.first.words.rend());
            });
            for (const auto& [option, spent] : options) {
                const auto after = left - option;
                const Best rest = solve(after, feeding(option) & after);
                if (limit_) break;
                if (rest.value == kNone) continue;
                const auto value = first_ ? std::max(rest.value, spent) : rest.value + spent;
                const auto pieces = rest.pieces + 1;
                if (value < best.value || (!first_ && value == best.value && pieces > best.pieces))
                    best = {value, pieces, option};
            }
        }
        return best_[left] = best;
    }

    void collect_all(const PieceSet& left, const PieceSet& piece, std::int64_t cost, int from,
                     std::vector<Priced>& options) {
        if (out_of_time() || options.size() > 100000) {
            limit_ = true;
            return;
        }
        if (!piece.empty()) options.push_back({piece, cost});
        candidates(left, piece).each_down(from + 1, [&](int v) {
            if (!(successors_[v] & left).within(piece)) return true;
            const auto extra = place(v, left, piece);
            if (extra == kNone || cost + extra > threshold_) return true;
            PieceSet larger = piece;
            larger.add(v);
            collect_all(left, larger, cost + extra, v - 1, options);
            return true;
        });
    }

    RowForm form_;
    Lists vertices_;
    std::vector<int> layers_;
    int strips_, diameter_;
    std::int64_t state_limit_;
    int count_;
    std::vector<PieceSet> predecessors_, successors_, descendants_, read_by_;
    std::vector<bool> is_output_;
    PieceSet all_, ends_;
    std::vector<Rows> wanted_;  // by tensor: its rows strip by strip, then whole
    std::vector<int> length_;
    std::vector<Level> most_, most_by_;
    std::unordered_map<PieceSet, std::pair<std::int64_t, std::int64_t>, PieceHash> dead_;  // threshold, next
    std::unordered_map<PieceSet, Best, PieceHash> best_;
    std::vector<std::pair<PieceSet, std::int64_t>> chain_;
    std::int64_t threshold_ = 0, next_ = kNone, pairs_ = 0;
    Clock::time_point deadline_;
    bool limit_ = false, first_ = false, possible_ = true;
};

}  // namespace downset
