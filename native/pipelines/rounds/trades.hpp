// Stages of several blocks where computing and sending are not summed: the least they send within a budget, from above
// by a stage that does, from below by Lagrange's bound.
//
// With a price on time every block is as good as it can be by itself, and the blocks are a shortest path over units.
// The price is raised and lowered until it is right (the LARAC algorithm for constrained shortest paths); between what
// is then found and the bound lies only what a choice of whole rows and cuts leaves. Where there are few choices they
// are all tried.
#pragma once

#include "pipelines/rounds/sums.hpp"

namespace downset {

// A block and its limit on computing.
struct LimitedBlock {
    int start, stop;
    double limit;
};

class StageTrades {
public:
    // Blocks one after another under one leader.
    struct Way {
        double compute = 0, transfer = 0;
        int leader = 0;
        std::vector<LimitedBlock> blocks;
    };
    struct Bounds {
        double lower = 0, upper = kNever;  // seconds of sending, at least and as found
        Way way;                           // that sends `upper`
    };

    StageTrades(const LoadProblem& problem, BlockSums& blocks)
        : problem_(problem), sets_(problem.sets), blocks_(blocks), facts_(problem.chain.segments.size()),
          first_parts_(problem.sets.led_count) {}

    // Works out what a stage sends; null where that is known for this budget.
    const Bounds* learn(int start, int stop, int set, int leader, double budget) {
        auto& facts = facts_[problem_.index(start, stop)];
        const int device = sets_.device(set, leader);
        for (const Fact& fact : facts)
            if (fact.set == set && fact.leader == device && fact.budget == budget) return nullptr;
        facts.push_back({set, device, budget, least_sending(start, stop, set, leader, budget)});
        return &facts.back().bounds;
    }

    // No stage sends less, by what was learnt of larger sets and budgets.
    double lower(int start, int stop, int set, int leader, double budget) const {
        double least = 0;
        for (const Fact& fact : facts_[problem_.index(start, stop)])
            if (fact.leader == sets_.device(set, leader) && fact.budget >= budget && sets_.within(set, fact.set))
                least = std::max(least, fact.bounds.lower);
        return least;
    }

    // The stage that is known to send least within the budget; null: none is.
    const Bounds* known(int start, int stop, int set, int leader, double budget) const {
        const Bounds* best = nullptr;
        for (const Fact& fact : facts_[problem_.index(start, stop)])
            if (fact.set == set && fact.leader == sets_.device(set, leader) && fact.budget <= budget &&
                fact.bounds.upper < (best ? best->upper : kNever))
                best = &fact.bounds;
        return best;
    }

private:
    static constexpr int kRounds = 16;
    static constexpr double kRoom = 1 - 1e-4, kClose = 1 - 1e-6, kDear = 1e3;
    struct Fact {
        int set, leader;  // a device, or any
        double budget;
        Bounds bounds;
    };
    static constexpr int kFew = 2000;
    struct Label {
        double compute = 0, transfer = 0;
        int start = 0, from = 0;  // the last block's, and the label there
        double limit = 0;
    };
    struct Part {
        LimitedBlock block{};
        int leader = kAnyLeader;
        double compute = 0, transfer = 0;
        double least = 0;  // no division has less computing plus weighted sending
        bool is_priced = false;
    };
    struct Path {
        double compute = 0, transfer = 0;
        std::vector<Part> parts;
    };

    const LoadProblem& problem_;
    const DeviceSets& sets_;
    BlockSums& blocks_;
    std::vector<std::vector<Fact>> facts_;        // by segment
    std::vector<std::vector<Part>> first_parts_;  // by set and leader, segment: at the first weight of every search

    double first_weight() const { return weight_of(kDear); }
    double weight_of(double price) const { return 1 / price + (problem_.network.overlap ? 0 : 1); }

    double time_of(double compute, double transfer) const {
        return problem_.network.overlap ? compute : compute + transfer;
    }

    // The least sending of the units on the set with computing (without overlap: and sending) within the budget.
    Bounds least_sending(int start, int stop, int set, int leader, double budget) {
        Bounds bounds;
        bounds.way = alone(start, stop, set, leader);
        if (bounds.way.compute <= budget) {
            bounds.upper = 0;
            return bounds;
        }
        // Between one device alone, beyond the budget, and what is within it.
        double far = bounds.way.compute, far_sends = 0;
        double near = kNever, near_sends = kNever, price = kDear;
        for (int round = 0; round < kRounds && far > budget; ++round) {
            double value;
            const Path path = lightest(start, stop, set, leader, weight_of(price), value);
            if (blocks_.stopped()) break;
            bounds.lower = std::max(bounds.lower, price * (value - budget));
            const double taken = time_of(path.compute, path.transfer);
            if (taken <= budget) {
                lead(path, set, budget, bounds);
                if (path.transfer >= near_sends * kClose) break;
                near = taken, near_sends = path.transfer;
            } else {
                if (near == kNever || path.transfer <= far_sends / kClose) break;
                far = taken, far_sends = path.transfer;
            }
            if (near_sends <= far_sends || far <= near) break;
            price = (near_sends - far_sends) / (far - near);
        }
        const int length = stop - start;
        const bool few = length * length * problem_.segment(start, stop).rows <= kFew / 4;
        if (few && bounds.lower < bounds.upper * kClose) try_all(start, stop, set, leader, budget, bounds);
        return bounds;
    }

    // The same by every trade of computing against sending that no other beats, under every leader, as far as they are
    // few.
    void try_all(int start, int stop, int set, int leader, double budget, Bounds& bounds) {
        const int devices = static_cast<int>(sets_.members[set].size());
        int calls = kFew;
        for (int one = std::max(0, leader); one < (leader == kAnyLeader ? devices : leader + 1); ++one)
            if (!try_all_led(start, stop, set, one, budget, calls, bounds)) return;
        bounds.lower = bounds.upper;
    }

    // False: too many, or no time.
    bool try_all_led(int start, int stop, int set, int leader, double budget, int& calls, Bounds& bounds) {
        const int length = stop - start;
        std::vector<std::vector<Label>> reached(length + 1);
        reached[0].push_back({});
        for (int a = 0; a < length; ++a)
            for (int b = a + 1; b <= length && !reached[a].empty(); ++b) {
                double limit = budget;
                for (Division division; calls > 0 && limit > 0 && !blocks_.out_of_time();
                     limit = division.longest * kBelow) {
                    --calls;
                    const double transfer = blocks_.least_transfer(start + a, start + b, set, leader, limit, &division);
                    if (transfer == kNever) break;
                    extend(reached[a], a, division.longest, transfer, limit, budget, bounds.upper, reached[b]);
                }
                if (calls <= 0 || blocks_.stopped() || reached[b].size() > kFew) return false;
            }
        for (const Label& last : reached[length]) {
            if (last.transfer >= bounds.upper) continue;
            bounds.upper = last.transfer;
            bounds.way = {last.compute, last.transfer, leader, {}};
            const Label* label = &last;
            for (int b = length; b > 0; b = label->start, label = &reached[b][label->from])
                bounds.way.blocks.insert(bounds.way.blocks.begin(), {start + label->start, start + b, label->limit});
        }
        return true;
    }

    // A block from the cut behind every label there. Those that a new one beats stay: labels behind them are numbered.
    void extend(const std::vector<Label>& labels, int cut, double compute, double transfer, double limit, double budget,
                double below, std::vector<Label>& reached) const {
        for (int from = 0; from < static_cast<int>(labels.size()); ++from) {
            const Label label{labels[from].compute + compute, labels[from].transfer + transfer, cut, from, limit};
            const auto beats = [&](const Label& other) {
                return other.compute <= label.compute && other.transfer <= label.transfer;
            };
            if (time_of(label.compute, label.transfer) <= budget && label.transfer < below &&
                std::none_of(reached.begin(), reached.end(), beats))
                reached.push_back(label);
        }
    }

    // One device alone, in the blocks that take it least.
    Way alone(int start, int stop, int set, int leader) const {
        const int length = stop - start, line = length + 1;
        std::vector<double> seconds(line * line, kNever);
        for (int a = 0; a < length; ++a)
            for (int b = a + 1; b <= length; ++b)
                seconds[a * line + b] = blocks_.alone_s(start + a, start + b, sets_.members[set][std::max(0, leader)]);
        const CutPath shortest(length, seconds);
        Way way{shortest.distance[length], 0, std::max(0, leader), {}};  // the first of a set is its fastest
        for (int b = length; b > 0; b = shortest.previous[b])
            way.blocks.insert(way.blocks.begin(), {start + shortest.previous[b], start + b, kNever});
        return way;
    }

    // The path under one leader: whichever that blocks of it like best sends least.
    void lead(const Path& path, int set, double budget, Bounds& bounds) {
        std::vector<int> leaders;
        for (const Part& part : path.parts)
            if (std::find(leaders.begin(), leaders.end(), part.leader) == leaders.end()) leaders.push_back(part.leader);
        for (int one : leaders) {
            Way way{0, 0, one, {}};
            for (const Part& part : path.parts) {
                Division division;
                way.transfer +=
                    blocks_.least_transfer(part.block.start, part.block.stop, set, one, part.block.limit, &division);
                way.compute += division.longest;
                way.blocks.push_back(part.block);
            }
            if (way.transfer < bounds.upper && time_of(way.compute, way.transfer) <= budget)
                bounds.upper = way.transfer, bounds.way = std::move(way);
        }
    }

    // The path of least computing plus weighted sending; none is below `lower`.
    Path lightest(int start, int stop, int set, int leader, double weight, double& lower) {
        const int length = stop - start, line = length + 1;
        std::vector<double> least(line * line, kNever);
        std::vector<Part> parts(line * line);
        for (int a = 0; a < length; ++a)
            for (int b = a + 1; b <= length; ++b)
                least[a * line + b] = blocks_.sum_bound(start + a, start + b, set, leader, weight);
        while (true) {
            const CutPath shortest(length, least);
            const auto& [distance, previous] = shortest;
            Path path;
            bool all = true;
            for (int b = length; b > 0; b = previous[b]) {
                const int edge = previous[b] * line + b;
                Part& part = parts[edge];
                if (!part.is_priced) {
                    all = false;
                    part = part_of(start + previous[b], start + b, set, leader, weight);
                    if (blocks_.stopped()) return {};
                    least[edge] = std::max(least[edge], part.least);
                }
                path.compute += part.compute, path.transfer += part.transfer;
                path.parts.insert(path.parts.begin(), part);
            }
            lower = distance[length];
            if (all) return path;
        }
    }

    // The block at its least computing plus weighted sending.
    Part part_of(int start, int stop, int set, int leader, double weight) {
        if (weight != first_weight()) return priced(start, stop, set, leader, weight);
        auto& parts = first_parts_[sets_.led(set, leader)];
        if (parts.empty()) parts.resize(facts_.size());
        Part& part = parts[problem_.index(start, stop)];
        if (!part.is_priced)
            if (Part whole = priced(start, stop, set, leader, weight); !blocks_.stopped()) part = whole;
        return part;
    }

    Part priced(int start, int stop, int set, int leader, double weight) {
        Part part{{start, stop, kNever}};
        const double value = blocks_.lightest(start, stop, set, leader, {weight, kRoom}, part.block.limit);
        part.least = value * kRoom;
        Division division;
        part.transfer = blocks_.least_transfer(start, stop, set, leader, part.block.limit, &division);
        part.compute = division.longest, part.leader = division.leader, part.is_priced = true;
        return part;
    }
};

}  // namespace downset
