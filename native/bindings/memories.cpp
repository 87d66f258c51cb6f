// Two memories.
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/common.hpp"
#include "check.hpp"
#include "memories/anneal.hpp"
#include "memories/joint.hpp"
#include "memories/order_free.hpp"
#include "memories/residency.hpp"

namespace downset {
namespace {

// {cost, choices by link: 1 in fast memory, 2 kept there}
using MemoriesFound = std::tuple<Cost, std::vector<int>>;

std::vector<int> coded(const std::vector<AccessChoice>& choices) {
    std::vector<int> codes;
    for (const auto& choice : choices) codes.push_back((choice.fast ? 1 : 0) | (choice.keep ? 2 : 0));
    return codes;
}

MemoriesFound memories_belady(const MemoriesProblem& problem, const Ints& order) {
    problem.check_order(order);
    Belady quick(problem);
    const Cost cost = quick.run(order, AccessChains::kNever);
    return {cost, coded(quick.choices(AccessChains(problem, order)))};
}

// {value or -1, choices, bound, states}
std::tuple<Cost, std::vector<int>, Cost, std::int64_t> memories_residency(const MemoriesProblem& problem,
                                                                          const Ints& order, Cost incumbent, int width,
                                                                          double seconds, std::int64_t state_limit) {
    problem.check_order(order);
    require(width > 0 && width < 1 << 29, "width: ", width, " is not from 1 to below 2**29");
    require(incumbent >= 0 && incumbent < MemoriesProblem::kMost, "incumbent: ", incumbent,
            " is not from 0 to below 2**48");
    const AccessChains chains(problem, order);
    const ResidencySearch search(chains, incumbent, 300);
    const auto result = search.run(incumbent, width, seconds, state_limit);
    return {result.value, coded(result.choices), result.bound, result.states};
}

std::pair<std::vector<std::pair<Cost, Ints>>, std::int64_t> memories_orders(const MemoriesProblem& problem,
                                                                            std::vector<Ints> groups, Ints order,
                                                                            std::uint64_t seed, int few, double seconds,
                                                                            std::int64_t tries, std::int64_t limit) {
    require(few > 0, "few: ", few, " is not at least 1");
    require_order("order", order, static_cast<int>(groups.size()));
    OrderAnneal search(problem, std::move(groups), seed);
    problem.check_order(search.steps_of(order));
    auto result = search.run(std::move(order), tries, few, seconds, limit);
    return {std::move(result.best), result.tried};
}

// {bound, nodes}
std::pair<Cost, std::int64_t> memories_bound(const MemoriesProblem& problem, Cost incumbent, double seconds,
                                             std::int64_t node_limit) {
    OrderFreeBound search(problem);
    const auto result = search.run(incumbent, seconds, node_limit);
    return {result.bound, result.nodes};
}

// {value or -1, order, bound, finished, states}
std::tuple<Cost, Ints, Cost, bool, std::int64_t> memories_joint(const MemoriesProblem& problem, Cost incumbent,
                                                                double seconds, std::int64_t state_limit) {
    require(incumbent >= 0 && incumbent < MemoriesProblem::kMost, "incumbent: ", incumbent,
            " is not from 0 to below 2**48");
    OrderFreeBound rest(problem);
    JointSearch search(problem, rest, incumbent);
    if (!search.fits()) return {-1, {}, 0, false, 0};
    auto result = search.run(seconds, state_limit);
    return {result.value, std::move(result.order), result.bound, result.finished, result.states};
}

}  // namespace

void bind_memories(nb::module_& module) {
    nb::class_<MemoriesProblem>(
        module, "MemoriesProblem",
        "Operators, and storages in fast or slow memory.\n\nBy storage: room, load, store, begin, end. By operator: "
        "(storage, whether it is written,\ncost of a direct access or -1).")
        .def(nb::init<std::vector<Ints>, std::vector<Bytes>, const std::vector<std::vector<Cost>>&,
                      const std::vector<std::vector<std::tuple<int, bool, Cost>>>&, Bytes>(),
             "predecessors"_a, "workspace"_a, "storages"_a, "accesses"_a, "fast_bytes"_a);
    module.def("memories_belady", &memories_belady, "problem"_a, "order"_a, Unlocked(),
               "(Cost, choices by link: 1 in fast memory, 2 kept there).");
    module.def("memories_residency", &memories_residency, "problem"_a, "order"_a, "incumbent"_a, "width"_a,
               "time_limit_s"_a, "state_limit"_a, Unlocked(),
               "(Cost below the incumbent or -1, choices by link, bound, states).");
    module.def("memories_orders", &memories_orders, "problem"_a, "groups"_a, "order"_a, "seed"_a, "few"_a,
               "time_limit_s"_a, "tries"_a, "order_limit"_a, Unlocked(),
               "((Cost, order of groups) of the best few orders, orders tried).\n\nOperators of a group run one "
               "directly after the other.");
    module.def("memories_bound", &memories_bound, "problem"_a, "incumbent"_a, "time_limit_s"_a, "node_limit"_a,
               Unlocked(), "(Cost that no order stays below, nodes).");
    module.def("memories_joint", &memories_joint, "problem"_a, "incumbent"_a, "time_limit_s"_a, "state_limit"_a,
               Unlocked(), "(Cost below the incumbent or -1, order, bound, whether the search ended, states).");
}

}  // namespace downset
