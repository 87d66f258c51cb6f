// Prices that rise until a relaxation proves no more (subgradient method), for both Lagrangian bounds of this family.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "memories/problem.hpp"

namespace downset {

// The best prices found in `rounds` from given ones on. `relaxed(prices, slack)`: the value of the relaxation, and by
// price how much of its constraint is open. The step halves after `patience` rounds without a better value.
template <class Relaxed>
std::vector<double> ascend_prices(std::vector<double> prices, Cost incumbent, int rounds, int patience,
                                  Relaxed relaxed) {
    std::vector<double> now = prices, slack(prices.size());
    double most = -INFINITY, step = 1.0;
    int since = 0;
    for (int round = 0; round < rounds; ++round) {
        const double value = relaxed(now, slack);
        if (value > most + 1e-9)
            most = value, prices = now, since = 0;
        else if (++since == patience)
            step /= 2, since = 0, now = prices;
        double norm = 0;
        for (std::size_t i = 0; i < now.size(); ++i)
            if (slack[i] > 0 || now[i] > 0) norm += slack[i] * slack[i];
        if (norm <= 0 || step < 1e-4 || most >= static_cast<double>(incumbent)) break;
        const double by = step * std::max(1.02 * static_cast<double>(incumbent) - value, 1.0) / norm;
        for (std::size_t i = 0; i < now.size(); ++i) now[i] = std::max(0.0, now[i] + by * slack[i]);
    }
    return prices;
}

}  // namespace downset
