// Prices of fast memory by position, and the bound that they prove for a fixed order (Lagrangian relaxation of the
// capacity, as strong as the linear relaxation).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "memories/ascent.hpp"
#include "memories/chains.hpp"

namespace downset {

class CapacityPrices {
public:
    static constexpr Cost kScale = 4096;
    std::vector<Cost> prices, sums;           // in units of 1 / kScale
    std::vector<std::array<Cost, 3>> arrive;  // values of the links under them
    Cost root = 0;                            // the bound, scaled

    CapacityPrices(const AccessChains& chains, Cost incumbent, int rounds) : chains_(chains) {
        const int count = chains.problem.count;
        std::vector<double> sums_now(count + 1, 0.0);
        std::vector<std::array<double, 3>> values;
        fix(ascend_prices(std::vector<double>(count, 0.0), incumbent, rounds, 8,
                          [&](const std::vector<double>& now, std::vector<double>& slack) {
                              for (int p = 0; p < count; ++p) sums_now[p + 1] = sums_now[p] + now[p];
                              chains.values(sums_now, 1.0, values);
                              return relaxed(sums_now, values, slack, now);
                          }));
    }

private:
    const AccessChains& chains_;

    double relaxed(const std::vector<double>& sums_now, const std::vector<std::array<double, 3>>& values,
                   std::vector<double>& slack, const std::vector<double>& now) const {
        const auto& problem = chains_.problem;
        double value = 0;
        for (int p = 0; p < problem.count; ++p) {
            slack[p] = -static_cast<double>(problem.capacity - problem.workspace[chains_.order[p]]);
            value += now[p] * slack[p];
        }
        std::vector<double> change(problem.count + 1, 0.0);
        for (const int first : chains_.first_link) {
            int state = AccessChains::kSlow;
            if (first >= 0) value += values[first][state];
            for (int link = first; link >= 0; link = chains_.links[link].next) {
                const auto& one = chains_.links[link];
                double least = INFINITY;
                AccessChoice chosen{};
                int after = state;
                chains_.choices(one, state, [&](AccessChoice choice, Cost cost, int then) {
                    const double total = chains_.priced(one, state, choice, cost, then, sums_now, 1.0, values);
                    if (total < least) least = total, chosen = choice, after = then;
                });
                const double room = static_cast<double>(problem.room[one.storage]);
                const int begin = one.kind == AccessChains::kAccess && chosen.fast && state == AccessChains::kSlow
                                      ? one.position
                                      : one.position + 1;
                const int stop =
                    chosen.keep ? std::min(chains_.links[one.next].position + 1, problem.count) : one.position + 1;
                if (begin < stop) change[begin] += room, change[stop] -= room;
                state = after;
            }
        }
        double held = 0;
        for (int p = 0; p < problem.count; ++p) held += change[p], slack[p] += held;
        return value;
    }

    void fix(const std::vector<double>& best) {
        const auto& problem = chains_.problem;
        Bytes largest = 1;
        for (const Bytes room : problem.room) largest = std::max(largest, room);
        const double most =
            std::ldexp(1.0, 59) / (static_cast<double>(std::max(largest, problem.capacity)) * (problem.count + 1.0));
        sums.assign(1, 0);
        for (const double price : best) {
            prices.push_back(static_cast<Cost>(std::min(price * kScale, most)));
            sums.push_back(sums.back() + prices.back());
        }
        chains_.values(sums, kScale, arrive);
        for (const int first : chains_.first_link) root += first < 0 ? 0 : arrive[first][AccessChains::kSlow];
        for (int p = 0; p < problem.count; ++p)
            root -= prices[p] * (problem.capacity - problem.workspace[chains_.order[p]]);
    }
};

}  // namespace downset
