"""Places networks in strips, in each form that their file can state, and finds the form that takes the fewest bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from downset.arenas.plan import plan_arena
from downset.budget import Budget, BudgetLimits
from downset.fitting.job import SearchTime
from downset.graph.core import Graph
from downset.graph.row_form import RowForm
from downset.memory.liveness import lifetimes, order_problem, peak_bytes
from downset.memory.models import MemoryModel, MemoryName, memory_model, without_overlaps
from downset.partial.front import PartialPlan
from downset.partial.rewrite import in_strips
from downset.results.plans import Arena
from downset.rewrites.tflite_form import tflite_forms

__all__ = ["Forms", "OrderPlacing", "nothing_overlaps", "placed", "ranked"]

Memory = MemoryName | MemoryModel
Forms = Sequence[tuple[int, Graph]]
"""(peak, network) of each form that the file can state, the lowest peak first."""


def ranked(forms: Sequence[Graph], memory: Memory) -> Forms:
    """The forms of a network with their peaks."""
    peaks = [peak_bytes(order_problem(form, memory), range(len(form.ops))) for form in forms]
    return sorted(zip(peaks, forms, strict=True), key=lambda pair: pair[0])


def nothing_overlaps(graph: Graph, memory: Memory) -> bool:
    """Whether a graph in its order has the same records under the memory model without overlaps."""
    model, steps = memory_model(memory), range(len(graph.ops))
    if model.kernels is None:
        return True
    lives = lifetimes(graph, steps, model)
    return not lives.overlaps and lives.records == lifetimes(graph, steps, without_overlaps(model)).records


Limits = Callable[[], BudgetLimits]
"""Gives the limits of the next placement."""


def placed(forms: Forms, memory: Memory, limits: Limits) -> tuple[Graph, Arena]:
    """(the form of a network that takes the fewest bytes, its arena). Under a model with overlaps, placements without
    overlaps are tried too."""
    best = _placed(forms, memory, limits)
    if nothing_overlaps(best[0], memory):
        return best
    apart = without_overlaps(memory_model(memory))
    other = _placed(ranked([form for _, form in forms], apart), apart, limits)
    return best if best[1].arena_bytes < other[1].arena_bytes else other


def _placed(forms: Forms, memory: Memory, limits: Limits) -> tuple[Graph, Arena]:
    best = _least_form(forms, lambda form: _arena(form, "best", memory, limits()))
    if best[1].arena_bytes > forms[0][0]:
        best = _less_high(best, best[0], _arena(best[0], "local_search", memory, limits()))
    return best


def _least_form(forms: Forms, arena_of: Callable[[Graph], Arena]) -> tuple[Graph, Arena]:
    best: tuple[Graph, Arena] | None = None
    for peak, form in forms:
        if best is None or peak < best[1].arena_bytes:
            best = _less_high(best, form, arena_of(form))
    assert best is not None
    return best


def _arena(graph: Graph, method: str, memory: Memory, limits: BudgetLimits) -> Arena:
    return plan_arena(graph, range(len(graph.ops)), method=method, memory=memory, **limits)


def _less_high(best: tuple[Graph, Arena] | None, graph: Graph, arena: Arena) -> tuple[Graph, Arena]:
    return (graph, arena) if best is None or arena.arena_bytes < best[1].arena_bytes else best


Cost = Callable[[int, int], int]
"""A function of (bytes in the arena, bytes that the runtime keeps outside it) by which plans are compared."""


@dataclass(slots=True)
class OrderPlacing:
    """Plans of one network in its order, with what each needs as a file, found once.

    `forms`: by plan, the rows with which it was priced. `kept`: bytes that the runtime keeps outside the arena for a
    network in the form of its file. `seconds`: the time limit of one placement. `search_time`: the seconds that are
    left for all searches; when they are over, only the first plan that is tried is placed. `runtime`: gives the arena
    of a network as the runtime places it, where it follows no offsets.
    """

    graph: Graph
    forms: Mapping[PartialPlan, RowForm]
    memory: Memory
    kept: Callable[[Graph], int]
    seconds: float
    work_limit: int | None = None
    search_time: SearchTime = field(default_factory=lambda: SearchTime(math.inf))
    runtime: Callable[[Graph], Arena] | None = None
    peaks: dict[PartialPlan, tuple[int, int]] = field(default_factory=dict)
    """By plan: (peak with overlaps, peak without)."""
    beside: dict[PartialPlan, int] = field(default_factory=dict)
    files_of: dict[PartialPlan, tuple[Graph, Arena]] = field(default_factory=dict)
    last: tuple[PartialPlan, Forms] | None = None
    cut: bool = False
    """Whether time ended the placing of plans of which one may have been better."""

    def least(
        self, plans: Sequence[PartialPlan], cost: Cost, *, most_s: float = math.inf, at_least: int = 4
    ) -> PartialPlan | None:
        """The plan whose file costs least; None without plans. The cost at its peak is a lower bound of a file's cost,
        so that some plans need not be placed. After `most_s` seconds the best plan so far is returned, after at least
        `at_least` placements; when the search time is too short for one more, after one."""
        with self.search_time.running():
            return self._least(plans, cost, most_s, at_least)

    def _least(self, plans: Sequence[PartialPlan], cost: Cost, most_s: float, at_least: int) -> PartialPlan | None:
        begin = last = time.process_time()
        longest = 0.0

        def late(done: int, least: int, seconds: float, reserved: int = 0) -> bool:
            """Whether no more is tried, after `done` of at least so many and so many seconds. What is tried next, and
            as many times that as are reserved, may take as long as the longest so far: no more begins than ends in
            time, but for the first."""
            nonlocal last, longest
            now = time.process_time()
            last, longest = now, max(longest, now - last)
            if self.search_time.left_s <= (1 + reserved) * longest:
                return done >= 1
            return done >= least and now - begin > seconds

        looked = [plan for plan in plans if plan in self.files_of]
        by_price = [
            lambda plan: cost(plan.price.peak_bytes, plan.price.persistent_bytes),
            lambda plan: cost(max(plan.price.peak_bytes, plan.price.apart_bytes), plan.price.persistent_bytes),
        ]
        for number, plan in enumerate(_in_turns(plans, by_price)):
            if late(number, 3 * at_least, 0.4 * most_s, reserved=1):
                self.cut = True
                break
            self.look_at(plan)
            looked.append(plan)
        best: tuple[tuple[int, ...], PartialPlan] | None = None
        by_bound = [lambda plan: self._bound(plan, cost, 0), lambda plan: self._bound(plan, cost, 1)]
        done = 0
        placed = [plan for plan in looked if plan in self.files_of]
        for plan in dict.fromkeys((*placed, *_in_turns(looked, by_bound))):
            if best is not None and (self._bound(plan, cost, 0), *plan.cost) >= best[0]:
                continue
            if plan not in self.files_of:
                if late(done, at_least, most_s):
                    self.cut = True
                    break
                done += 1
            mine = (cost(self.placed(plan)[1].arena_bytes, self.beside[plan]), *plan.cost)
            if best is None or mine < best[0]:
                best = mine, plan
        return None if best is None else best[1]

    def placed(self, plan: PartialPlan) -> tuple[Graph, Arena]:
        if plan not in self.files_of:
            self.look_at(plan)
            with self.search_time.running():
                forms = self._forms_of(plan)
                if self.runtime is not None:
                    self.files_of[plan] = _least_form(forms, self.runtime)
                else:
                    self.files_of[plan] = placed(forms, self.memory, self._limits)
        return self.files_of[plan]

    def _limits(self) -> BudgetLimits:
        return Budget(min(self.seconds, self.search_time.left_s), self.work_limit).limits()

    def _bound(self, plan: PartialPlan, cost: Cost, position: int) -> int:
        return cost(self.peaks[plan][position], self.beside[plan])

    def look_at(self, plan: PartialPlan) -> None:
        """Find the peaks of the plan's file and what the runtime keeps for it, without placing its tensors."""
        if plan in self.peaks:
            return
        with self.search_time.running():
            self._find_peaks(plan)

    def _find_peaks(self, plan: PartialPlan) -> None:
        forms = self._forms_of(plan)
        (over, form), apart = forms[0], without_overlaps(memory_model(self.memory))
        if nothing_overlaps(form, self.memory):
            self.peaks[plan] = over, over
        else:
            self.peaks[plan] = over, ranked([each for _, each in forms], apart)[0][0]
        self.beside[plan] = self.kept(form)

    def _forms_of(self, plan: PartialPlan) -> Forms:
        """The network in strips, in each form that its file can state. Those of the last plan are kept: it may be
        placed next. Those of more plans would take much memory."""
        if self.last is None or self.last[0] is not plan:
            striped = in_strips(self.graph, plan.segments, form=self.forms[plan]) if plan.segments else self.graph
            self.last = plan, ranked(_stated(striped), self.memory)
        return self.last[1]


def _stated(striped: Graph) -> list[Graph]:
    """The forms of a network in strips that its file can state."""
    if striped.source.format != "torch":
        return tflite_forms(striped)
    from downset.formats.torch.strip_form import strip_form

    return [strip_form(striped)]


def _in_turns(plans: Sequence[PartialPlan], keys: Sequence[Callable[[PartialPlan], int]]) -> Iterator[PartialPlan]:
    """The plans in the order in which they are tried: by turns the next of each ranking. There is a ranking of all
    plans by each key, and one of the plans that recompute nothing. So a search that the time ends has also tried plans
    without recomputing and without overlaps, and allowing either never makes its result larger."""
    rankings = [sorted(plans, key=lambda plan: (key(plan), plan.cost)) for key in keys]
    rankings += [[plan for plan in ranked if plan.price.extra_macs <= 0] for ranked in rankings]
    return iter(dict.fromkeys(plan for plan in chain(*zip_longest(*rankings)) if plan is not None))
