"""SERENITY: dynamic programming over zero-indegree sets, divide and conquer, adaptive soft budgeting.

Source: "Ordering Chaos", section 3.1 (Algorithm 1) and section 3.2 (divide and conquer, Algorithm 2).
Names: z is `ready`, a mask; mu is the live bytes, mu_peak the peak, M_i a level of the memo, tau the `budget`, T the
    `step_limit_s` (seconds for one search step), s* the solution. A search step adds one operator to each entry of M_i.
Complexity: O(V · 2^V) without pruning; O(entries · ready) for each search step.
Deviations: the memo's key is the zero-indegree set. It determines the downset, since the operators left are the upward
    closure of z. Graphs are divided at operators comparable with all others, where joining optimal parts is optimal.
    The update rules of Algorithm 2 as printed can move away from the answer: after two times 'no solution' tau_old is a
    budget that was too small, and the mean with it lowers tau. Here tau is bisected between the largest budget known to
    have no solution and the smallest that timed out; where no budget is left between them, T is doubled. Past the time
    limit Kahn's order is returned; its bound is the largest budget known to have no solution, plus one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from downset.budget import Budget, Clock, check_time_limit
from downset.lattice import ancestors, bits, descendants
from downset.memory.liveness import OrderProblem
from downset.orders.kahn import kahn
from downset.orders.search_space import SearchSpace
from downset.results.plans import Found

__all__ = ["divide", "explored", "serenity"]

_STEP_STATES = 4096
"""T, in entries of the memo, of the first search steps under a work limit."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the memo M_i: the best partial order known that leads to a zero-indegree set."""

    peak: int
    live: int
    downset: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _BudgetResult:
    """The outcome of a search under a budget: a flag as in Algorithm 2, the entry at the end if there is a solution,
    and the entries explored."""

    flag: str
    entry: _Entry | None
    states: int


@dataclass(slots=True)
class _StepLimits:
    """The clock of the whole search, and when a search step stops: by time, or by states where they are limited, so
    that the search can be repeated exactly. `first`: the limits (seconds, states) of the first search steps of a
    part."""

    clock: Clock
    first: tuple[float, float] = (inf, inf)
    step_s: float = inf
    step_states: float = inf

    def longer_steps(self) -> None:
        self.step_s, self.step_states = 2 * self.step_s, 2 * self.step_states


def serenity(
    problem: OrderProblem,
    *,
    clock: Clock,
    divided: bool = True,
    soft_budget: bool = True,
    step_limit_s: float = 0.5,
) -> Found:
    """The paper's scheduler. `divided=False` and `soft_budget=False` switch its two accelerations off, as in table 2.
    The clock counts entries of the memo; where they are limited T counts them too, and `step_limit_s` is ignored."""
    check_time_limit(step_limit_s, "step_limit_s")
    by_time = clock.budget.states is None
    limits = _StepLimits(clock, (step_limit_s, inf) if by_time else (inf, _STEP_STATES))
    space = SearchSpace(problem)
    ends = divide(space) if divided else [space.full]
    # Each part is searched as a separate graph that starts with the bytes live there. It has a separate budget, and the
    # peak of the whole is the largest of the parts' peaks.
    peak, live, downset = problem.floor_bytes, space.start_bytes, 0
    steps: tuple[int, ...] = ()
    bound = problem.floor_bytes
    for end in ends:
        outcome, refuted = adaptive_soft_budgeting(space, _Entry(live, live, downset, steps), end, soft_budget, limits)
        bound = max(bound, refuted)
        if outcome.entry is None:
            solution = kahn(problem).solution
            bound = min(max(bound, peak), space.peak(solution))
            return Found(solution, bound, False, clock.states, clock.stopped_by())
        peak = max(peak, outcome.entry.peak)
        live, downset, steps = outcome.entry.live, end, outcome.entry.steps
    return Found(steps, peak, True, clock.states)


def divide(space: SearchSpace) -> list[int]:
    """The downsets that every order passes through (hourglass points), ascending, the full one last."""
    above, below = ancestors(space.predecessors), descendants(space.predecessors)
    cuts = {
        above[v] | 1 << v for v in range(space.count) if above[v].bit_count() + below[v].bit_count() == space.count - 1
    }
    return sorted(cuts | {space.full}, key=int.bit_count)


def adaptive_soft_budgeting(
    space: SearchSpace, start: _Entry, end: int, soft_budget: bool, limits: _StepLimits
) -> tuple[_BudgetResult, int]:
    """Algorithm 2 for one part: (the outcome, the largest budget known to have no solution plus one, or 0 without a
    soft budget)."""
    hard = _kahn_peak(space, start, end)
    limits.step_s, limits.step_states = limits.first if soft_budget else (inf, inf)
    if not soft_budget:
        return dynamic_programming_based_scheduling(space, start, end, hard, limits), 0
    too_small, timed_out = start.peak - 1, hard + 1  # no budget below the bytes that are live at the start
    budget = hard
    while True:
        outcome = dynamic_programming_based_scheduling(space, start, end, budget, limits)
        if outcome.flag == "solution" or limits.clock.over():
            return outcome, too_small + 1
        if outcome.flag == "timeout":
            timed_out = budget
        else:
            too_small = budget
        if timed_out - too_small <= 1:
            limits.longer_steps()
            timed_out = hard + 1
        budget = too_small + max((timed_out - too_small) // 2, 1)


def _kahn_peak(space: SearchSpace, start: _Entry, end: int) -> int:
    """The hard budget: the peak of Kahn's order of this part."""
    peak, live, downset = start.peak, start.live, start.downset
    for operator in kahn(space.problem).solution:
        if end >> operator & 1 and not downset >> operator & 1:
            transient, live = space.step(downset, live, operator)
            peak = max(peak, transient)
            downset |= 1 << operator
    return peak


def dynamic_programming_based_scheduling(
    space: SearchSpace, start: _Entry, end: int, budget: int, limits: _StepLimits
) -> _BudgetResult:
    """Algorithm 1 from `start` to the downset `end`, without partial orders whose peak exceeds the budget."""
    result = _searched(space, start, end, budget, limits)
    limits.clock.count(result.states)
    return result


def _searched(space: SearchSpace, start: _Entry, end: int, budget: int, limits: _StepLimits) -> _BudgetResult:
    most = limits.clock.left_states()
    ready = sum(1 << v for v in range(space.count) if _is_ready(space, start.downset, v))
    level = {ready: start}
    states = 0
    for _ in range((end & ~start.downset).bit_count()):
        step, first = limits.clock.part(seconds=limits.step_s), states
        following: dict[int, _Entry] = {}
        for zero_indegree, entry in level.items():
            if states >= most or states - first >= limits.step_states:
                return _BudgetResult("timeout", None, states)
            states += 1
            if states % 64 == 0 and step.left_s() == 0:
                return _BudgetResult("timeout", None, states)
            for operator in bits(zero_indegree & end):
                transient, live = space.step(entry.downset, entry.live, operator)
                peak = max(entry.peak, transient)
                if peak > budget:
                    continue
                downset = entry.downset | 1 << operator
                signature = space.open(downset, zero_indegree, operator)
                cheapest = following.get(signature)
                if cheapest is None or peak < cheapest.peak:
                    following[signature] = _Entry(peak, live, downset, (*entry.steps, operator))
        if not following:
            return _BudgetResult("no solution", None, states)
        level = following
    (entry,) = level.values()
    return _BudgetResult("solution", entry, states)


def explored(space: SearchSpace, budget: int) -> tuple[int | None, int]:
    """(peak, states explored) of Algorithm 1 on the whole graph under a budget; the peak is None without a solution."""
    floor = space.problem.floor_bytes
    start = _Entry(max(floor, space.start_bytes), space.start_bytes, 0, ())
    outcome = dynamic_programming_based_scheduling(space, start, space.full, budget, _StepLimits(Budget(inf).start()))
    return (None if outcome.entry is None else outcome.entry.peak), outcome.states


def _is_ready(space: SearchSpace, downset: int, operator: int) -> bool:
    return not downset >> operator & 1 and not space.predecessors[operator] & ~downset
