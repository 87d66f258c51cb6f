"""Plans the order and the arena, also of the network rewritten and in strips, and writes the candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from downset.arenas.check import verify_arena
from downset.arenas.plan import plan_arena
from downset.errors import UnsupportedError
from downset.fitting.candidates import Candidate, Original, PlannedGraph, write_planned
from downset.fitting.job import Job
from downset.fitting.strip_notes import note_arithmetic
from downset.fitting.strips import StripSearch, least_in_strips, search_strips
from downset.formats.onnx.open_axes import open_shapes
from downset.formats.writing import WRITERS
from downset.graph.core import Graph
from downset.graph.cost import macs
from downset.joint.order_and_arena import plan_together
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.models import memory_model, without_overlaps
from downset.messages import Message
from downset.orders.check import verify_order
from downset.partial.rewrite import reordered
from downset.partial.search import PartialLimits
from downset.results.plans import Order, Together
from downset.rewrites.concat.choose import choose_rewrites
from downset.rewrites.concat.partition import partition_sites
from downset.rewrites.folding import folded
from downset.rewrites.two_passes import normalised_bytes, two_passes

__all__ = ["Planned", "folded_plan", "list_candidates", "plan", "search_in_strips", "sizes_first", "strip_limits"]


@dataclass(frozen=True, slots=True)
class Planned:
    """The plans of a network, the smallest arena first. `jobs`: the job, and where results may overlap inputs also the
    job without overlaps. `share_s`: the time limit of each of the searches that follow. `rewritable`: the network has
    concatenations that may be taken apart."""

    plans: Sequence[PlannedGraph]
    jobs: Sequence[Job]
    share_s: float
    rewritable: bool

    @property
    def best(self) -> PlannedGraph:
        return self.plans[0]


def plan(job: Job, graph: Graph) -> Planned:
    """Plan the order and the arena of a network, and verify the best plan."""
    job.listener.progress("planning the order and the arena")
    options, jobs = job.options, _jobs(job, graph)
    rewritable = options.rewrite == "auto" and WRITERS[job.form].rewritten
    rewritable = rewritable and bool(partition_sites(graph, inexact=options.inexact))
    in_strips = options.limits_strips or job.planned_bytes is not None
    # The arena of the original took up to 0.2; the offer of strips has the rest.
    share_s = 0.7 * options.time_limit_s / ((1 + rewritable) * len(jobs) + in_strips)
    plans = [PlannedGraph(graph, _plan(one, graph, share_s)) for one in jobs]
    ranked = sorted(plans, key=lambda plan: plan.together.arena.arena_bytes)
    # Of plans with the same order only the first is kept.
    ranked = list({plan.together.order.steps: plan for plan in reversed(ranked)}.values())[::-1]
    best = ranked[0].together
    verify_order(graph, best.order)
    verify_arena(graph, best.order.steps, best.arena)
    return Planned(ranked, jobs, share_s, rewritable)


def list_candidates(job: Job, original: Original, planned: Planned) -> list[Candidate]:
    """The candidates other than the original: the best plan's files, the runtime's optimised form of the original, the
    files of the network rewritten, and those in strips where an option asks for them."""
    candidates = write_planned(job, planned.best, "order")
    if original.executed != job.path and not original.graph.states:
        candidates.append(Candidate("optimised", original.executed, original.before.arena_bytes))
    if planned.rewritable and job.may_search("not rewritten"):
        job.listener.progress("trying rewrites")
        candidates += _rewritten(job, planned)
    in_strips = job.options.limits_strips and job.planned_bytes is None
    if in_strips and job.may_search("not computed in strips"):
        candidates += _in_strips(job, planned)
    return candidates


def search_in_strips(job: Job, planned: Planned) -> list[StripSearch]:
    """A search for strips in each planned order, then with normalisations in two passes in the best one."""
    allowed = job.options.max_recompute
    whole = macs(planned.best.graph)
    divided = [
        (plan, more)
        for plan in _two_passes(folded_plan(planned.best))
        if (more := macs(plan.graph) - whole) <= (math.inf if allowed is None else allowed * whole)
    ]
    limits = strip_limits(job, planned.share_s / (len(planned.plans) + len(divided)))
    searches = [search_strips(job, folded_plan(plan), limits) for plan in planned.plans]
    for plan, more in divided:
        if job.search_time.over:
            break
        share = None if allowed is None else (allowed * whole - more) / max(whole + more, 1)
        searches.append(search_strips(job, plan, replace(limits, max_recompute=share), more_macs=more))
    return searches


def folded_plan(plan: PlannedGraph) -> PlannedGraph:
    """The planned network with constants folded where their sizes are not open; the plan itself where there are none.
    Strips need that: of an operator that reads computed sizes no rows are known."""
    graph, order = plan.graph, plan.together.order
    if graph.source.format != "onnx":
        return plan
    if "open shapes" not in graph.facts:
        graph.facts["open shapes"] = open_shapes(Path(graph.source.path))
    placed = reordered(graph, order.steps)
    less = folded(placed, graph.facts["open shapes"])
    if less is placed:
        return plan
    order = replace(order, steps=tuple(range(len(less.ops))))
    return replace(plan, graph=less, together=replace(plan.together, order=order))


_PASSES, _LEAST_PART = 3, 16
"""Normalisations are tried in two passes with so many limits of what is kept between passes, where a tensor that is
normalised takes at least one part in so many of the peak."""


def _two_passes(plan: PlannedGraph) -> Iterator[PlannedGraph]:
    """The planned network with normalisations in two passes: tensors above some sizes are not kept between passes."""
    order = plan.together.order
    graph = reordered(plan.graph, order.steps)
    sizes = [*normalised_bytes(graph), 0]
    if graph.source.format == "torch":
        from downset.formats.torch.strip_form import runs_again

        sizes = sizes if runs_again(graph) else []
    for size, less in pairwise(sizes[: _PASSES + 1]):
        if _LEAST_PART * size >= int(order.evidence.value):
            divided = two_passes(graph, stored_bytes=less)
            steps = tuple(range(len(divided.ops)))
            yield replace(plan, graph=divided, together=replace(plan.together, order=replace(order, steps=steps)))


def strip_limits(job: Job, time_limit_s: float) -> PartialLimits:
    options = job.options
    return PartialLimits(options.max_recompute, options.strips, options.work_limit, time_limit_s=time_limit_s)


def _jobs(job: Job, graph: Graph) -> list[Job]:
    """The job, and where results may overlap inputs also the job without overlaps. Its plans may be better, since the
    search with overlaps covers less in the same time."""
    model = memory_model(job.target.memory)
    if model.kernels is None or not any(order_problem(graph, model).in_place):
        return [job]
    apart = replace(job.target, memory=without_overlaps(model).name)  # type: ignore[arg-type]
    return [job, replace(job, target=apart)]


def _plan(job: Job, graph: Graph, seconds: float) -> Together:
    with job.search_time.running():
        budget = job.budget(seconds)
        together = plan_together(graph, memory=job.target.memory, seed=budget.seed, **budget.limits())
        return _as_executed(graph, together) if job.target.name == "ort" else together


def _as_executed(graph: Graph, together: Together) -> Together:
    """The plan with each Shape and Size as soon as its input is there: ONNX Runtime runs them before all others."""
    steps = sizes_first(graph, together.order.steps)
    if steps == together.order.steps:
        return together
    order, memory = together.order, memory_model(together.order.memory)
    peak = peak_bytes(order_problem(graph, memory), steps)
    bound = min(int(order.evidence.bound), peak)
    evidence = replace(order.evidence, value=peak, bound=bound, proven=peak <= bound)
    arena = plan_arena(graph, steps, method="best", memory=memory)
    least = min(int(together.arena.evidence.bound), arena.arena_bytes)
    arena = replace(arena, evidence=replace(arena.evidence, bound=least, proven=arena.arena_bytes <= least))
    return Together(Order(steps, order.memory, evidence), arena)


def sizes_first(graph: Graph, steps: Sequence[int]) -> tuple[int, ...]:
    """The order in which ONNX Runtime runs a file of these steps: each Shape and Size as soon as it can run."""
    before = graph.predecessors()
    waiting = [step for step in steps if graph.ops[step].kind in ("Shape", "Size")]
    placed: dict[int, None] = {}
    for step in (-1, *steps):
        if step >= 0:
            placed[step] = None
        ready = [each for each in waiting if each not in placed and all(one in placed for one in before[each])]
        placed.update(dict.fromkeys(ready))
    return tuple(placed)


def _rewritten(job: Job, planned: Planned) -> list[Candidate]:
    """The files of the network with concatenations taken apart, where that lowers the peak and the arena."""
    try:
        plans = [plan for plan in (_planned_rewritten(one, planned) for one in planned.jobs) if plan is not None]
        if not plans:
            return []
        best = min(plans, key=lambda plan: plan.together.arena.arena_bytes)
        return write_planned(job, replace(best, inexact=job.options.inexact), "rewritten")
    except UnsupportedError as error:
        job.notes.add(Message("not rewritten: ", error.message))
        return []


def _planned_rewritten(job: Job, planned: Planned) -> PlannedGraph | None:
    """The rewritten network planned, if its arena is smaller than that of the best plan without rewriting."""
    if job.search_time.over:
        return None
    with job.search_time.running():
        limits = job.budget(0.6 * planned.share_s).limits()
        graph, inexact = planned.best.graph, job.options.inexact
        chosen = choose_rewrites(graph, memory=job.target.memory, inexact=inexact, **limits)
        job.search_time.cut |= not chosen.in_time
    if not chosen.rewrites:
        return None
    together = _plan(job, chosen.graph, 0.4 * planned.share_s)
    verify_order(chosen.graph, together.order)
    verify_arena(chosen.graph, together.order.steps, together.arena)
    smaller = together.arena.arena_bytes < planned.best.together.arena.arena_bytes
    return PlannedGraph(chosen.graph, together, chosen.rewrites) if smaller else None


def _in_strips(job: Job, planned: Planned) -> list[Candidate]:
    """The files that compute segments in strips, where that lowers the peak."""
    try:
        searches = search_in_strips(job, planned)
        files = least_in_strips(job, searches)
    except UnsupportedError as error:
        job.notes.add(Message("not computed in strips: ", error.message))
        return []
    if not files:
        ended = any(search.may_be_lower for search in searches)
        why = "the search ended before it found any that lower the peak" if ended else "that lowers no peak"
        if any(search.left_out for search in searches):
            why = "plans of fewer operators lower no peak"
        job.notes.add(f"not computed in strips: {why}")
    note_arithmetic(job, planned.best.graph, files)
    return files
