// Records to be placed in one arena, and which of them live at the same time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "arenas/records.hpp"

namespace downset {

struct ArenaProblem {
    Records records;
    std::vector<std::vector<int>> conflicts;  // by record: those alive at the same time

    explicit ArenaProblem(Records given) : records(std::move(given)), conflicts(records.nbytes.size()) {
        // Sweep over starts: only records still alive are compared.
        struct Piece {
            std::int64_t start, stop;
            int record;
        };
        std::vector<Piece> pieces;
        for (int i = 0; i < count(); ++i)
            for (auto [start, stop] : records.active[i]) pieces.push_back({start, stop, i});
        std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
            return std::pair(a.start, a.record) < std::pair(b.start, b.record);
        });
        std::vector<Piece> alive;
        for (const Piece& piece : pieces) {
            std::erase_if(alive, [&](const Piece& other) { return other.stop <= piece.start; });
            for (const Piece& other : alive)
                if (other.record != piece.record) {
                    conflicts[piece.record].push_back(other.record);
                    conflicts[other.record].push_back(piece.record);
                }
            alive.push_back(piece);
        }
        for (auto& list : conflicts) {
            std::sort(list.begin(), list.end());
            list.erase(std::unique(list.begin(), list.end()), list.end());
        }
    }
    int count() const { return records.count(); }
};

}  // namespace downset
