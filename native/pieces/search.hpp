// Chains of pieces: the least threshold on the redundant work of a piece (PICO, Algorithm 1 as a bottleneck path over
// downsets). The Python twin is experiments/pico/algorithm_1.py.
//
// A state is what is left, a downset. Of the operators left, those that feed what was already taken must be in the next
// piece, and a piece takes all successors, so its least form is known; larger ones add one maximal vertex at a time.
// The sinks of a piece are fixed by the state, so a vertex that is added costs the same whichever others are in: the
// cost is a sum, it never falls as a piece grows, and whatever exceeds the threshold is cut with all its supersets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "deadline.hpp"
#include "outcome.hpp"
#include "pieces/levels.hpp"
#include "pieces/network.hpp"

namespace downset {

class PieceSearch {
public:
    using Lists = PieceNetwork::Lists;
    static constexpr std::int64_t kNone = PieceNetwork::kNone;

    // As PieceNetwork's arguments, and the most states that are kept.
    PieceSearch(RowForm form, Lists vertices, std::vector<int> layers, int strips, int diameter,
                std::int64_t state_limit)
        : net_(std::move(form), std::move(vertices), std::move(layers), strips, diameter), state_limit_(state_limit) {}

    // A chain in which no piece costs more than `threshold`. After kImpossible, `next` is a cost that has to be
    // allowed.
    Outcome within(std::int64_t threshold, double seconds) {
        threshold_ = threshold;
        next_ = kNone;
        deadline_ = Deadline(seconds);
        limit_ = false;
        chain_.clear();
        if (net_.count == 0) return Outcome::kSolved;
        if (!levels_.prepared()) possible_ = levels_.prepare(net_);
        if (!possible_) return Outcome::kImpossible;
        if (reach(net_.all, {})) {
            std::reverse(chain_.begin(), chain_.end());  // the recursion ended with the first piece
            return Outcome::kSolved;
        }
        return limit_ ? Outcome::kLimit : Outcome::kImpossible;
    }

    // Settles ties among the chains within the threshold: the chain of least sum of costs is taken, of equal ones that
    // of most pieces. With `first` the paper's choice is taken: at each state the first piece of least max, where small
    // pieces come first. False if the time is over, or if no chain is within the threshold.
    bool refine(std::int64_t threshold, bool first, double seconds) {
        threshold_ = threshold;
        first_ = first;
        deadline_ = Deadline(seconds);
        limit_ = false;
        best_.clear();
        if (net_.count == 0) return true;
        solve(net_.all, {});
        if (limit_ || best_.at(net_.all).value == kNone) return false;
        chain_.clear();
        PieceSet left = net_.all;
        while (!left.empty()) {
            const auto piece = best_.at(left).piece;
            chain_.push_back({piece, net_.cost_of(left, piece)});
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
    using Range = PieceLevels::Range;
    struct Best {
        std::int64_t value = kNone, pieces = 0;  // value: the sum, or the max
        PieceSet piece;
    };

    bool out_of_time() {
        if ((++pairs_ & 255) == 0 && (deadline_.passed() || states() > state_limit_)) limit_ = true;
        return limit_;
    }

    // The least piece that may come next: what feeds the part already taken (`forced`), with all its successors. kNone:
    // too long.
    std::int64_t least(const PieceSet& left, const PieceSet& forced, PieceSet& piece) {
        piece = forced;
        forced.each([&](int v) { piece |= net_.descendants[v] & left; });
        std::int64_t cost = 0;
        bool fits = true;
        piece.each_down(net_.count, [&](int v) {
            const auto extra = net_.place(v, left, piece);
            if (extra == kNone) return fits = false;
            cost += extra;
            return true;
        });
        return fits ? cost : kNone;
    }

    void too_dear(std::int64_t cost) {
        if (cost != kNone) next_ = std::min(next_, cost);
    }

    // Whether what is left can be cut into pieces within the threshold; chain_ then ends with the piece taken here.
    bool reach(const PieceSet& left, const PieceSet& forced) {
        if (left.empty()) return true;
        if (const auto dead_end = dead_.find(left); dead_end != dead_.end() && dead_end->second.first >= threshold_) {
            too_dear(dead_end->second.second);
            return false;
        }
        const auto outer = next_;
        next_ = kNone;
        PieceSet piece;
        const auto cost = least(left, forced, piece);
        bool reached = false;
        if (cost != kNone && cost <= threshold_) {
            Range range = levels_.open(left);
            bool open = true;
            piece.each_down(net_.count, [&](int v) { return open = levels_.decide(range, v, true); });
            reached = open && grow(left, piece, cost, net_.count - 1, std::move(range));
        } else {
            too_dear(cost);
        }
        if (!reached && !limit_) dead_[left] = {threshold_, next_};
        next_ = std::min(next_, outer);
        return reached;
    }

    // Pieces that contain `piece`, larger ones first; vertices above `from` are decided. A vertex becomes possible when
    // a higher one is added, never a lower one, so every piece comes once.
    bool grow(const PieceSet& left, const PieceSet& piece, std::int64_t cost, int from, Range range) {
        if (out_of_time()) return false;
        bool reached = false, dead = false;
        net_.candidates(left, piece).each_down(from + 1, [&](int v) {
            if (range.low[v] == 0 && (net_.successors[v] & left).within(piece)) {
                const auto extra = net_.place(v, left, piece);
                if (extra != kNone && cost + extra <= threshold_) {
                    PieceSet larger = piece;
                    larger.add(v);
                    Range inside = range;
                    if (levels_.decide(inside, v, true))
                        reached = grow(left, larger, cost + extra, v - 1, std::move(inside));
                    if (reached || limit_) return false;
                } else if (extra != kNone) {
                    too_dear(cost + extra);
                }
            }
            dead = range.high[v] < 1 || !levels_.decide(range, v, false);
            return !dead;
        });
        if (dead) return false;
        if (reached || limit_) return reached;
        const auto rest = left - piece;
        if (piece.empty() || !reach(rest, net_.feeding(piece) & rest)) return false;
        chain_.push_back({piece, cost});
        return true;
    }

    using Priced = std::pair<PieceSet, std::int64_t>;

    const Best& solve(const PieceSet& left, const PieceSet& forced) {
        if (const auto solved = best_.find(left); solved != best_.end()) return solved->second;
        Best best;
        if (left.empty()) {
            best.value = 0;
        } else if (const auto dead_end = dead_.find(left);
                   dead_end == dead_.end() || dead_end->second.first < threshold_) {
            PieceSet piece;
            std::vector<Priced> options;
            const auto cost = least(left, forced, piece);
            if (cost != kNone && cost <= threshold_) collect_all(left, piece, cost, net_.count - 1, options);
            std::sort(options.begin(), options.end(), [](const Priced& a, const Priced& b) {
                const int one = a.first.size(), two = b.first.size();
                if (one != two) return one < two;
                return std::lexicographical_compare(a.first.words.rbegin(), a.first.words.rend(),
                                                    b.first.words.rbegin(), b.first.words.rend());
            });
            for (const auto& [option, spent] : options) {
                const auto after = left - option;
                const Best rest = solve(after, net_.feeding(option) & after);
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
        net_.candidates(left, piece).each_down(from + 1, [&](int v) {
            if (!(net_.successors[v] & left).within(piece)) return true;
            const auto extra = net_.place(v, left, piece);
            if (extra == kNone || cost + extra > threshold_) return true;
            PieceSet larger = piece;
            larger.add(v);
            collect_all(left, larger, cost + extra, v - 1, options);
            return true;
        });
    }

    PieceNetwork net_;
    PieceLevels levels_;
    std::int64_t state_limit_;
    std::unordered_map<PieceSet, std::pair<std::int64_t, std::int64_t>, BitsHash> dead_;  // threshold, next
    std::unordered_map<PieceSet, Best, BitsHash> best_;
    std::vector<std::pair<PieceSet, std::int64_t>> chain_;
    std::int64_t threshold_ = 0, next_ = kNone, pairs_ = 0;
    Deadline deadline_{0};
    bool limit_ = false, first_ = false, possible_ = true;
};

}  // namespace downset
