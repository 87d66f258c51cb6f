"""Partial execution in `fit`: the front of a planned network, and the candidates made from its plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from downset.errors import UnsupportedError
from downset.fitting.candidates import Candidate, PlannedGraph, write_planned
from downset.fitting.job import Job
from downset.fitting.measuring import measure
from downset.fitting.placing import OrderPlacing
from downset.graph.core import Graph
from downset.graph.cost import row_form
from downset.graph.kinds import kind_of
from downset.graph.row_form import RowForm
from downset.memory.liveness import order_problem, peak_bytes, profile
from downset.memory.models import MemoryName, memory_model
from downset.messages import Message, Setting
from downset.orders.check import verify_steps
from downset.partial.front import PartialPlan, front_of_plans
from downset.partial.memory_form import Persistent, tflm_kept, tflm_persistent
from downset.partial.price import Pricing
from downset.partial.rewrite import reordered
from downset.partial.search import PartialFront, PartialLimits, partial_front
from downset.results.fit import Rewrite
from downset.results.plans import Arena, Evidence, Order, Together, ended_by
from downset.rewrites.tflite_form import writable_rows
from downset.text import counted, operator_name

__all__ = [
    "StripSearch",
    "cheapest_within",
    "files_of",
    "least_in_strips",
    "search_forms",
    "search_strips",
    "strip_forms",
    "strips_within",
    "taken_bytes",
    "writable_form",
]

_ALIGNED = 64
"""Bytes by which a runtime may take less than is counted, because it aligns what it keeps."""
_MOST_OPERATORS, _MOST_MORE = 10_000, 1.1
"""Networks in strips have at most so many operators, or so many times those of the network where that is more: the time
in which ONNX Runtime loads one grows with the square of its operators."""
_TRIED = 8
"""Plans that are placed before their share of the time limit counts."""


@dataclass(frozen=True, slots=True)
class StripSearch:
    """The front of `graph`, the network in its planned order, and the inputs of the search. `placing`: its plans as
    files."""

    graph: Graph
    form: RowForm
    front: PartialFront
    limits: PartialLimits
    memory: MemoryName
    persistent: Persistent | None
    placing: OrderPlacing
    kept_bytes: int
    """Bytes that the runtime keeps outside the arena for `graph`."""
    more_macs: int = 0
    """MACs of `graph` beyond those of the planned network."""

    def cost(self, plan: PartialPlan) -> tuple[int, ...]:
        """The key by which plans of several searches are compared."""
        extra, *others = plan.cost
        return extra + self.more_macs, *others

    @property
    def in_strips(self) -> list[PartialPlan]:
        """The plans with a segment in strips whose files may be best, without those of too many operators."""
        return [plan for plan in self._all_in_strips if self.operators(plan) <= self.most_operators]

    @property
    def left_out(self) -> int:
        """The number of plans in strips that have too many operators."""
        return sum(self.operators(plan) > self.most_operators for plan in self._all_in_strips)

    @property
    def most_operators(self) -> int:
        """The most operators of a network in strips."""
        return max(_MOST_OPERATORS, int(_MOST_MORE * len(self.graph.ops)))

    @property
    def _all_in_strips(self) -> list[PartialPlan]:
        return [plan for plan in (*self.front.plans, *self.front.earlier) if plan.segments]

    def operators(self, plan: PartialPlan) -> int:
        """The operators of the network by this plan."""
        return len(self.graph.ops) + plan.price.extra_operators

    @property
    def has_strips(self) -> bool:
        """Whether the front has a plan with strips."""
        return any(plan.segments for plan in self.front.plans)

    @property
    def may_be_lower(self) -> bool:
        """Whether strips were found, or the search ended early and its bound leaves room for some."""
        peak = peak_bytes(order_problem(self.graph, self.memory), range(len(self.graph.ops)))
        return self.has_strips or (not self.front.complete and self.front.bound_bytes < peak)

    def least_bytes(self, plan: PartialPlan) -> int:
        """A lower bound of `needed_bytes`, without placing the plan."""
        self.placing.look_at(plan)
        return self.placing.peaks[plan][0] + self.more_kept_bytes(plan)

    def price_bytes(self, plan: PartialPlan) -> int:
        """The price of a plan in bytes: without overlaps about `needed_bytes`, of which it does not place anything."""
        return plan.price.peak_bytes + plan.price.persistent_bytes

    @property
    def has_overlaps(self) -> bool:
        """Whether results may lie over a part of an input, so that a file may need less than the price of its plan."""
        return memory_model(self.memory).kernels is not None

    def needed_bytes(self, plan: PartialPlan) -> int:
        """The bytes of the plan's file: its arena and `more_kept_bytes`."""
        return self.placing.placed(plan)[1].arena_bytes + self.more_kept_bytes(plan)

    def more_kept_bytes(self, plan: PartialPlan) -> int:
        """Bytes that the runtime keeps outside the arena for a plan that was looked at, beyond those without strips."""
        return self.placing.beside[plan] - self.kept_bytes


@dataclass(frozen=True, slots=True)
class StripForms:
    """A planned network in its order, and its forms with rows, of which each keeps what searches priced. `persistent`:
    what the runtime keeps for each operator."""

    graph: Graph
    persistent: Persistent | None
    pricings: tuple[Pricing, ...]


def strip_forms(job: Job, plan: PlannedGraph) -> StripForms:
    """The forms of a planned network in which strips are searched. Raises UnsupportedError for a `.pt2` file that
    PyTorch itself has read: its calls are not known."""
    if plan.graph.source.trusted:
        raise UnsupportedError(Message(f"{job.path} is written in strips without ", Setting("trust", True)))
    with job.search_time.running():
        graph = reordered(plan.graph, plan.together.order.steps)
        persistent = tflm_persistent(graph) if job.target.name == "tflm" else None
        rows = writable_form(graph)
        # With a Pad a strip computes no surplus rows; with SAME it needs no padded copy of its input. Both are
        # searched.
        forms = [rows, writable_rows(graph, rows, cut_off=_large_windows(graph))]
        forms = forms[: 1 + (forms[0] != forms[1])]
        model = memory_model(job.target.memory)
        return StripForms(
            graph, persistent, tuple(Pricing(graph, form, model, persistent=persistent) for form in forms)
        )


def writable_form(graph: Graph) -> RowForm:
    """The rows of a network with the operators computed whole whose strips its file cannot state."""
    rows = row_form(graph, halos_required=False)
    if graph.source.format != "torch":
        return writable_rows(graph, rows)
    from downset.formats.torch.strip_form import strip_rows

    return strip_rows(graph, rows)


def search_strips(job: Job, plan: PlannedGraph, limits: PartialLimits, *, more_macs: int = 0) -> StripSearch:
    """Search the front of a planned network. `more_macs`: those of `StripSearch`. Raises UnsupportedError as
    `strip_forms` does."""
    return replace(search_forms(job, strip_forms(job, plan), limits), more_macs=more_macs)


def search_forms(job: Job, network: StripForms, limits: PartialLimits) -> StripSearch:
    """Search the front of a network. What an earlier search of the same forms priced is not priced again."""
    with job.search_time.running():
        return _searched(job, network, limits)


def _searched(job: Job, network: StripForms, limits: PartialLimits) -> StripSearch:
    graph, persistent = network.graph, network.persistent
    forms = [pricing.form for pricing in network.pricings]
    fronts = []
    for pricing in network.pricings:
        seconds = min(limits.time_limit_s / len(forms), job.search_time.left_s)
        share = replace(limits, time_limit_s=seconds)
        front = partial_front(
            graph,
            memory=job.target.memory,
            limits=share,
            form=pricing.form,
            persistent=persistent,
            pricing=pricing,
        )
        fronts.append(front)
    priced = [*zip(forms, fronts, strict=True)]
    form_of = {plan: form for form, front in reversed(priced) for plan in (*front.plans, *front.earlier)}
    plans = dict.fromkeys(front_of_plans(plan for front in fronts for plan in front.plans))
    front = replace(
        fronts[0],
        plans=tuple(plans),
        earlier=tuple(plan for plan in form_of if plan not in plans),
        beyond=tuple(front_of_plans(plan for front in fronts for plan in front.beyond)),
        bound_bytes=min(front.bound_bytes for front in fronts),
        complete=all(front.complete for front in fronts),
        priced=sum(front.priced for front in fronts),
        stopped_by=ended_by(front.stopped_by for front in fronts),
    )
    kept = tflm_kept if persistent is not None else _nothing
    seconds, work_limit = 0.05 * job.options.time_limit_s, job.options.work_limit
    placing = OrderPlacing(
        graph, form_of, job.target.memory, kept, seconds, work_limit, job.search_time, _placed_by_runtime(job)
    )
    search = StripSearch(graph, forms[0], front, limits, job.target.memory, persistent, placing, kept(graph))
    if search.left_out:
        count = counted(search.left_out, "plan")
        job.notes.add(f"left out: {count} in strips of more than {search.most_operators:,} operators")
    return search


def _placed_by_runtime(job: Job) -> Callable[[Graph], Arena] | None:
    """How the runtime places a network in its order, where its planner is known and follows no offsets."""
    place = job.target.place
    if place is None or job.target.offsets:
        return None
    return lambda graph: place(graph, range(len(graph.ops)), job.search_time.left_s)


def _nothing(graph: Graph) -> int:
    del graph
    return 0


def _large_windows(graph: Graph) -> list[int]:
    """The windows whose input has at least a quarter of the bytes of the largest one. For others a padded copy costs
    little."""
    read = {
        index: graph.tensors[op.inputs[0]].nbytes
        for index, op in enumerate(graph.ops)
        if kind_of(op.kind).rows == "window"
    }
    return [index for index, nbytes in read.items() if 4 * nbytes >= max(read.values())]


def least_in_strips(job: Job, searches: Sequence[StripSearch], *, most_operators: float = inf) -> list[Candidate]:
    """The files of the plan that needs the fewest bytes of arena and persistent data, of those of at most so many
    operators; none where there is no plan."""
    best: tuple[int, StripSearch, PartialPlan] | None = None
    for search in searches:
        plan = _least(job, search, most_operators)
        if plan is not None:
            needed = search.placing.placed(plan)[1].arena_bytes + search.placing.beside[plan]
            best = best if best is not None and best[0] <= needed else (needed, search, plan)
    return [] if best is None else files_of(job, best[1], best[2], "strips")


def _least(job: Job, search: StripSearch, most_operators: float = inf) -> PartialPlan | None:
    plans = [plan for plan in search.in_strips if search.operators(plan) <= most_operators]
    return search.placing.least(plans, lambda arena, beside: arena + beside, most_s=0.3 * job.options.time_limit_s)


def strips_within(
    job: Job,
    searches: Sequence[StripSearch],
    original: Candidate,
    arena_bytes: int,
    fits: Callable[[Candidate, int], bool],
) -> tuple[list[Candidate], bool]:
    """(measured files of the cheapest plan that fits, whether one fits). Where none fits, the files are those of the
    plan that takes least. `arena_bytes`: the limit of the arena. `fits(file, more_bytes)`: whether a file is known to
    fit, for which the runtime keeps that many bytes more outside the arena than without strips."""
    least: list[Candidate] = []
    for search, plan in _promising(job, searches, arena_bytes):
        files = measure(job, files_of(job, search, plan, "strips"), original=original)
        fitting = [file for file in files if fits(file, search.more_kept_bytes(plan))]
        if fitting:
            return fitting, True
        least = _less(least, files)
    return least, False


def cheapest_within(
    job: Job, searches: Sequence[StripSearch], limit_bytes: int
) -> Iterator[tuple[StripSearch, PartialPlan]]:
    """Yields the plans that fit when they are placed, but for alignments, the cheapest first. A price may be above what
    its plan takes as a file; once the time is over only plans that fit by their prices are placed."""
    begin, tried, time_left = time.process_time(), 0, job.search_time
    most = limit_bytes + _ALIGNED
    pairs = [(search, plan) for search in searches for plan in search.in_strips]
    for search, plan in sorted(pairs, key=lambda pair: pair[0].cost(pair[1])):
        over = bool(time_left.over)
        late = over or time.process_time() - begin > 0.5 * job.options.time_limit_s
        if late and tried >= (1 if over else _TRIED):
            return
        priced = (search.front.bound_bytes, plan.price.peak_bytes)[late]
        if priced + plan.price.persistent_bytes > most or search.least_bytes(plan) > most:
            continue
        tried += 1
        if search.needed_bytes(plan) <= most:
            yield search, plan


def _promising(
    job: Job, searches: Sequence[StripSearch], limit_bytes: int
) -> Iterator[tuple[StripSearch, PartialPlan]]:
    """Yields the plans that fit, then for each search the one that needs least."""
    yield from cheapest_within(job, searches, limit_bytes)
    for search in searches:
        last = _least(job, search)
        if last is not None:
            yield search, last


def taken_bytes(file: Candidate, beside_bytes: int) -> int:
    """Bytes that the runtime took, or without a measurement the arena plus `beside_bytes`."""
    return file.measured_bytes() if file.measured else file.arena_bytes + beside_bytes


def _less(one: list[Candidate], other: list[Candidate]) -> list[Candidate]:
    if not one or not other:
        return one or other
    return min(one, other, key=lambda files: min(file.cost() for file in files))


def _planned(job: Job, search: StripSearch, plan: PartialPlan) -> PlannedGraph:
    graph, arena = search.placing.placed(plan)
    steps = tuple(range(len(graph.ops)))
    verify_steps(graph.predecessors(), steps)
    peak = peak_bytes(order_problem(graph, arena.memory), steps)
    bound = min(peak, search.front.bound_bytes)
    stopped_by = search.front.stopped_by or ("time" if search.placing.cut else "")
    evidence = Evidence("strips", peak, bound, False, search.front.priced, stopped_by=stopped_by)
    return PlannedGraph(graph, Together(Order(steps, arena.memory, evidence), arena), _rewrites(job, search, plan))


def _rewrites(job: Job, search: StripSearch, plan: PartialPlan) -> tuple[Rewrite, ...]:
    """The rewrites of a plan, one for each segment, with the bytes by which the segment's peak was higher before."""
    graph = search.graph
    live = profile(order_problem(graph, job.target.memory), range(len(graph.ops)))
    graphs = []
    for part in plan.segments:
        first, last = graph.ops[part.first].name, graph.ops[part.stop - 1].name
        recomputed = f", {len(part.recomputed)} operators recomputed" if part.recomputed else ""
        gained = max(max(live[part.first : part.stop]) - plan.price.peak_bytes, 0)
        how = f"in {counted(part.strips, 'strip')}{recomputed}"
        short = f"{operator_name(first)} to {operator_name(last)} {how}"
        graphs.append(Rewrite(f"{first} to {last} {how}", (), "row-wise", gained, short))
    return tuple(graphs)


def files_of(job: Job, search: StripSearch, plan: PartialPlan, name: str) -> list[Candidate]:
    """Write the files of one plan; they are not measured."""
    return write_planned(job, _planned(job, search, plan), name)
