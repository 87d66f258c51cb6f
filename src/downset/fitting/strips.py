"""Partial execution as files: the front of a planned network, and the candidates made of its plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from downset.arenas.plan import plan_arena
from downset.errors import UnsupportedError
from downset.fitting.candidates import Candidate, Job, Planned, write_planned
from downset.fitting.measuring import measure
from downset.formats.onnx.fitted import fix_sizes
from downset.formats.writing import WRITERS
from downset.graph.core import Graph
from downset.graph.cost import macs, row_form
from downset.graph.kinds import kind_of
from downset.graph.row_form import RowForm
from downset.memory.liveness import order_problem, peak_bytes, profile
from downset.memory.models import MemoryModel, MemoryName
from downset.orders.check import verify_steps
from downset.partial.front import PartialPlan, front_of_plans
from downset.partial.memory_form import Persistent
from downset.partial.persistent import tflm_persistent
from downset.partial.price import Price
from downset.partial.rewrite import in_strips, reordered
from downset.partial.search import PartialFront, PartialLimits, partial_front
from downset.plans import Arena, Evidence, Order, Rewrite, Together
from downset.rewrites.tflite_form import IN_PLACE, tflite_form, writable_rows
from downset.text import format_bytes

__all__ = [
    "StripSearch",
    "arithmetic",
    "files_of",
    "least_in_strips",
    "placed",
    "remedies",
    "search_strips",
    "strips_within",
    "taken_bytes",
    "worth_placing",
]

_TRIED = 8
"""Plans that are written and measured at most until one fits."""
_LOOKED_AT = 12
"""Plans whose networks are made at most to find those that are worth placing."""
_PLACED = 2


@dataclass(frozen=True, slots=True)
class StripSearch:
    """The front of the network in the planned order `graph`, and what it was searched with. `forms`: where strips of
    some windows read other rows than those of `form`, by plan. `left_s`: seconds of the limit that are left."""

    graph: Graph
    form: RowForm
    forms: Mapping[PartialPlan, RowForm]
    front: PartialFront
    limits: PartialLimits
    memory: MemoryName
    persistent: Persistent | None
    left_s: float

    @property
    def found(self) -> bool:
        """Whether any plan but the network as it is was found."""
        return any(plan.segments for plan in self.front.plans)

    @property
    def may_be_lower(self) -> bool:
        """Whether strips were found, or the search ended early and its bound leaves room for some."""
        peak = peak_bytes(order_problem(self.graph, self.memory), range(len(self.graph.ops)))
        return self.found or (not self.front.complete and self.front.bound_bytes < peak)


def search_strips(job: Job, plan: Planned, limits: PartialLimits) -> StripSearch:
    """Raises UnsupportedError where the file's format cannot hold a network in strips."""
    if not WRITERS[job.form].in_strips:
        able = " and ".join(suffix for suffix, writer in WRITERS.items() if writer.in_strips)
        raise UnsupportedError(f"only {able} files are written in strips, not {job.form}")
    started = time.perf_counter()
    graph = reordered(plan.graph, plan.together.order.steps)
    persistent = tflm_persistent(graph) if job.target.name == "tflm" else None
    rows = row_form(graph, strict=False)
    # Padded strips compute nothing twice; windows with SAME need no copy of their input.
    forms = [writable_rows(graph, rows), writable_rows(graph, rows, cut_off=_large_windows(graph))]
    forms = forms[: 1 + (forms[0] != forms[1])]
    share = replace(limits, time_limit_s=limits.time_limit_s / len(forms))
    fronts = [
        partial_front(graph, memory=job.target.memory, limits=share, form=form, persistent=persistent) for form in forms
    ]
    known = {plan: form for form, front in reversed([*zip(forms, fronts, strict=True)]) for plan in front.plans}
    front = replace(
        fronts[0],
        plans=tuple(front_of_plans(known)),
        beyond=tuple(front_of_plans(plan for front in fronts for plan in front.beyond)),
        bound_bytes=min(front.bound_bytes for front in fronts),
        complete=all(front.complete for front in fronts),
        priced=sum(front.priced for front in fronts),
    )
    left_s = limits.time_limit_s - (time.perf_counter() - started)
    return StripSearch(graph, forms[0], known, front, limits, job.target.memory, persistent, left_s)


def _large_windows(graph: Graph) -> list[int]:
    """Windows whose input has at least a quarter of the bytes of the largest: elsewhere a padded copy costs little."""
    read = {
        index: graph.tensors[op.inputs[0]].nbytes
        for index, op in enumerate(graph.ops)
        if kind_of(op.kind).rows == "window"
    }
    return [index for index, nbytes in read.items() if 4 * nbytes >= max(read.values())]


def least_in_strips(job: Job, search: StripSearch) -> list[Candidate]:
    """Files of the plan that needs least, in the arena and persistent bytes together; none where no strips help."""
    plans = [plan for plan in search.front.plans if plan.segments]
    made = [(_planned(job, search, plan), plan) for plan in worth_placing(search, plans, _total)]
    if not made:
        return []
    best, _ = min(made, key=lambda pair: pair[0].together.arena.arena_bytes + pair[1].price.persistent_bytes)
    return _written(job, best, "strips")


def worth_placing(search: StripSearch, plans: Sequence[PartialPlan], cost: Callable[[Price], int]) -> list[PartialPlan]:
    """The few of least cost, and the few among those that recompute nothing: a placement may be above its bound, and
    what is allowed to recompute shall not need more for that."""
    kept = [plan for plan in plans if plan.price.extra_macs <= 0]
    peaks: dict[PartialPlan, int] = {}
    return list(dict.fromkeys(plan for some in (kept, plans) for plan in _lowest(search, some, cost, peaks)[:_PLACED]))


def _total(price: Price) -> int:
    return price.peak_bytes + price.persistent_bytes


def _lowest(
    search: StripSearch, plans: Sequence[PartialPlan], cost: Callable[[Price], int], peaks: dict[PartialPlan, int]
) -> list[PartialPlan]:
    """The few plans of least cost, the least first, with the peaks of their files. Prices are of files in which no cut
    or join lies in place. `peaks` keeps those of the files, for plans that are looked at again."""
    few = sorted(plans, key=lambda plan: (cost(plan.price), plan.cost))[:_LOOKED_AT]
    for plan in few:
        if plan not in peaks:
            peaks[plan] = min(peak for peak, _ in _forms(_striped(search, plan), search.memory))
    return sorted(few, key=lambda plan: (cost(replace(plan.price, peak_bytes=peaks[plan])), plan.cost))


def _striped(search: StripSearch, plan: PartialPlan) -> Graph:
    return in_strips(search.graph, plan.segments, form=search.forms[plan]) if plan.segments else search.graph


def _forms(striped: Graph, memory: MemoryName | MemoryModel) -> list[tuple[int, Graph]]:
    """(peak, network) of each form that the file can state, the lowest first."""
    ways = IN_PLACE if striped.source.format == "tflite" else IN_PLACE[:1]
    forms = [tflite_form(striped, in_place=in_place) for in_place in ways]
    peaks = [peak_bytes(order_problem(form, memory), range(len(form.ops))) for form in forms]
    return sorted(zip(peaks, forms, strict=True), key=lambda pair: pair[0])


def strips_within(
    job: Job, search: StripSearch, original: Candidate, limit_bytes: int, beside_bytes: int
) -> tuple[list[Candidate], bool, list[str]]:
    """(measured files of the cheapest plan that fits, whether it does, notes). Where none fits, those of the plan that
    takes least. `beside_bytes`: what the runtime takes beside the arena of the network as it is."""
    plans = [plan for plan in search.front.plans if plan.segments]
    notes: list[str] = []
    least: list[Candidate] = []
    for planned, beside in _promising(job, search, plans, limit_bytes - beside_bytes):
        files, said = measure(job, _written(job, planned, "strips"), original=original)
        notes += [note for note in said if note not in notes]
        fitting = [file for file in files if taken_bytes(file, beside_bytes + beside) <= limit_bytes]
        if fitting:
            return fitting, True, notes
        least = _less(least, files)
    return least, False, notes


def _promising(
    job: Job, search: StripSearch, plans: Sequence[PartialPlan], limit_bytes: int
) -> Iterator[tuple[Planned, int]]:
    """(plan, persistent bytes) of a few that fit by their prices, the cheapest first, and of the one with least."""
    tried = 0
    for plan in plans:
        price = plan.price
        if price.peak_bytes + price.persistent_bytes > limit_bytes or tried == _TRIED:
            continue
        planned = _planned(job, search, plan)
        if planned.together.arena.arena_bytes + price.persistent_bytes <= limit_bytes:
            tried += 1
            yield planned, price.persistent_bytes
    if plans:
        last = _lowest(search, plans, _total, {})[0]
        yield _planned(job, search, last), last.price.persistent_bytes


def taken_bytes(file: Candidate, beside_bytes: int) -> int:
    """Bytes that the runtime took, or the arena and what is expected beside it."""
    return file.measured["total_bytes"] if file.measured else file.arena_bytes + beside_bytes


def _less(one: list[Candidate], other: list[Candidate]) -> list[Candidate]:
    if not one or not other:
        return one or other
    return min(one, other, key=lambda files: min(file.cost() for file in files))


def placed(
    striped: Graph, memory: MemoryName | MemoryModel, *, time_limit_s: float, work_limit: int | None = None
) -> tuple[Graph, Arena]:
    """The network in a form that its file can state, with offsets: the form in which it needs least. The limits
    are those of each placement."""
    forms = _forms(striped, memory)
    best: tuple[Graph, Arena] | None = None
    for peak, form in forms:
        if best is None or peak < best[1].arena_bytes:
            best = _less_high(best, form, _arena(form, "best", memory, time_limit_s, work_limit))
    assert best is not None
    if best[1].arena_bytes > forms[0][0]:
        best = _less_high(best, best[0], _arena(best[0], "local_search", memory, time_limit_s, work_limit))
    return best


def _arena(
    graph: Graph, method: str, memory: MemoryName | MemoryModel, time_limit_s: float, work_limit: int | None
) -> Arena:
    steps = range(len(graph.ops))
    return plan_arena(graph, steps, method=method, memory=memory, time_limit_s=time_limit_s, work_limit=work_limit)


def _less_high(best: tuple[Graph, Arena] | None, graph: Graph, arena: Arena) -> tuple[Graph, Arena]:
    return (graph, arena) if best is None or arena.arena_bytes < best[1].arena_bytes else best


def _planned(job: Job, search: StripSearch, plan: PartialPlan) -> Planned:
    graph, arena = placed(
        _striped(search, plan), job.target.memory, time_limit_s=0.05 * job.time_limit_s, work_limit=job.work_limit
    )
    steps = tuple(range(len(graph.ops)))
    verify_steps(graph.predecessors(), steps)
    peak = peak_bytes(order_problem(graph, job.target.memory), steps)
    bound = min(peak, search.front.bound_bytes)
    evidence = Evidence("strips", peak, bound, False, search.front.priced)
    return Planned(graph, Together(Order(steps, job.target.memory, evidence), arena), _rewrites(job, search, plan))


def _rewrites(job: Job, search: StripSearch, plan: PartialPlan) -> tuple[Rewrite, ...]:
    """By segment: by how much the peak would be higher without it."""
    graph = search.graph
    live = profile(order_problem(graph, job.target.memory), range(len(graph.ops)))
    found = []
    for part in plan.segments:
        first, last = graph.ops[part.first].name, graph.ops[part.stop - 1].name
        recomputed = f", {len(part.recomputed)} operators recomputed" if part.recomputed else ""
        gained = max(max(live[part.first : part.stop]) - plan.price.peak_bytes, 0)
        found.append(Rewrite(f"{first} to {last} in {part.strips} strips{recomputed}", (), "row-wise", gained))
    return tuple(found)


def files_of(job: Job, search: StripSearch, plan: PartialPlan, name: str) -> list[Candidate]:
    """The files of one plan, not measured."""
    return _written(job, _planned(job, search, plan), name)


def _written(job: Job, planned: Planned, name: str) -> list[Candidate]:
    files = write_planned(job, planned, name)
    if job.form == ".onnx":
        for file in files:
            fix_sizes(file.path, job.shapes or {}, batch=False)  # rows are cut at these sizes
    return files


def arithmetic(graph: Graph, striped: Graph) -> str:
    """Strips that drop rows nobody reads may compute less than the network did."""
    share = 100 * (macs(striped) - macs(graph)) / max(macs(graph), 1)
    return f"in strips the network computes {abs(share):.1f} % {'more' if share >= 0 else 'less'}"


def remedies(search: StripSearch, needed_bytes: int, limit_bytes: int, *, unmeasured: str = "") -> str:
    """Ways to make it fit, the least change first, with numbers. The time that is left finds what more strips reach.
    `unmeasured`: the runtime that takes more than the bytes needed, and nobody knows how much."""
    beside = max(needed_bytes - search.front.least.price.peak_bytes, 0)
    ways = []
    more: Sequence[PartialPlan] = search.front.beyond
    if search.limits.max_strips is not None and search.left_s > 0:
        limits = replace(search.limits, max_recompute=None, max_strips=None, time_limit_s=search.left_s)
        more = partial_front(
            search.graph, memory=search.memory, limits=limits, form=search.form, persistent=search.persistent
        ).plans
    elif search.limits.max_strips is not None:
        ways.append(f"--strips above {search.limits.max_strips} (no time was left to search there)")
    fitting = [plan for plan in more if plan.price.peak_bytes + beside <= limit_bytes]
    least = min(fitting or more, key=lambda plan: plan.cost if fitting else (plan.price.peak_bytes,), default=None)
    if least is not None and least.price.peak_bytes + beside < needed_bytes:
        share = least.price.extra_macs / max(macs(search.graph), 1)
        most = max((part.strips for part in least.segments), default=1)
        reached = format_bytes(least.price.peak_bytes + beside)
        ways.append(f"--max-recompute {max(share, 0):.1%} and --strips {most}: about {reached} B")
    for tensor in search.graph.inputs:
        shape = search.graph.tensors[tensor].shape
        if len(shape) == 4 and limit_bytes > beside:
            share = (limit_bytes - beside) / max(needed_bytes - beside, 1)
            rows = int(max(search.form.rows[tensor], 1) * share**0.5)
            ways.append(f"an input of about {rows} rows and columns, not {search.form.rows[tensor]} (estimated)")
            break
    beyond = f" for its tensors alone; {unmeasured} takes more, which is not known" if unmeasured else ""
    ways.append(f"{format_bytes(needed_bytes)} B of RAM{beyond}")
    return "; ".join(f"({number}) {way}" for number, way in enumerate(ways, start=1))
