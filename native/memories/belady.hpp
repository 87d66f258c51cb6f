// A quick residency of a fixed order: Belady's rule with sizes and costs. Where fast memory overflows, the storage
// leaves it whose next use is farthest for what its return costs. Oracle: tests/memories/oracles/machine.py; what it
// chooses costs what downset/memories/moves.py counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "memories/chains.hpp"

namespace downset {

class Belady {
public:
    explicit Belady(const MemoriesProblem& problem)
        : problem_(problem), places_(problem.storages), use_(problem.storages), first_(1, 0) {
        for (const auto& list : problem.accesses) first_.push_back(first_.back() + list.size());
        next_.resize(first_.back()), fast_.resize(first_.back()), keep_.resize(first_.back());
        start_.resize(problem.storages);
    }

    // The cost, or `limit` where it is reached.
    Cost run(const Ints& order, Cost limit) {
        begin(order);
        for (int p = 0; p < problem_.count && cost_ < limit; ++p) step(order[p], p);
        for (int s = 0; s < problem_.storages; ++s) {
            const Place& place = places_[s];
            if (problem_.touches[s].empty()) continue;
            if (problem_.end[s] == End::kSlow && place.held) cost_ += leaving(s);
            if (problem_.end[s] == End::kFast && !place.held) cost_ += problem_.load[s];
        }
        return std::min(cost_, limit);
    }
    // What the last run chose, by link.
    std::vector<AccessChoice> choices(const AccessChains& chains) const {
        std::vector<AccessChoice> chosen;
        std::vector<std::size_t> within(problem_.count, 0);
        for (const auto& link : chains.links) {
            if (link.kind == AccessChains::kStart) {
                chosen.push_back({start_[link.storage] != 0, start_[link.storage] != 0});
            } else if (link.kind == AccessChains::kEnd) {
                chosen.push_back({places_[link.storage].held, false});
            } else {
                const int v = chains.order[link.position];
                const std::size_t access = first_[v] + within[v]++;
                chosen.push_back({fast_[access] != 0, keep_[access] != 0});
            }
        }
        return chosen;
    }

private:
    static constexpr int kNone = 1 << 30;
    struct Place {
        bool held, changed, touched;
        int operand_at;
        std::int64_t last;  // its last access, or -1
    };
    struct Victim {
        int storage;
        std::int64_t access;  // where an operand is accessed in slow memory instead
    };

    const MemoriesProblem& problem_;
    std::vector<Place> places_;
    std::vector<int> use_;  // by held storage: the position of its next use
    std::vector<std::size_t> first_;
    std::vector<int> next_;
    std::vector<char> fast_, keep_, start_;
    std::vector<int> held_;
    std::vector<Victim> victims_;
    Bytes kept_ = 0;
    Cost cost_ = 0;

    void begin(const Ints& order) {
        for (int s = 0; s < problem_.storages; ++s) {
            use_[s] = problem_.end[s] == End::kDead ? kNone : problem_.count;
            places_[s] = {false, false, false, -1, -1};
        }
        for (int p = problem_.count - 1; p >= 0; --p) {
            const int v = order[p];
            for (std::size_t i = problem_.accesses[v].size(); i-- > 0;) {
                const int s = problem_.accesses[v][i].storage;
                next_[first_[v] + i] = use_[s];
                use_[s] = p;
            }
        }
        held_.clear();
        kept_ = 0, cost_ = 0;
        for (int s = 0; s < problem_.storages; ++s) {
            start_[s] = problem_.starts_fast(s);
            if (start_[s]) hold(s, true);
            places_[s].touched = problem_.begin[s] != Begin::kMade;
        }
    }
    void hold(int s, bool changed) {
        places_[s].held = true, places_[s].changed = changed;
        held_.push_back(s);
        kept_ += problem_.room[s];
    }
    void release(int s) {
        places_[s].held = places_[s].changed = false;
        held_.erase(std::find(held_.begin(), held_.end(), s));
        kept_ -= problem_.room[s];
    }
    Cost leaving(int s) const { return places_[s].changed ? problem_.store[s] : 0; }
    Cost returning(int s, int next) const {
        return next == kNone || (next == problem_.count && problem_.end[s] != End::kFast) ? 0 : problem_.load[s];
    }
    double score(int s, int distance, Cost cost) const {
        if (cost <= 0) return std::numeric_limits<double>::max();
        return static_cast<double>(distance) * static_cast<double>(problem_.room[s]) / static_cast<double>(cost);
    }

    void step(int v, int p) {
        const auto& accesses = problem_.accesses[v];
        Bytes used = problem_.workspace[v] + kept_;
        for (std::size_t i = 0; i < accesses.size(); ++i) {
            const int s = accesses[i].storage;
            places_[s].operand_at = p;
            fast_[first_[v] + i] = true;
            if (!places_[s].held) used += problem_.room[s];
        }
        victims_.clear();
        while (used > problem_.capacity) used -= problem_.room[choose(v, p).storage];
        for (std::size_t i = victims_.size(); i-- > 0;) {
            const Bytes room = problem_.room[victims_[i].storage];
            if (used + room > problem_.capacity) continue;
            used += room;
            if (victims_[i].access >= 0) fast_[victims_[i].access] = true;
            places_[victims_[i].storage].operand_at = victims_[i].access >= 0 ? p : -1;
            victims_.erase(victims_.begin() + static_cast<std::ptrdiff_t>(i));
        }
        for (const Victim& victim : victims_) evict(victim.storage);
        for (std::size_t i = 0; i < accesses.size(); ++i) access(accesses[i], first_[v] + i);
    }

    void evict(int s) {
        if (!places_[s].held) return;
        cost_ += leaving(s);
        if (places_[s].last < 0)
            start_[s] = false;
        else
            keep_[places_[s].last] = false;
        release(s);
    }

    // The next victim; it is marked, so that it is not chosen again.
    Victim choose(int v, int p) {
        Victim best{-1, -1};
        double most = -1;
        for (const int s : held_) {
            if (places_[s].operand_at == p || places_[s].operand_at == -2 - p) continue;
            const double merit = score(s, use_[s] - p, leaving(s) + returning(s, use_[s]));
            if (merit > most) most = merit, best = {s, -1};
        }
        for (std::size_t i = 0; i < problem_.accesses[v].size(); ++i) {
            const auto& one = problem_.accesses[v][i];
            const std::int64_t index = static_cast<std::int64_t>(first_[v] + i);
            if (one.direct < 0 || !fast_[index]) continue;
            const int s = one.storage, next = next_[index];
            const bool held = places_[s].held;
            const Cost instead = held || fresh(one) ? 0 : problem_.load[s];
            const Cost cost = one.direct - instead + returning(s, next) + (held ? leaving(s) : 0);
            double merit = score(s, next == kNone ? 1 : next - p, cost);
            if (held && cost > 0) merit = merit * 1e-12;
            if (merit > most) most = merit, best = {s, index};
        }
        if (best.access >= 0)
            fast_[best.access] = false;
        else
            places_[best.storage].operand_at = -2 - p;
        victims_.push_back(best);
        return best;
    }
    bool fresh(const MemoriesProblem::Access& one) const { return !places_[one.storage].touched; }

    void access(const MemoriesProblem::Access& one, std::size_t index) {
        const int s = one.storage;
        Place& place = places_[s];
        const bool begins = fresh(one);
        place.touched = true;
        keep_[index] = false;
        if (!fast_[index]) {
            cost_ += one.direct;
            return;
        }
        if (!place.held) {
            cost_ += begins ? 0 : problem_.load[s];
            hold(s, one.write || begins);
        }
        place.changed = place.changed || one.write;
        place.last = static_cast<std::int64_t>(index);
        use_[s] = next_[index];
        if (next_[index] == kNone)
            release(s);
        else
            keep_[index] = true;
    }
};

}  // namespace downset
