// Many small sets of operators, to be compared with large ones.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "bits.hpp"

namespace downset {

// Sets of operators as (word, bits) pairs, all in one array: most hold a handful of the thousands there may be.
class SparseSets {
public:
    struct Set {
        std::int32_t begin, end;
    };
    Set add(const std::vector<int>& members, int without = -1) {
        const auto begin = static_cast<std::int32_t>(words_.size());
        for (int member : members) {
            if (member == without) continue;
            const int word = member / 64;
            if (static_cast<std::int32_t>(words_.size()) == begin || words_.back().first != word)
                words_.emplace_back(word, 0);
            words_.back().second |= BitsView::bit(member);
        }
        return {begin, static_cast<std::int32_t>(words_.size())};
    }
    bool subset(Set set, BitsView of) const {
        for (auto place = set.begin; place < set.end; ++place)
            if (words_[place].second & ~of.words[words_[place].first]) return false;
        return true;
    }
    bool meets(Set set, BitsView other) const {
        for (auto place = set.begin; place < set.end; ++place)
            if (words_[place].second & other.words[words_[place].first]) return true;
        return false;
    }

private:
    std::vector<std::pair<std::int32_t, Word>> words_;
};

}  // namespace downset
