// Steps of a schedule, numbered densely.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arenas/records.hpp"

namespace downset {

// Steps as their rank among all steps that matter: 32 bits, so that a register holds several.
class Ranks {
public:
    explicit Ranks(const std::vector<Pieces>& active) {
        for (const auto& pieces : active)
            for (auto [low, high] : pieces) {
                steps_.push_back(low);
                steps_.push_back(high);
            }
        std::sort(steps_.begin(), steps_.end());
        steps_.erase(std::unique(steps_.begin(), steps_.end()), steps_.end());
    }
    std::int32_t count() const { return static_cast<std::int32_t>(steps_.size()); }
    std::int32_t operator()(std::int64_t step) const {
        return static_cast<std::int32_t>(std::lower_bound(steps_.begin(), steps_.end(), step) - steps_.begin());
    }

private:
    std::vector<std::int64_t> steps_;
};

}  // namespace downset
