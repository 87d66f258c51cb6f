// The least that one block sends within a budget for computing (without overlap: and sending), remembered: it is a step
// function of the budget.
#pragma once

#include <array>

#include "pipelines/blocks.hpp"

namespace downset {

class BlockSending {
public:
    // Budgets in [low, high] have the same least communication, had within `limit` of computing.
    struct Step {
        double low = 1, high = 0, transfer = 0, limit = 0;
    };

    BlockSending(const PipelineProblem& problem, const DeviceSets& sets, PipelineBlocks& blocks)
        : problem_(problem), sets_(sets), blocks_(blocks), steps_(sets.led_count) {}

    Step least(int start, int stop, int set, int leader, double left) {
        auto& line = steps_[sets_.led(set, leader)];
        if (line.empty()) line.resize(problem_.chain.segments.size());
        auto& recent = line[problem_.index(start, stop)];
        for (const Step& step : recent)
            if (step.low <= left && left <= step.high) return step;
        std::swap(recent[0], recent[1]);
        return recent[0] = worked_out(start, stop, set, leader, left);
    }

private:
    const PipelineProblem& problem_;
    const DeviceSets& sets_;
    PipelineBlocks& blocks_;
    std::vector<std::vector<std::array<Step, 2>>> steps_;  // by set and leader, segment: the last two

    Step worked_out(int start, int stop, int set, int leader, double left) {
        Division division;
        double limit = left;
        if (problem_.network.overlap) {
            const double transfer =
                blocks_.out_of_time() ? kNever : blocks_.least_transfer(start, stop, set, leader, left, &division);
            if (transfer < kNever) return {std::min(division.longest, left), left, transfer, left};
        } else if (blocks_.largest_within(start, stop, set, leader, left, limit, division)) {
            return {std::min(division.longest + division.transfer, left), left, division.transfer, limit};
        }
        if (!blocks_.stopped()) return {0, left, kNever, 0};
        return {1, 0, kNever, 0};
    }
};

}  // namespace downset
