// Shortest paths over the cuts of a chain.
#pragma once

#include <vector>

#include "pipelines/problem.hpp"

namespace downset {

// The shortest path over cuts 0 … length, edge (a, b) weighing weight[a * (length + 1) + b]; by cut: how far, and from
// where.
struct CutPath {
    std::vector<double> distance;
    std::vector<int> previous;

    CutPath(int length, const std::vector<double>& weight) : distance(length + 1, kNever), previous(length + 1) {
        distance[0] = 0;
        for (int b = 1; b <= length; ++b)
            for (int a = 0; a < b; ++a)
                if (const double there = distance[a] + weight[a * (length + 1) + b]; there < distance[b])
                    distance[b] = there, previous[b] = a;
    }
};

}  // namespace downset
