"""Plan a verified arena or shared objects for records, or for a graph and an order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack, overload

from downset.arenas.capacity import within, within_objects
from downset.arenas.check import verify_arena
from downset.arenas.check_records import check_objects, check_placement
from downset.arenas.gaps import height
from downset.arenas.native_form import check_range
from downset.arenas.overlapping import overlapping
from downset.arenas.planners import ARENAS, CONTRACT, SHARED, SHARED_CONTRACT, ArenaOptions, SharedOptions
from downset.arenas.scratch import lower, scratch_in_gaps
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Budget
from downset.errors import InfeasibleError, LimitReached, UsageError
from downset.graph.core import Graph
from downset.memory.liveness import lifetimes, order_problem, peak_bytes
from downset.memory.models import MemoryModel, MemoryName, memory_model, stated_model, without_scratch
from downset.memory.records import Overlap, Record, check_records
from downset.methods import Chosen, Method, check_whole, choose
from downset.orders.check import verify_steps
from downset.results.plans import Arena, Evidence, Found, Order, SharedObjects

__all__ = ["plan_arena", "plan_shared"]


Planner = Callable[..., Found]


@overload
def plan_arena(
    graph: Graph,
    order: Order | Sequence[int],
    *,
    method: str | Method | Planner = ...,
    memory: MemoryName | MemoryModel | None = ...,
    ties: TiesName = ...,
    time_limit_s: float = ...,
    work_limit: int | None = ...,
    capacity_bytes: int | None = ...,
    **options: Unpack[ArenaOptions],
) -> Arena: ...


@overload
def plan_arena(
    graph: Sequence[Record],
    order: None = ...,
    *,
    method: str | Method | Planner = ...,
    memory: MemoryName | MemoryModel | None = ...,
    ties: TiesName = ...,
    time_limit_s: float = ...,
    work_limit: int | None = ...,
    capacity_bytes: int | None = ...,
    **options: Unpack[ArenaOptions],
) -> Arena: ...


def plan_arena(  # noqa: PLR0913 - users know its keywords
    graph: Graph | Sequence[Record],
    order: Order | Sequence[int] | None = None,
    *,
    method: str | Method | Planner = "best",
    memory: MemoryName | MemoryModel | None = None,
    ties: TiesName = "tflite",
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    capacity_bytes: int | None = None,
    **options: Unpack[ArenaOptions],
) -> Arena:
    """An offset in one arena for every record: of bare records, or of a graph that runs in an order.

    The memory model is the order's unless given; give it where it is one of your own, since an order has its name
    alone. Bare records take neither order nor memory model. The bound is the largest breadth of the records (no
    placement of this order needs less); proven when the arena meets it, or when an exact search ended. `work_limit`
    ends a search after so many placements tried; where only it is given (`time_limit_s=math.inf`), the same limit gives
    the same plan under any load, and a larger one never a worse. `options`: the method's own.

    Held to `capacity_bytes`, raises InfeasibleError if nothing fits and LimitReached if that was not known in time. Of
    bare records, the error's `result` is the best arena that a search found before; None without a search. Raises
    UsageError for an unknown method, option or choice, UnsupportedError for records that 64 bits do not hold
    together.
    """
    check_ties(ties)
    budget = Budget(time_limit_s, work_limit)
    if capacity_bytes is not None:
        check_whole("capacity_bytes", capacity_bytes)
    chosen = choose(method, ARENAS, CONTRACT, options, other=SHARED)
    request = _ArenaRequest(chosen, ties, budget, capacity_bytes)
    if isinstance(graph, Graph):
        if order is None:
            raise UsageError("plan_arena of a graph needs the order in which its operators run")
        if memory is None and isinstance(order, Order):
            model = stated_model(order.memory, None, "order")
        else:
            model = memory_model("live" if memory is None else memory)
        return _graph_arena(graph, order.steps if isinstance(order, Order) else tuple(order), model, request)
    for name, value in (("the order", order), ("memory=", memory)):
        if value is not None:
            raise UsageError(f"records have their lifetimes and bytes already: leave {name} out, or give the graph")
    return _records_arena(graph, request)


@dataclass(frozen=True, slots=True)
class _ArenaRequest:
    """A method, and what its arenas must keep to."""

    method: Chosen
    ties: TiesName
    budget: Budget
    capacity_bytes: int | None

    @property
    def searches(self) -> bool:
        """Whether the method tries several placements, without a limit that they are held to."""
        return self.capacity_bytes is None and (self.method.name == "best" or self.method.name in _SEARCHING)

    def place(self, records: Sequence[Record]) -> Found:
        """Offsets of records that lie apart where they live together."""
        planner: Planner = self.method
        if self.capacity_bytes is not None:
            planner = within(self.method, self.capacity_bytes)
        return planner(records, ties=self.ties, clock=self.budget.start())


def _graph_arena(graph: Graph, steps: Sequence[int], model: MemoryModel, request: _ArenaRequest) -> Arena:
    verify_steps(graph.predecessors(), steps)
    if not model.scratch or not request.searches:
        return _placed_graph(graph, steps, model, request)
    half = replace(request, budget=replace(request.budget, seconds=request.budget.seconds / 2))
    arena = _placed_graph(graph, steps, model, half)
    if arena.evidence.proven:
        return arena
    tensors = _placed_graph(graph, steps, without_scratch(model), half)
    return lower(arena, scratch_in_gaps(graph, steps, tensors, model))


def _placed_graph(graph: Graph, steps: Sequence[int], model: MemoryModel, request: _ArenaRequest) -> Arena:
    living = lifetimes(graph, steps, model)
    records, overlaps = living.records, living.overlaps
    begin = time.perf_counter()
    if overlaps:
        bound = peak_bytes(order_problem(graph, model), steps)
        result = _overlapping(records, overlaps, bound, request)
    else:
        try:
            result = request.place(records)
        except (InfeasibleError, LimitReached) as error:
            error.result = None
            raise
    seconds = time.perf_counter() - begin
    check_placement(records, result.solution, overlaps=overlaps)
    evidence = _evidence(request.method.name, height(records, result.solution), result, seconds)
    offsets = tuple(map(int, result.solution))
    arena = Arena(records, offsets, evidence, model.name, living.tensor_offsets(offsets), overlaps)
    verify_arena(graph, steps, arena, memory=model)
    return arena


def _records_arena(bare: Sequence[Record], request: _ArenaRequest) -> Arena:
    records = check_records(bare)
    check_range(records)
    begin = time.perf_counter()

    def arena(result: Found) -> Arena:
        seconds = time.perf_counter() - begin
        check_placement(records, result.solution)
        evidence = _evidence(request.method.name, height(records, result.solution), result, seconds)
        return Arena(records, tuple(map(int, result.solution)), evidence)

    try:
        return arena(request.place(records))
    except (InfeasibleError, LimitReached) as error:
        error.result = arena(error.result) if isinstance(error.result, Found) else None
        raise


_SEARCHING = ("local_search", "exact")
"""The methods that go on until a limit ends them."""


def _overlapping(records: Sequence[Record], overlaps: Sequence[Overlap], bound: int, request: _ArenaRequest) -> Found:
    """The method's own offsets, where no records overlap; for methods that search, also lower ones where records do as
    `overlaps` allow. The method's own bound is for records that lie apart: `bound` takes its place."""
    name, budget = request.method.name, request.budget
    apart = request.method(records, ties=request.ties, clock=replace(budget, seconds=0.3 * budget.seconds).start())
    value = height(records, apart.solution)
    result = Found(apart.solution, min(bound, value), value <= bound, apart.states)
    if name == "best" or name in _SEARCHING:
        result = overlapping(
            records,
            overlaps,
            bound=bound,
            incumbent=apart.solution,
            search=name in _SEARCHING,
            clock=replace(budget, seconds=0.7 * budget.seconds).start(),
        )
    if request.capacity_bytes is not None:
        _check_fits(height(records, result.solution), bound, request.capacity_bytes)
    return result


def _check_fits(value: int, bound: int, capacity_bytes: int) -> None:
    """Raise the error that says what is known where a placement with overlaps is larger than the capacity."""
    if value <= capacity_bytes:
        return
    figures = {"limit_bytes": capacity_bytes, "least_bytes": bound, "best_bytes": value}
    if bound > capacity_bytes:
        raise InfeasibleError(
            f"{bound} bytes are live at one step, without overlaps: no placement fits into {capacity_bytes}",
            figures=figures,
        )
    raise LimitReached(
        f"no placement that fits into {capacity_bytes} bytes was found; {value} are enough, and at least "
        f"{bound} are needed",
        figures=figures,
    )


def plan_shared(
    records: Sequence[Record],
    *,
    method: str | Method | Planner = "best",
    ties: TiesName = "tflite",
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    capacity_bytes: int | None = None,
    **options: Unpack[SharedOptions],
) -> SharedObjects:
    """A shared object for every record (no two records of one object live at once), least total size.

    Pinned offsets are refused: objects have none. Held to `capacity_bytes`, raises as `plan_arena` does."""
    check_ties(ties)
    budget = Budget(time_limit_s, work_limit)
    if capacity_bytes is not None:
        check_whole("capacity_bytes", capacity_bytes)
    chosen = choose(method, SHARED, SHARED_CONTRACT, options, other=ARENAS)
    planner: Planner = chosen if capacity_bytes is None else within_objects(chosen, capacity_bytes)
    records = check_records(records)
    check_range(records)
    pinned = next((record for record in records if record.offset is not None), None)
    if pinned is not None:
        raise UsageError(f"record {pinned.id!r} is pinned at {pinned.offset}: shared objects have no offsets")
    begin = time.perf_counter()
    try:
        result = planner(records, ties=ties, clock=budget.start())
    except (InfeasibleError, LimitReached) as error:
        if isinstance(error.result, Found):
            error.result = _shared(records, error.result, chosen.name, time.perf_counter() - begin)
        raise
    return _shared(records, result, chosen.name, time.perf_counter() - begin)


def _shared(records: tuple[Record, ...], result: Found, method: str, seconds: float) -> SharedObjects:
    """The checked objects of a planner's result."""
    check_objects(records, result.solution)
    sizes = [0] * (max(result.solution, default=-1) + 1)
    for number, record in zip(result.solution, records, strict=True):
        sizes[number] = max(sizes[number], record.nbytes)
    evidence = _evidence(method, sum(sizes), result, seconds)
    return SharedObjects(records, tuple(map(int, result.solution)), tuple(sizes), evidence)


def _evidence(method: str, value: int, result: Found, seconds: float) -> Evidence:
    proven = result.proven or result.bound >= value
    bound = value if proven else result.bound
    return Evidence(method, value, bound, proven, result.states, seconds, "" if proven else result.stopped_by)
