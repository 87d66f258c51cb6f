// Shared objects of least total size, exact: a best-first search over the sizes of the objects, largest first.
// Specified by downset/arenas/exact_objects.py and, in the tests, by trying every partition of the records.
//
// Objects of sizes s1 >= s2 >= ... >= sj can hold all records larger than some threshold x and no more: then the next
// object is at least as large as the smallest record above which that ends. Whether given objects can hold given
// records is decided by going through time: what matters of the past is only until when each object is busy, so a state
// that failed once is not tried again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <unordered_set>
#include <utility>
#include <vector>

#include "arenas/records.hpp"
#include "check.hpp"
#include "deadline.hpp"

namespace downset {

struct ObjectsProblem {
    Records records;
    std::vector<int> order;       // records by start
    std::vector<Offset> classes;  // distinct sizes, largest first
    std::vector<int> class_of;    // by record
    std::vector<Offset> maxima;   // positional maxima

    ObjectsProblem(Records given, std::vector<Offset> positional_maxima)
        : records(std::move(given)), order(records.nbytes.size()), classes(records.nbytes),
          class_of(records.nbytes.size()), maxima(std::move(positional_maxima)) {
        require(records.count() <= kMostRecords, "records: ", records.count(),
                " are more than a search that nests as deep can take");
        require(maxima.size() <= records.nbytes.size(), "maxima: ", maxima.size(), " for ", records.count(),
                " records");
        Offset room = kMostBytes;
        for (const Offset value : maxima) {
            require(value >= 0 && value <= room, "maxima: ", value, " is below nothing, or they sum to more than 2^61");
            room -= value;
        }
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](int a, int b) {
            return std::pair(records.active[a].front().first, a) < std::pair(records.active[b].front().first, b);
        });
        std::sort(classes.begin(), classes.end(), std::greater<>());
        classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
        for (std::size_t i = 0; i < class_of.size(); ++i)
            class_of[i] =
                static_cast<int>(std::lower_bound(classes.begin(), classes.end(), records.nbytes[i], std::greater<>()) -
                                 classes.begin());
    }

private:
    static constexpr int kMostRecords = 10'000;
    static constexpr Offset kMostBytes = Offset{1} << 61;
};

struct SearchLimit {
    Deadline deadline;
    std::int64_t states, state_limit;
    bool reached = false;

    bool tick() {
        if (++states >= state_limit || (states % 256 == 0 && deadline.passed())) reached = true;
        return reached;
    }
};

// Whether objects of given sizes can hold all records of the first so many size classes.
class ObjectsFeasibility {
public:
    ObjectsFeasibility(const ObjectsProblem& problem, SearchLimit& limit) : problem_(problem), limit_(limit) {}

    // Sizes as classes (0 is the largest), ascending: the largest object first. False as well when the limit is
    // reached; then `limit.reached`.
    bool holds(const std::vector<int>& object_classes, int class_count) {
        objects_ = &object_classes;
        records_.clear();
        for (int record : problem_.order)
            if (problem_.class_of[record] < class_count) records_.push_back(record);
        const int count = static_cast<int>(records_.size()), objects = static_cast<int>(object_classes.size());
        // For the rest from position i on, objects are alike when no remaining record tells them apart: `alike` numbers
        // them by how many of the remaining records' classes they take.
        alike_.assign(count, std::vector<int>(objects, 0));
        std::vector<int> remaining(class_count + 1, 0);  // by class: how many classes from it on still come
        std::vector<char> present(class_count, 0);
        for (int i = count - 1; i >= 0; --i) {
            const int added = problem_.class_of[records_[i]];
            if (!present[added])
                for (int c = 0; c <= added; ++c) ++remaining[c];
            present[added] = 1;
            for (int o = 0; o < objects; ++o) alike_[i][o] = remaining[std::min(object_classes[o], class_count)];
        }
        busy_.assign(objects, {});
        assigned_.assign(problem_.records.nbytes.size(), -1);
        failed_.clear();
        return place(0);
    }
    const std::vector<int>& assigned() const { return assigned_; }

private:
    struct Key {
        std::uint64_t one, two;
        bool operator==(const Key&) const = default;
    };
    struct KeyHash {
        std::size_t operator()(const Key& key) const { return key.one; }
    };

    const ObjectsProblem& problem_;
    SearchLimit& limit_;
    const std::vector<int>* objects_ = nullptr;
    std::vector<int> records_;
    std::vector<std::vector<int>> alike_;
    std::vector<std::vector<Interval>> busy_;  // by object: what is assigned
    std::vector<int> assigned_;
    std::unordered_set<Key, KeyHash> failed_;

    static std::uint64_t mix(std::uint64_t hash, std::uint64_t value, std::uint64_t factor) {
        hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
        hash *= factor;
        return hash ^ (hash >> 29);
    }

    // What of an object's past still matters at a step: its busy intervals that end later, cut to begin there.
    std::vector<Interval> pending(int object, std::int64_t now) const {
        std::vector<Interval> intervals;
        for (auto [low, high] : busy_[object])
            if (high > now) intervals.emplace_back(std::max(low, now), high);
        std::sort(intervals.begin(), intervals.end());
        return intervals;
    }

    bool place(int position) {
        if (position == static_cast<int>(records_.size())) return true;
        if (limit_.tick()) return false;
        const int record = records_[position], objects = static_cast<int>(objects_->size());
        const auto& pieces = problem_.records.active[record];
        const auto now = pieces.front().first;
        std::vector<std::pair<int, std::vector<Interval>>> state(objects);
        for (int o = 0; o < objects; ++o) state[o] = {alike_[position][o], pending(o, now)};
        auto sorted = state;
        std::sort(sorted.begin(), sorted.end());
        Key key{static_cast<std::uint64_t>(position), ~static_cast<std::uint64_t>(position)};
        for (const auto& [alike, intervals] : sorted) {
            key = {mix(key.one, alike, 0xff51afd7ed558ccdULL), mix(key.two, alike, 0xc4ceb9fe1a85ec53ULL)};
            for (auto [low, high] : intervals) {
                key = {mix(key.one, low, 0xff51afd7ed558ccdULL), mix(key.two, low, 0xc4ceb9fe1a85ec53ULL)};
                key = {mix(key.one, high, 0xff51afd7ed558ccdULL), mix(key.two, high, 0xc4ceb9fe1a85ec53ULL)};
            }
            key = {mix(key.one, ~0ULL, 0xff51afd7ed558ccdULL), mix(key.two, ~0ULL, 0xc4ceb9fe1a85ec53ULL)};
        }
        if (failed_.contains(key)) return false;
        for (int o = objects - 1; o >= 0; --o) {  // the smallest that takes it first
            if ((*objects_)[o] > problem_.class_of[record]) continue;
            const auto& intervals = state[o].second;
            const bool taken = std::any_of(intervals.begin(), intervals.end(), [&](const Interval& other) {
                return std::any_of(pieces.begin(), pieces.end(), [&](const Interval& piece) {
                    return piece.first < other.second && other.first < piece.second;
                });
            });
            if (taken) continue;
            bool seen = false;
            for (int other = objects - 1; other > o && !seen; --other)
                seen = (*objects_)[other] <= problem_.class_of[record] && state[other] == state[o];
            if (seen) continue;
            auto before = busy_[o];
            std::erase_if(busy_[o], [&](const Interval& other) { return other.second <= now; });
            busy_[o].insert(busy_[o].end(), pieces.begin(), pieces.end());
            assigned_[record] = o;
            if (place(position + 1)) return true;
            assigned_[record] = -1;
            busy_[o] = std::move(before);
            if (limit_.reached) return false;
        }
        failed_.insert(key);
        return false;
    }
};

struct ObjectsResult {
    std::vector<int> object_of;  // empty: none found below the incumbent
    std::int64_t bound, states;
};

// The least total below `incumbent`, or proof that there is none (bound == incumbent). At a limit the bound is that of
// the most promising node left.
inline ObjectsResult shared_objects(const ObjectsProblem& problem, std::int64_t incumbent, double seconds,
                                    std::int64_t state_limit) {
    using Size = Offset;
    require(incumbent >= 0, "incumbent: ", incumbent, " bytes are less than nothing");
    SearchLimit limit{Deadline(seconds), 0, state_limit};
    ObjectsFeasibility feasibility(problem, limit);
    const int class_count = static_cast<int>(problem.classes.size());
    std::vector<Size> rest(problem.maxima.size() + 1, 0);  // rest[j]: the maxima from the j-th on
    for (int j = static_cast<int>(problem.maxima.size()) - 1; j >= 0; --j) rest[j] = rest[j + 1] + problem.maxima[j];
    const auto rest_from = [&](std::size_t j) { return j < rest.size() ? rest[j] : 0; };

    struct Node {
        Size bound;
        std::vector<int> objects;  // classes, ascending
        int held;                  // classes known to be held; -1: not looked at
    };
    const auto later = [](const Node& a, const Node& b) {
        if (a.bound != b.bound) return a.bound > b.bound;
        if (a.objects.size() != b.objects.size()) return a.objects.size() < b.objects.size();
        return a.objects < b.objects;
    };
    std::priority_queue<Node, std::vector<Node>, decltype(later)> open(later);
    const auto sum_of = [&](const std::vector<int>& objects) {
        Size sum = 0;
        for (int c : objects) sum += problem.classes[c];
        return sum;
    };
    const auto push = [&](std::vector<int> objects) {
        const auto bound = sum_of(objects) + rest_from(objects.size());
        if (bound < incumbent) open.push({bound, std::move(objects), -1});
    };
    if (class_count == 0) return {{}, 0, 0};
    push({0});
    while (!open.empty()) {
        Node node = open.top();
        open.pop();
        if (limit.tick()) return {{}, node.bound, limit.states};
        if (node.held < 0) {
            auto sibling = node.objects;  // the same with a larger last object
            const int larger = --sibling.back();
            if (larger >= 0 && (sibling.size() == 1 || larger >= sibling[sibling.size() - 2])) push(std::move(sibling));
            // How many classes do these objects hold? More is harder, so bisection finds the first that fails.
            int low = node.objects.back(), high = class_count + 1;
            while (low + 1 < high) {
                // Look near the last success first: failures are expensive.
                const int middle = high == class_count + 1 && low + 1 < class_count ? class_count : (low + high) / 2;
                if (feasibility.holds(node.objects, middle)) {
                    low = middle;
                    if (middle == class_count) return {feasibility.assigned(), node.bound, limit.states};
                } else if (limit.reached) {
                    return {{}, node.bound, limit.states};
                } else {
                    high = middle;
                }
            }
            node.held = low;
            const auto j = node.objects.size();
            const Size next = std::max(problem.classes[low], j < problem.maxima.size() ? problem.maxima[j] : 0);
            const Size bound = sum_of(node.objects) + next + rest_from(j + 1);
            if (bound >= incumbent) continue;
            if (bound > node.bound) {
                node.bound = bound;
                open.push(std::move(node));
                continue;
            }
        }
        const auto j = node.objects.size();
        int next = node.held;  // the first class that is not held
        while (next > 0 && j < problem.maxima.size() && problem.classes[next] < problem.maxima[j]) --next;
        auto child = node.objects;
        child.push_back(std::max(next, child.back()));
        push(std::move(child));
    }
    return {{}, incumbent, limit.states};
}

}  // namespace downset
