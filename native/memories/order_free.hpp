// A lower bound on every order. At operator v its operands are accessed, and what its ancestors made and its
// descendants read is alive, whatever the order. What does not fit is written and read again. Which storages these are
// is a covering problem: prices of the rows bound it (Lagrangian relaxation), and a best-first search decides storage
// by storage whether it ever leaves fast memory. Oracle: tests/memories/oracles/machine.py.
//
// A read that finds its storage outside fast memory is a return: a load, or a read in slow memory. Where a storage is
// outside at an operator, the first read behind it is a return; which one that may be, the arcs of the network say.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "deadline.hpp"
#include "memories/ascent.hpp"
#include "memories/problem.hpp"

namespace downset {

class OrderFreeBound {
public:
    explicit OrderFreeBound(const MemoriesProblem& problem) : problem_(problem), before_(problem.count) {
        for (int v = 0; v < problem.count; ++v) {
            before_[v].assign(problem.count, false);
            for (const int u : problem.predecessors[v]) {
                before_[v][u] = true;
                for (int w = 0; w < u; ++w)
                    if (before_[u][w]) before_[v][w] = true;
            }
        }
        taken_ = problem.workspace;
        for (int s = 0; s < problem.storages; ++s) add_storage(s);
        inside_.resize(problem.count);
        for (std::size_t index = 0; index < items_.size(); ++index)
            for (auto& entry : items_[index].entries) inside_[entry.row].push_back(static_cast<int>(index));
        for (const Item& item : items_) unit_ = std::gcd(unit_, item.room);
        unit_ = std::max<Bytes>(unit_, 1);
    }

    struct Found {
        Cost bound = 0;
        std::int64_t nodes = 0;
    };

    // The bound, at most `incumbent`.
    Found run(Cost incumbent, double seconds, std::int64_t node_limit) {
        const Deadline deadline(seconds);
        struct Node {
            Cost bound;
            std::int64_t number;
            std::vector<signed char> fixed;
            std::vector<double> prices;
            bool operator<(const Node& other) const {
                return bound != other.bound ? bound > other.bound : number < other.number;
            }
        };
        Found result;
        std::priority_queue<Node> open;
        const auto push = [&](std::vector<signed char> fixed, std::vector<double> prices, Cost least, int rounds) {
            const Cost bound = std::max(least, ascend(fixed, prices, incumbent, rounds));
            open.push({bound, result.nodes++, std::move(fixed), std::move(prices)});
        };
        push(std::vector<signed char>(items_.size(), -1), std::vector<double>(problem_.count, 0.0), 0, 400);
        while (true) {
            Node node = open.top();
            result.bound = std::min(node.bound, incumbent);
            if (node.bound >= incumbent) break;
            const int chosen = branch(node.fixed, node.prices);
            if (chosen < 0) break;
            if (result.nodes >= node_limit || deadline.passed()) break;
            open.pop();
            for (const signed char leaves : {0, 1}) {
                node.fixed[chosen] = leaves;
                push(node.fixed, node.prices, node.bound, 60);
            }
        }
        return result;
    }

    // For `remaining`: prices of the whole problem.
    void set_prices(Cost incumbent) {
        const std::vector<signed char> open(items_.size(), -1);
        std::vector<double> prices(problem_.count, 0.0);
        ascend(open, prices, incumbent, 400);
        root_needs_ = needs(open);
        root_prices_ = whole(prices, root_needs_);
    }

    // A bound on what is still to be paid when the operators of `ran` ran and fast memory holds `held`, of which
    // `changed` have no valid copy in slow memory. For at most 64 operators and storages, after set_prices.
    Cost remaining(std::uint64_t ran, std::uint64_t held, std::uint64_t changed) {
        if (root_needs_.empty()) return 0;
        auto [place, fresh] = rests_.try_emplace(ran);
        if (fresh) place->second = rests(ran);
        const auto& values = place->second;
        Cost total = values.back();
        for (std::size_t i = 0; i < items_.size(); ++i) {
            const int s = items_[i].storage;
            const int state = !(held >> s & 1) ? 2 : (changed >> s & 1 ? 0 : 1);
            total += values[3 * i + static_cast<std::size_t>(state)];
        }
        return total <= 0 ? 0 : (total + kScale - 1) / kScale;
    }

private:
    static constexpr Cost kScale = 4096;
    std::vector<Bytes> root_needs_;
    std::vector<Cost> root_prices_;
    std::unordered_map<std::uint64_t, std::vector<Cost>> rests_;

    // By item and by where it is (in fast memory changed, copied; elsewhere): what it costs from there on, at least;
    // at the end what the rows demand.
    std::vector<Cost> rests(std::uint64_t ran) const {
        std::vector<Cost> values(3 * items_.size() + 1, 0);
        for (int v = 0; v < problem_.count; ++v)
            if (!(ran >> v & 1)) values.back() += root_prices_[v] * root_needs_[v];
        for (std::size_t i = 0; i < items_.size(); ++i) {
            const Item& item = items_[i];
            std::vector<Cost> savings(item.conditions.size(), 0);
            for (const Entry& entry : item.entries)
                if (!(ran >> entry.row & 1))
                    savings[entry.condition] += std::min(item.room, root_needs_[entry.row]) * root_prices_[entry.row];
            const bool exists = item.writer < 0 || ran >> item.writer & 1;
            unsigned left = 0;
            for (std::size_t read = 0; read < item.returns.size(); ++read)
                if (item.reads[read] >= problem_.count || !(ran >> item.reads[read] & 1)) left |= 1u << read;
            Cost outside = kNever, any = kNever;  // if it is outside now; if it leaves at some time
            for (unsigned returns = left;; returns = (returns - 1) & left) {
                Cost value = 0;
                for (std::size_t read = 0; read < item.returns.size(); ++read)
                    if (returns >> read & 1) value += item.returns[read] * kScale;
                for (std::size_t c = 0; c < savings.size(); ++c)
                    if (covers(item.conditions[c], returns)) value -= savings[c];
                any = std::min(any, value);
                if (returns || !(left && item.complete)) outside = std::min(outside, value);
                if (!returns) break;
            }
            const Cost leaves = item.leaves * kScale;
            if (!exists) {
                values[3 * i] = values[3 * i + 1] = values[3 * i + 2] =
                    item.always ? leaves + any : std::min<Cost>(0, leaves + any);
                continue;
            }
            values[3 * i] = item.must_end_slow ? item.store * kScale + std::min<Cost>(any, 0)
                                               : std::min<Cost>(0, item.store * kScale + any);
            values[3 * i + 1] = std::min<Cost>(0, any);
            values[3 * i + 2] = outside;
        }
        return values;
    }

    static constexpr int kMostReads = 8;  // of one storage; what further ones cost is left out
    static constexpr Cost kNever = Cost{1} << 60;

    // An item is outside fast memory at a row only if the reads `must` return, and one of `any` unless it is empty.
    struct Condition {
        unsigned must, any;
        bool operator==(const Condition&) const = default;
    };
    struct Entry {
        int row, condition;
    };
    struct Item {
        int storage = 0, writer = -1;
        Bytes room = 0;
        Cost store = 0;
        bool must_end_slow = false, complete = true;  // complete: all reads are counted
        Ints reads;
        Cost leaves = 0;            // for leaving fast memory at all
        bool always = false;        // it cannot stay in fast memory for the whole run
        std::vector<Cost> returns;  // by read
        unsigned first = 0;         // one of these returns in every run, unless it is empty
        std::vector<Condition> conditions;
        std::vector<Entry> entries;
    };

    const MemoriesProblem& problem_;
    std::vector<std::vector<bool>> before_;
    std::vector<Bytes> taken_;  // by row: workspace, and operands that have to be in fast memory
    std::vector<Ints> inside_;  // by row: the items alive there
    std::vector<Item> items_;
    Bytes unit_ = 0;

    // By row: the bytes that have to leave fast memory if some items never do. The others fill at most the largest sum
    // of their rooms that fits. Empty: these items do not fit.
    std::vector<Bytes> needs(const std::vector<signed char>& fixed) const {
        std::vector<Bytes> leaving(problem_.count, 0);
        for (int v = 0; v < problem_.count; ++v) {
            Bytes capacity = problem_.capacity - taken_[v], rest = 0;
            std::vector<Bytes> rooms;
            for (const int index : inside_[v]) {
                if (fixed[index] == 0 && !items_[index].always)
                    capacity -= items_[index].room;
                else
                    rest += items_[index].room, rooms.push_back(items_[index].room);
            }
            if (capacity < 0) return {};
            if (rest > capacity) leaving[v] = rest - largest_sum(rooms, capacity);
        }
        return leaving;
    }
    static constexpr Bytes kMostUnits = 1 << 14;
    Bytes largest_sum(const std::vector<Bytes>& rooms, Bytes capacity) const {
        const Bytes units = capacity / unit_;
        if (units > kMostUnits) return capacity;
        std::vector<bool> reached(static_cast<std::size_t>(units + 1), false);
        reached[0] = true;
        for (const Bytes room : rooms)
            for (Bytes sum = units; sum >= room / unit_; --sum)
                if (reached[sum - room / unit_]) reached[sum] = true;
        for (Bytes sum = units; sum > 0; --sum)
            if (reached[sum]) return sum * unit_;
        return 0;
    }

    // The reads that may be the first behind operator v (-1: the start); `sure`: whether one comes behind it in every
    // order. Reads beyond those that are counted may be it, too: then none is known.
    unsigned first_behind(const Ints& reads, int v, bool* sure) const {
        unsigned firsts = 0;
        *sure = false;
        for (std::size_t i = 0; i < reads.size(); ++i) {
            const int read = reads[i];
            const bool behind = read >= problem_.count || v < 0 || before_[read][v];
            *sure = *sure || behind;
            if (read == v || (v >= 0 && read < problem_.count && before_[v][read])) continue;
            bool first = true;
            for (const int other : reads) {
                if (other == read || other >= problem_.count || !(v < 0 || before_[other][v])) continue;
                first = first && read < problem_.count && !before_[read][other];
            }
            if (!first) continue;
            if (i >= kMostReads) return 0;
            firsts |= 1u << i;
        }
        return *sure ? firsts : 0;
    }

    void add_storage(int s) {
        const auto& touches = problem_.touches[s];
        int writers = 0;
        for (const auto& touch : touches) writers += touch.write;
        const bool produced = problem_.begin[s] == Begin::kMade;
        if (touches.empty() || writers > 1 || (produced && (!touches[0].write || writers == 0)) ||
            (!produced && writers))
            return;
        Item item;
        item.storage = s;
        item.room = problem_.room[s];
        item.store = problem_.store[s];
        Ints reads;
        std::vector<signed char> access(problem_.count, 0);  // 1: an access, 2: one in fast memory only
        for (const auto& touch : touches) {
            access[touch.op] = touch.direct < 0 ? 2 : 1;
            if (touch.write) continue;
            reads.push_back(touch.op);
            const Cost again = touch.direct < 0 ? problem_.load[s] : std::min(problem_.load[s], touch.direct);
            if (item.returns.size() < kMostReads) item.returns.push_back(again);
        }
        const int writer = produced ? touches[0].op : -1;
        if (produced)
            item.leaves = touches[0].direct < 0 ? problem_.store[s] : std::min(problem_.store[s], touches[0].direct);
        if (problem_.begin[s] == Begin::kFast) item.leaves = problem_.store[s];
        const End end = problem_.end[s];
        if (end == End::kFast) {
            reads.push_back(problem_.count);
            if (item.returns.size() < kMostReads) item.returns.push_back(problem_.load[s]);
        }
        item.writer = writer;
        item.reads = reads;
        item.complete = reads.size() <= kMostReads;
        item.must_end_slow = end == End::kSlow && produced;
        bool sure = false;
        item.always = (end == End::kSlow && produced) || problem_.begin[s] == Begin::kSlow;
        if (problem_.begin[s] == Begin::kSlow) item.first = first_behind(reads, -1, &sure);
        for (int v = 0; v < problem_.count; ++v) add_entry(item, v, writer, reads, end, access[v]);
        items_.push_back(std::move(item));
    }

    void add_entry(Item& item, int v, int writer, const Ints& reads, End end, int access) {
        bool sure = false;
        const unsigned any = first_behind(reads, v, &sure);
        if (!access) {  // is it alive in every order?
            if (writer >= 0 && !before_[v][writer]) return;
            if (writer < 0 && item.always && item.first) return;  // it need not have come yet
            if (!sure && end == End::kDead) return;
        }
        if (access == 2) {
            taken_[v] += item.room;
            return;
        }
        const auto place = std::find(reads.begin(), reads.end(), v) - reads.begin();
        const bool counted = place < static_cast<std::ptrdiff_t>(item.returns.size());
        const Condition condition{counted ? 1u << place : 0u, any};
        auto same = std::find(item.conditions.begin(), item.conditions.end(), condition);
        if (same == item.conditions.end()) same = item.conditions.insert(same, condition);
        item.entries.push_back({v, static_cast<int>(same - item.conditions.begin())});
    }

    // The least of an item that leaves fast memory, under prices of rows; `cover`: adds the room of rows it covers.
    template <class Number>
    Number leaving(const Item& item, const std::vector<Number>& prices, const std::vector<Bytes>& needed, Number scale,
                   std::vector<double>* cover) const {
        std::vector<Number> savings(item.conditions.size(), 0);
        for (const Entry& entry : item.entries)
            savings[entry.condition] += static_cast<Number>(std::min(item.room, needed[entry.row])) * prices[entry.row];
        Number least = static_cast<Number>(kNever);
        unsigned chosen = 0;
        for (unsigned returns = 0; returns < 1u << item.returns.size(); ++returns) {
            if (item.first && !(returns & item.first)) continue;
            Number value = 0;
            for (std::size_t i = 0; i < item.returns.size(); ++i)
                if (returns >> i & 1) value += static_cast<Number>(item.returns[i]) * scale;
            for (std::size_t i = 0; i < savings.size(); ++i)
                if (covers(item.conditions[i], returns)) value -= savings[i];
            if (value < least) least = value, chosen = returns;
        }
        if (cover)
            for (const Entry& entry : item.entries)
                if (covers(item.conditions[entry.condition], chosen))
                    (*cover)[entry.row] += static_cast<double>(std::min(item.room, needed[entry.row]));
        return static_cast<Number>(item.leaves) * scale + least;
    }
    static bool covers(const Condition& condition, unsigned returns) {
        return (returns & condition.must) == condition.must && (!condition.any || (returns & condition.any));
    }

    // The value of the relaxation; `slack` by row: the bytes that are still to leave.
    double relaxed(const std::vector<signed char>& fixed, const std::vector<double>& prices,
                   const std::vector<Bytes>& needed, std::vector<double>& slack) const {
        double value = 0;
        std::vector<double> cover(problem_.count, 0.0);
        for (int v = 0; v < problem_.count; ++v) value += prices[v] * static_cast<double>(needed[v]);
        for (std::size_t i = 0; i < items_.size(); ++i) {
            const Item& item = items_[i];
            const bool must = item.always || fixed[i] == 1;
            if (fixed[i] == 0 && !item.always) continue;
            std::vector<double> own(problem_.count, 0.0);
            const double left = leaving(item, prices, needed, 1.0, &own);
            if (!must && left >= 0) continue;
            value += left;
            for (const Entry& entry : item.entries) cover[entry.row] += std::exchange(own[entry.row], 0.0);
        }
        for (int v = 0; v < problem_.count; ++v) slack[v] = static_cast<double>(needed[v]) - cover[v];
        return value;
    }

    // Raises the prices; the bound that they prove.
    Cost ascend(const std::vector<signed char>& fixed, std::vector<double>& prices, Cost incumbent, int rounds) const {
        const std::vector<Bytes> needed = needs(fixed);
        if (needed.empty()) return incumbent;
        prices = ascend_prices(std::move(prices), incumbent, rounds, 6,
                               [&](const std::vector<double>& now, std::vector<double>& slack) {
                                   return relaxed(fixed, now, needed, slack);
                               });
        return exact(fixed, prices, needed);
    }

    Cost exact(const std::vector<signed char>& fixed, const std::vector<double>& prices,
               const std::vector<Bytes>& needed) const {
        const std::vector<Cost> scaled = whole(prices, needed);
        Cost value = 0;
        for (int v = 0; v < problem_.count; ++v) value += scaled[v] * needed[v];
        for (std::size_t i = 0; i < items_.size(); ++i) {
            const bool must = items_[i].always || fixed[i] == 1;
            if (fixed[i] == 0 && !items_[i].always) continue;
            const Cost left = leaving<Cost>(items_[i], scaled, needed, kScale, nullptr);
            value += must ? left : std::min<Cost>(left, 0);
        }
        return value <= 0 ? 0 : (value + kScale - 1) / kScale;
    }

    std::vector<Cost> whole(const std::vector<double>& prices, const std::vector<Bytes>& needed) const {
        Bytes largest = 1;
        for (const Bytes need : needed) largest = std::max(largest, need);
        for (const Item& item : items_) largest = std::max(largest, item.room);
        const double most = std::ldexp(1.0, 58) / (static_cast<double>(largest) * (problem_.count + 1.0));
        std::vector<Cost> scaled;
        for (const double price : prices) scaled.push_back(static_cast<Cost>(std::min(price * kScale, most)));
        return scaled;
    }

    // The undecided storage of most room whose decision is least clear; -1: all are decided.
    int branch(const std::vector<signed char>& fixed, const std::vector<double>& prices) const {
        int chosen = -1;
        double most = -1;
        const std::vector<Bytes> needed = needs(fixed);
        if (needed.empty()) return chosen;
        for (std::size_t i = 0; i < items_.size(); ++i) {
            if (fixed[i] >= 0 || items_[i].always || items_[i].entries.empty()) continue;
            double full = static_cast<double>(items_[i].leaves) + 1;
            if (!items_[i].returns.empty()) full += static_cast<double>(items_[i].returns[0]);
            const double left = leaving(items_[i], prices, needed, 1.0, nullptr);
            const double unclear = static_cast<double>(items_[i].room) * std::max(0.01, 1 - std::abs(left) / full);
            if (unclear > most) most = unclear, chosen = static_cast<int>(i);
        }
        return chosen;
    }
};

}  // namespace downset
