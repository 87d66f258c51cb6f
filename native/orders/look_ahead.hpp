// A look at the few downsets behind a valley of live bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bits.hpp"
#include "orders/problem.hpp"

namespace downset {

// Finds a short way through a valley: a set T of a few operators, reachable under `peak`, after which live bytes are no
// higher than at X and at every downset between X and T. Going to T first then loses nothing (docs: valley commit).
// Only operators opened by one ready operator are looked at, level by level; a few dozen downsets in all.
class LookAhead {
public:
    explicit LookAhead(const OrderProblem& problem)
        : problem_(problem), sets_(problem.words), ready_(problem.words), trial_(no_bits(problem.words)),
          opened_(trial_), local_(trial_) {}

    // Looking costs as much as expanding several states: worth it while every few looks find something.
    bool pays() const { return looks_ < 256 || finds_ * 6 >= looks_; }

    // The operators of T in order, or none.
    Ints find(BitsView set, BitsView ready, Bytes live, Bytes peak) {
        Ints way;
        int tried = 0;  // among very many ready operators a look at each would cost more than the search
        ready.any([&](int v) {
            way = from(set, ready, live, peak, v);
            return !way.empty() || ++tried >= 64;
        });
        ++looks_;
        finds_ += way.empty() ? 0 : 1;
        return way;
    }

private:
    static constexpr int kNodes = 48;
    std::int64_t looks_ = 0, finds_ = 0;
    struct Node {
        Bytes live;
        Word hash;  // of what ran since the start
        int parent, ran;
        bool reachable;
    };
    const OrderProblem& problem_;
    std::vector<Node> nodes_;
    BitsTable sets_, ready_;  // by node
    DynamicBits trial_, opened_, local_;

    Ints from(BitsView set, BitsView ready, Bytes live, Bytes peak, int first) {
        nodes_.assign(1, {live, 0, -1, -1, true});
        sets_.clear();
        sets_.push_back(set);
        ready_.clear();
        opened_.clear();
        opened_.add(first);
        ready_.push_back(opened_);
        Bytes lowest = live;
        int level_start = 0;
        while (level_start < static_cast<int>(nodes_.size())) {
            const int level_end = static_cast<int>(nodes_.size());
            for (int node = level_start; node < level_end; ++node) {
                local_.assign(ready_[node]);
                const bool full = local_.any([&](int v) { return grow(ready, peak, node, v, level_end); });
                if (full) return {};
            }
            int best = -1;
            for (int node = level_end; node < static_cast<int>(nodes_.size()); ++node)
                if (nodes_[node].reachable && nodes_[node].live <= lowest &&
                    (best < 0 || nodes_[node].live < nodes_[best].live))
                    best = node;
            // Another of the same size may lie lower without being reachable; it is not a subset of this one.
            if (best >= 0) {
                Ints way;
                for (int node = best; nodes_[node].parent >= 0; node = nodes_[node].parent)
                    way.push_back(nodes_[node].ran);
                std::reverse(way.begin(), way.end());
                return way;
            }
            for (int node = level_end; node < static_cast<int>(nodes_.size()); ++node)
                lowest = std::min(lowest, nodes_[node].live);
            level_start = level_end;
        }
        return {};
    }

    // Adds the downset after v at node `at`; true when there is no room left.
    bool grow(BitsView outer_ready, Bytes peak, int node, int v, int level_end) {
        const auto [transient, left] = problem_.step(sets_[node], nodes_[node].live, v);
        const bool reachable = nodes_[node].reachable && transient <= peak;
        const Word hash = nodes_[node].hash ^ mixed(v);
        trial_.assign(sets_[node]);
        trial_.add(v);
        for (int other = level_end; other < static_cast<int>(nodes_.size()); ++other)
            if (nodes_[other].hash == hash && trial_ == sets_[other]) {
                if (reachable && !nodes_[other].reachable) nodes_[other] = {left, hash, node, v, true};
                return false;
            }
        if (static_cast<int>(nodes_.size()) >= kNodes) return true;
        opened_.assign(local_);
        problem_.open(trial_, opened_, v);
        for (std::size_t i = 0; i < opened_.words.size(); ++i)
            opened_.words[i] &= ~outer_ready.words[i] | local_.words[i];
        nodes_.push_back({left, hash, node, v, reachable});
        sets_.push_back(trial_);
        ready_.push_back(opened_);
        return false;
    }
};

}  // namespace downset
