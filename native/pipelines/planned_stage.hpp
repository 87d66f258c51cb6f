// Stages as a search finds them, and with the rows of each device.
#pragma once

#include <utility>
#include <vector>

#include "pipelines/blocks.hpp"

namespace downset {

struct PlannedStage {
    int start, stop, set, used, leader;
    double limit;  // on computing; of several blocks: on their sum
    bool several;
    double wait = 0;  // seconds, for its input
};

// A block and its limit on computing.
struct LimitedBlock {
    int start, stop;
    double limit;
};

// The stage with its devices and row boundaries; of the blocks given, if any.
inline PipelineStage rows_of(const DeviceSets& sets, PipelineBlocks& blocks, const PlannedStage& planned,
                             std::vector<LimitedBlock> parts = {}) {
    PipelineStage stage;
    for (std::size_t type = 0; type < sets.have.size(); ++type)
        for (int k = 0; k < sets.counts[planned.set][type]; ++k)
            stage.devices.push_back(sets.first[type] + sets.counts[planned.used][type] + k);
    int leader = planned.leader;
    if (parts.empty() && planned.several) {
        std::vector<std::pair<int, int>> path;
        blocks.several(planned.start, planned.stop, planned.set, leader, planned.limit, &path);
        for (auto [start, stop] : path)
            parts.push_back({start, stop, blocks.least_sum(start, stop, planned.set, leader, kNever).limit});
    } else if (parts.empty()) {
        parts.push_back({planned.start, planned.stop, planned.limit});
    }
    for (const LimitedBlock& part : parts) {
        Division division;
        blocks.least_transfer(part.start, part.stop, planned.set, leader, part.limit, &division, true);
        stage.blocks.emplace_back(part.start, part.stop, division.bounds);
        if (!planned.several) leader = division.leader;
    }
    stage.leader = stage.devices[leader];
    return stage;
}

}  // namespace downset
