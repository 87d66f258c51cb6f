"""Reads a model file and writes the same network with less memory, after a proof and runs of both files.

A target states which file the runtime executes and how it is measured (`runtimes.targets`); a format states what its
files can hold (`formats.writing`). The best *measured* candidate ships where the runtime can be measured, else the best
under its memory model. The original is always a candidate, so the result is never worse.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from downset.clock import DEFAULT_TIME_LIMIT_S
from downset.errors import LoadError, UnsupportedError
from downset.fitting.candidates import (
    Candidate,
    Job,
    PlannedGraph,
    arena_as_placed,
    list_candidates,
    write_planned,
)
from downset.fitting.choosing import Narrowed, choose, narrowing
from downset.fitting.fronts import measured_front
from downset.fitting.int8 import as_int8, int8_note
from downset.fitting.loads import PROCESSES, run_program, stays_within
from downset.fitting.measuring import known_slower, measure, note_growth, run_times, runs_s, tell_apart
from downset.fitting.offer import fit_call, offer_strips
from downset.fitting.placing import without_overlaps
from downset.fitting.request import (
    check_options,
    check_result_path,
    check_session,
    check_slower,
    check_strips,
    target_of,
    with_overlaps,
)
from downset.fitting.shipping import note_file_size, note_operators, note_workspaces, ship
from downset.fitting.strips import (
    StripSearch,
    arithmetic,
    least_in_strips,
    search_strips,
    strips_within,
)
from downset.fitting.summary import check_ram, early_verdict, simulate_traffic, summarise, with_sessions
from downset.formats.onnx.data_files import check_room_for_weights, link_weights, weights_beside
from downset.formats.onnx.read import without_defaults
from downset.formats.reading import load
from downset.formats.writing import WRITERS
from downset.graph.core import Graph
from downset.graph.workspaces import with_workspaces
from downset.joint.check import verify
from downset.joint.order_and_arena import plan_together
from downset.memory.kernel_needs import kernel_needs
from downset.memory.liveness import order_problem
from downset.memory.models import memory_model
from downset.memory.overlaps import KernelsName
from downset.messages import Message
from downset.methods import check_work_limit
from downset.partial.search import PartialLimits
from downset.process.isolation import reusing
from downset.process.whole_files import check_output
from downset.results.fit import Fit, Rewrite
from downset.results.plans import Together
from downset.rewrites.concat.choose import choose_rewrites
from downset.rewrites.concat.partition import partition_sites
from downset.runtimes.targets import TargetName
from downset.runtimes.versions import versions_of_target
from downset.text import counted, unheard

__all__ = ["fit"]

RewriteName = Literal["auto", "off"]


def fit(
    model: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    target: TargetName | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ram_bytes: int | None = None,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    seed: int = 0,
    rewrite: RewriteName = "auto",
    inexact: bool = False,
    max_recompute: float | None = None,
    strips: int | None = None,
    front: bool = False,
    kernels: KernelsName | None = None,
    int8: bool = False,
    on_chip: Sequence[int] = (),
    slower: float | None = None,
    session: str | os.PathLike[str] | None = None,
    trust: bool = False,
    progress: Callable[[str], None] | None = None,
    notice: Callable[[str], None] | None = None,
    takes_longer: Callable[[float], None] | None = None,
) -> Fit:
    """Order and place the network in `model` for least memory on `target`; verify, measure, and write `output`.

    `output`: the file to write; without it nothing is written. `target`: by default tflm for .tflite, ort for .onnx and
    torch for .pt2. `shapes`: of inputs, by name. `time_limit_s`: seconds that the searches share; runs in the runtime,
    and placing plans in strips, take more. `work_limit`: states of each search, or choices of strips. Where only it
    limits the search (`time_limit_s=math.inf`), the plans do not depend on the load. `seed`: of random choices.

    `ram_bytes`: bytes that may be measured, or that the arena may take if nothing is. Where no plan fits, segments of
    .tflite and .onnx files are computed in strips of rows, and the cheapest plan found that fits ships. `max_recompute`
    limits extra MACs, as a share (0 to 1) of the network's, and `strips` the strips of one segment. Either of them
    without `ram_bytes` asks for the least memory in strips. `front`: also measure a few plans in strips.

    `rewrite`: "auto" also rewrites the graph where that lowers the peak; "off" never does. `inexact`: also compute
    quantised sums part by part, which rounds each part. `int8`: fit the exact int8 form of a uint8 file, which TFLite
    Micro runs; its inputs and outputs are those of the file less 128. `kernels`: the library whose kernels run the file
    in TFLite Micro ("reference", "cmsis-nn-dsp" or "cmsis-nn-mve"). Results may then lie over inputs where its loops
    allow that, and with other kernels the file is wrong (None: nothing overlaps). `slower`: leave out files that are
    known to take more than this many times as long as the original in ONNX Runtime: the lower end of the confidence
    interval is above. `on_chip`: sizes in bytes for which off-chip traffic is simulated. `session`: where to write a
    program that opens `output` by the measured settings. `trust`: PyTorch may load a .pt2 file, and run code in it.
    `progress` is told each step; `notice`, before the searches, that the runtime does not run `model` and that the
    verdict about `ram_bytes` will therefore not be "fits"; `takes_longer`, how many seconds runs in the runtime
    will take in addition to `time_limit_s`, estimated from a run of the original.

    Raises InfeasibleError if `ram_bytes` is proven too little, LimitReached if it was too little for what was found, or
    nothing was measured; other DownsetErrors for bad input. No output is written then.
    """
    tell, longer = progress or unheard, takes_longer or unheard
    path = Path(model)
    chosen_target = with_overlaps(target_of(path, target), kernels)
    check_work_limit(work_limit)
    check_options(time_limit_s, rewrite, on_chip)
    check_strips(max_recompute, strips)
    check_slower(slower, chosen_target)
    if output is not None:
        check_result_path(path, output)
    if session is not None:
        check_session(path, chosen_target, output, session)
    options: dict[str, object] = {
        "inexact": inexact,
        "kernels": kernels,
        "int8": int8,
        "slower": slower,
        "work_limit": work_limit,
        "trust": trust,
        "output": output,
        "session": session,
    }
    stated = {
        "shapes": shapes,
        "target": chosen_target.name,
        "time_limit_s": None if time_limit_s == math.inf else time_limit_s,
        "rewrite": rewrite,
        "ram_bytes": ram_bytes,
        "strips": strips,
        "front": front,
        "max_recompute": max_recompute,
        "on_chip": tuple(on_chip),
    }
    call = fit_call(model, stated | options)
    with tempfile.TemporaryDirectory(prefix="downset-") as scratch, reusing():
        converted: list[str] = []
        if int8:
            tell("writing the int8 form")
            path, converted = as_int8(path, Path(scratch) / "int8", seed=seed)
        job = Job(path, chosen_target, shapes, seed, Path(scratch), trust, time_limit_s, work_limit, kernels)
        executed, notes = _executed_file(job)
        notes = [*converted, *notes]
        graph = _load(job, executed)
        if WRITERS[job.form].weights_outside:
            link_weights(path, job.scratch)  # what is written there refers to them
            if output is not None:
                check_output(output, source=[path, *weights_beside(graph)])
                check_room_for_weights(path, Path(output))
        tell("placing the original")
        before = arena_as_placed(graph, tuple(range(len(graph.ops))), job.target, time_limit_s)
        if job.target.measures:
            tell(f"running the original in {job.target.name}")
        began = time.perf_counter()
        originals, refused = measure(job, [Candidate("original", job.path, before.arena_bytes)])
        original_s = time.perf_counter() - began
        if originals[0].workspaces:
            graph = with_workspaces(graph, originals[0].workspaces)
            before = arena_as_placed(graph, tuple(range(len(graph.ops))), job.target, time_limit_s)
            originals = [replace(originals[0], arena_bytes=before.arena_bytes)]
            notes = [*notes, note_workspaces(graph, originals[0])]
        int8_form, told = int8_note(path) if refused and job.target.name == "tflm" else (False, [])
        refused = [*refused, *told]
        if originals[0].measured is not None:
            longer(runs_s(job, original_s, 1, deciding=slower is not None))
        if refused and ram_bytes is not None:
            (notice or unheard)(early_verdict(before, ram_bytes, refused))
        tell("planning the order and the arena")
        wanted = rewrite == "auto" and WRITERS[job.form].rewritten and bool(partition_sites(graph, inexact=inexact))
        asked = max_recompute is not None or strips is not None
        jobs = _jobs(job, graph)
        # The arena of the original took up to 0.2.
        share_s = 0.8 * time_limit_s / ((1 + wanted) * len(jobs) + (asked or ram_bytes is not None))
        limits = PartialLimits(max_recompute, strips, work_limit, time_limit_s=share_s)
        plan, *others = _plans(jobs, graph, share_s)
        verify(graph, plan.together.order, plan.together.arena)

        candidates = list_candidates(job, executed, plan, before)
        if wanted:
            tell("trying rewrites")
            more, said = _rewritten(jobs, plan, share_s, inexact=inexact)
            candidates, notes = candidates + more, notes + said
        if asked and ram_bytes is None:
            more, said = _in_strips(job, [plan, *others], limits)
            candidates, notes = candidates + more, notes + said
        if originals[0].measured is not None:
            longer(runs_s(job, original_s, len(candidates), deciding=slower is not None))
            tell(f"running {counted(len(candidates), 'candidate')} in {job.target.name}")
        candidates, said = _measured(job, originals, candidates)
        said = [*refused, *said]
        searched, narrowed = None, narrowing(job)
        left_bytes = None if ram_bytes is None else ram_bytes - kernel_needs(plan.graph, kernels).most_bytes
        if left_bytes is not None:
            candidates, more_said, searched = _within(job, [plan, *others], limits, candidates, left_bytes, narrowed)
            said = [*said, *more_said]
        too_slow: set[str] = set()
        while True:
            chosen, outputs, considered, why = choose(job, candidates, narrowed, slower, too_slow, left_bytes)
            rows, faster, also = tell_apart(job, chosen, considered, narrowed)
            if not known_slower(rows, chosen, slower):
                break
            too_slow.add(chosen.label)
        tell("writing the result")
        costs = [*note_operators(job, chosen), *note_file_size(job, chosen), *note_growth(rows)]
        result = summarise(job, plan, before, candidates, chosen, outputs, [*notes, *said, *why, *also, *costs])
        result = replace(
            with_sessions(result, chosen, rows, faster),
            model=str(model),
            int8_form=int8_form,
            command=call,
            versions=versions_of_target(job.target.name),
            seed=seed,
        )
        if result.measured is not None and job.target.name == "tflm":
            tell("timing the original and what ships")
            before_s, latency = run_times(candidates[0], chosen, seed=seed)
            result = replace(result, measured=replace(result.measured, before_s=before_s, latency=latency))
        if front:
            result = _with_front(job, plan, limits, searched, candidates[0], chosen, result)
        if not (asked or front) and (ram_bytes is None or searched is not None):
            changed = {
                "shapes": shapes,
                "time_limit_s": None if time_limit_s in (DEFAULT_TIME_LIMIT_S, math.inf) else time_limit_s,
                "target": target,
                "rewrite": None if rewrite == "auto" else rewrite,
            }
            call = fit_call(model, changed | options)
            tell("looking for segments in strips")
            result = replace(result, in_strips=offer_strips(job, searched or plan, candidates[0], result, call))
        if result.session is not None:
            tell(f"running the program that opens it in {PROCESSES} processes")
            result = run_program(job, chosen, result)
        result = check_ram(result, ram_bytes, searched)
        if on_chip:
            result = replace(result, traffic=simulate_traffic(graph, result, on_chip))
        if output is not None:
            result = ship(job, chosen, result, output=Path(output), session=None if session is None else Path(session))
    return result


def _jobs(job: Job, graph: Graph) -> list[Job]:
    """The job, and where results may overlap inputs also the job without overlaps. Its plans may be better, since the
    search with overlaps covers less in the same time."""
    model = memory_model(job.target.memory)
    if model.kernels is None or not any(order_problem(graph, model).in_place):
        return [job]
    apart = replace(job.target, memory=without_overlaps(model).name)  # type: ignore[arg-type]
    return [job, replace(job, target=apart, kernels=None)]


def _plans(jobs: Sequence[Job], graph: Graph, time_limit_s: float) -> list[PlannedGraph]:
    """The plan of each job, the smallest arena first; of plans with the same order only the first."""
    plans = [PlannedGraph(graph, _plan(job, graph, time_limit_s)) for job in jobs]
    ranked = sorted(plans, key=lambda plan: plan.together.arena.arena_bytes)
    return list({plan.together.order.steps: plan for plan in reversed(ranked)}.values())[::-1]


def _rewritten(
    jobs: Sequence[Job], plan: PlannedGraph, time_limit_s: float, *, inexact: bool
) -> tuple[list[Candidate], list[str]]:
    """Files of the network with concatenations taken apart, where that lowers the peak and the plan; and notes."""
    planned = []
    try:
        for job in jobs:
            chosen = choose_rewrites(
                plan.graph,
                memory=job.target.memory,
                inexact=inexact,
                time_limit_s=0.6 * time_limit_s,
                work_limit=job.work_limit,
            )
            better = _planned_better(job, plan, chosen.graph, chosen.rewrites, 0.4 * time_limit_s)
            planned += [] if better is None else [better]
        if not planned:
            return [], []
        best = min(planned, key=lambda one: one.together.arena.arena_bytes)
        return write_planned(jobs[0], replace(best, inexact=inexact), "rewritten"), []
    except UnsupportedError as error:
        return [], [Message("not rewritten: ", error.message)]


def _in_strips(job: Job, plans: Sequence[PlannedGraph], limits: PartialLimits) -> tuple[list[Candidate], list[str]]:
    """Files that compute segments in strips, where that lowers the peak; and notes."""
    try:
        files = least_in_strips(job, _searches(job, plans, limits))
    except UnsupportedError as error:
        return [], [Message("not computed in strips: ", error.message)]
    graphs = [file.plan.graph for file in files[:1] if file.plan is not None]
    said = [arithmetic(plans[0].graph, graph) for graph in graphs]
    return files, said or ["not computed in strips: that lowers no peak"]


def _searches(job: Job, plans: Sequence[PlannedGraph], limits: PartialLimits) -> list[StripSearch]:
    """A search for strips in each planned order."""
    share = replace(limits, time_limit_s=limits.time_limit_s / len(plans))
    return [search_strips(job, plan, share) for plan in plans]


def _measured(
    job: Job, originals: Sequence[Candidate], others: Sequence[Candidate]
) -> tuple[list[Candidate], list[str]]:
    """The candidates, the original first as it was measured before, and notes. All are measured, or none."""
    measured, notes = measure(job, others, original=originals[0])
    if any(item.measured is None for item in measured):
        return [replace(originals[0], measured=None, settings=None), *measured], notes
    return [*originals, *measured], notes


def _within(
    job: Job,
    plans: Sequence[PlannedGraph],
    limits: PartialLimits,
    candidates: list[Candidate],
    ram_bytes: int,
    narrowed: Narrowed,
) -> tuple[list[Candidate], list[str], StripSearch | None]:
    """(candidates, notes, search). Where no candidate fits, files in strips are made; if one of them fits, only the
    original and these are candidates. `search`: the first search for strips, or None."""
    original = candidates[0]
    beside = original.measured["total_bytes"] - original.arena_bytes if original.measured else 0
    beside = max(beside, 0) if job.target.fixed_overhead else 0
    if any(stays_within(item, ram_bytes, beside, narrowed) for item in candidates):
        return candidates, [], None
    try:
        searches = _searches(job, plans, limits)
        fits = partial(stays_within, narrowed=narrowed)
        files, one_fits, notes = strips_within(job, searches, original, ram_bytes, beside, fits)
    except UnsupportedError as error:
        return candidates, [Message("not computed in strips: ", error.message)], None
    notes += [arithmetic(plans[0].graph, file.plan.graph) for file in files[:1] if file.plan is not None]
    return [original, *files] if one_fits else [*candidates, *files], notes, searches[0]


def _with_front(
    job: Job,
    plan: PlannedGraph,
    limits: PartialLimits,
    searched: StripSearch | None,
    original: Candidate,
    chosen: Candidate,
    result: Fit,
) -> Fit:
    """The result with the front of plans in strips, a few of them measured."""
    try:
        rows, notes = measured_front(job, searched or search_strips(job, plan, limits), original, chosen)
    except UnsupportedError as error:
        return replace(result, notes=(*result.notes, Message("no front: ", error.message)))
    return replace(result, front=rows, notes=(*result.notes, *notes))


def _planned_better(
    job: Job, plan: PlannedGraph, graph: Graph, rewrites: tuple[Rewrite, ...], time_limit_s: float
) -> PlannedGraph | None:
    """The rewritten graph planned, if its arena is smaller than that of the plan without rewriting."""
    if not rewrites:
        return None
    together = _plan(job, graph, time_limit_s)
    verify(graph, together.order, together.arena)
    smaller = together.arena.arena_bytes < plan.together.arena.arena_bytes
    return PlannedGraph(graph, together, rewrites) if smaller else None


def _plan(job: Job, graph: Graph, time_limit_s: float) -> Together:
    return plan_together(
        graph, memory=job.target.memory, time_limit_s=time_limit_s, work_limit=job.work_limit, seed=job.seed
    )


def _executed_file(job: Job) -> tuple[Path, list[str]]:
    """(the file that the runtime executes, notes): for ONNX Runtime the file's optimised form, else the model."""
    if job.target.prepare is None:
        return job.path, []
    prepared = job.scratch / "optimised" / job.path.name
    prepared.parent.mkdir()
    return prepared, job.target.prepare(job.path, prepared, job.shapes)


def _load(job: Job, executed: Path) -> Graph:
    if executed == job.path:
        return without_defaults(load(job.path, shapes=job.shapes, trust=job.trust))
    try:
        return without_defaults(load(executed, shapes=job.shapes))
    except LoadError as error:  # the message names the user's file, not the one made from it
        raise LoadError(error.message.edited(lambda words: words.replace(str(executed), str(job.path)))) from None
