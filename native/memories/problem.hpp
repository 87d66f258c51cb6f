// The problem of two memories as the searches see it: operators, storages, and what each access may cost.
// Defined by downset/memories/problem.py. Costs are whole numbers; -1 forbids a direct access.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "check.hpp"
#include "orders/problem.hpp"

namespace downset {

using Cost = std::int64_t;

// Where a storage is before the first operator, and where it has to be after the last.
enum class Begin { kMade, kSlow, kEither, kFast };
enum class End { kDead, kSlow, kEither, kFast };

class MemoriesProblem {
public:
    struct Access {
        int storage;
        bool write;
        Cost direct;
    };
    struct Touch {
        int op;
        bool write;
        Cost direct;
    };
    static constexpr Cost kMost = Cost{1} << 48;

    int count = 0, storages = 0;
    Bytes capacity = 0;
    std::vector<Ints> predecessors, successors;
    std::vector<Bytes> workspace, room;
    std::vector<Cost> load, store;
    std::vector<Begin> begin;
    std::vector<End> end;
    std::vector<std::vector<Access>> accesses;  // by operator: what it reads, then what it writes
    std::vector<std::vector<Touch>> touches;    // by storage, by operator

    // `tables` by storage: {room, load, store, begin, end}; `given` by operator: {storage, write, direct}.
    MemoriesProblem(std::vector<Ints> before, std::vector<Bytes> scratch, const std::vector<std::vector<Cost>>& tables,
                    const std::vector<std::vector<std::tuple<int, bool, Cost>>>& given, Bytes fast)
        : count(static_cast<int>(before.size())), storages(static_cast<int>(tables.size())), capacity(fast),
          predecessors(std::move(before)), successors(count), workspace(std::move(scratch)), accesses(count),
          touches(storages) {
        require(capacity >= 0 && capacity < kMost, "capacity: ", capacity, " is not from 0 to below 2**48");
        require_size("workspace", workspace.size(), count);
        require_size("accesses", given.size(), count);
        require_at_least<Bytes>("workspace", workspace, 0);
        for (int v = 0; v < count; ++v) {
            require_indices("predecessors", predecessors[v], v);
            for (const int u : predecessors[v]) successors[u].push_back(v);
        }
        Cost total = 0;
        const auto sum = [&](Cost cost) {
            require(cost < kMost && total < kMost, "costs: they add up to 2**48 or more");
            total += cost;
        };
        for (const auto& row : tables) {
            require_size("storage", row.size(), 5);
            require_at_least<Cost>("storage", row, 0);
            require(row[3] <= 3 && row[4] <= 3, "storage: it begins or ends nowhere");
            sum(row[0]), sum(row[1]), sum(row[2]);
            room.push_back(row[0]), load.push_back(row[1]), store.push_back(row[2]);
            begin.push_back(static_cast<Begin>(row[3])), end.push_back(static_cast<End>(row[4]));
        }
        for (int v = 0; v < count; ++v) {
            std::vector<int> seen;
            for (const auto& [storage, write, direct] : given[v]) {
                require(storage >= 0 && storage < storages, "accesses: there is no storage ", storage);
                require(std::find(seen.begin(), seen.end(), storage) == seen.end(), "accesses: storage ", storage,
                        " comes twice");
                require(direct >= -1 && direct < kMost, "accesses: the cost ", direct,
                        " is not from -1 to below 2**48");
                seen.push_back(storage);
                sum(load[storage] + store[storage] + std::max<Cost>(direct, 0));
                accesses[v].push_back({storage, write, direct});
                touches[storage].push_back({v, write, direct});
            }
            require(need(v) <= capacity, "capacity: operator ", v, " needs ", need(v), " bytes of fast memory");
        }
    }

    // What operator v cannot do without: its workspace, and the operands that it must not access in slow memory.
    Bytes need(int v) const {
        Bytes bytes = workspace[v];
        for (const auto& access : accesses[v]) bytes += access.direct < 0 ? room[access.storage] : 0;
        return bytes;
    }

    // Whether the storage may be in fast memory before the first operator.
    bool starts_fast(int s) const {
        return !touches[s].empty() && (begin[s] == Begin::kEither || begin[s] == Begin::kFast);
    }

    void check_order(const Ints& order) const {
        require_order("order", order, count);
        std::vector<int> place(count);
        for (int p = 0; p < count; ++p) place[order[p]] = p;
        for (int v = 0; v < count; ++v)
            for (const int u : predecessors[v])
                require(place[u] < place[v], "order: operator ", v, " runs before operator ", u);
    }
};

}  // namespace downset
