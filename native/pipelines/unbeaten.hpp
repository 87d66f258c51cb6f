// Labels of a state of a search: those that no other beats.
#pragma once

#include <algorithm>
#include <vector>

namespace downset {

// Adds a label to those kept of a state (indices of `all`), unless one of them beats it; those that it beats go.
template <class Label, class Beats>
void keep_unbeaten(std::vector<Label>& all, std::vector<int>& kept, const Label& label, const Beats& beats) {
    for (int index : kept)
        if (beats(all[index], label)) return;
    std::erase_if(kept, [&](int index) { return beats(label, all[index]); });
    kept.push_back(static_cast<int>(all.size()));
    all.push_back(label);
}

}  // namespace downset
