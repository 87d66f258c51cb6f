"""The main job: a model file in, the same network needing less memory out, with proof, and checked by running both.

A target says what file the runtime would really execute and how it measures (`runtimes.targets`), a format what its
files can hold (`formats.writing`). What ships is the best *measured* candidate where the runtime can be asked, and the
best by its memory model elsewhere; the original is always among the candidates, so nothing gets worse.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from downset.errors import InvalidPlan, LoadError, UnsupportedError, UsageError
from downset.fitting.candidates import (
    Candidate,
    Job,
    Planned,
    arena_as_placed,
    compare,
    differences_elsewhere,
    list_candidates,
    write_planned,
)
from downset.fitting.measuring import known_slower, least, measure, tell_apart, time, without_slower
from downset.fitting.shipping import note_operators, ship
from downset.fitting.summary import BLOCK_BYTES, check_ram, simulate_traffic, summarise, with_sessions
from downset.formats.onnx.data_files import check_room_for_weights, link_weights, weights_beside
from downset.formats.onnx.fitted import fix_sizes
from downset.formats.reading import load
from downset.formats.whole_files import check_output
from downset.formats.writing import WRITERS
from downset.graph.core import Graph
from downset.graph.cost import macs
from downset.isolation import reusing
from downset.joint.check import verify
from downset.joint.order_and_arena import plan_together
from downset.plans import Rewrite
from downset.results import Comparison, Fit
from downset.rewrites.concat.choose import choose_rewrites
from downset.rewrites.concat.partition import partition_sites
from downset.rewrites.row_strips import StripedSegment, choose_row_strips
from downset.runtimes.targets import TARGETS, Target, TargetName, targets_of
from downset.text import format_bytes

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
    seed: int = 0,
    rewrite: RewriteName = "auto",
    inexact: bool = False,
    max_recompute: float = 0.0,
    on_chip: Sequence[int] = (),
    slower: float | None = None,
    session: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> Fit:
    """Order and place the network in `model` for least memory on `target`, verify, measure, and write `output`.

    `rewrite`: "auto" also tries graph rewriting where that lowers the peak ("off": never), with quantised sums part by
    part only if `inexact`. `max_recompute`: above 0, an .onnx file may also compute early segments strip by strip, with
    so much more arithmetic at most (a share of the network's multiply-adds). `on_chip`: sizes in bytes for which
    off-chip traffic is simulated. `slower`: a file is left out that is known to take more than so many times as long as
    the original in ONNX Runtime (None: whatever it takes); known means that the lower end of the confidence interval
    is above. `session`: where to write a program that opens `output` by the measured settings. `trust`: PyTorch may
    load a .pt2 file, and run what it brings (see `load`).

    Without `output` nothing is written. Raises InfeasibleError when it is proven that `ram_bytes` cannot suffice,
    LimitReached when it did not suffice but more search might help, and any other DownsetError for bad input; then
    nothing is written either.
    """
    path = Path(model)
    chosen_target = _target(path, target)
    _check_options(time_limit_s, rewrite, max_recompute, on_chip)
    _check_slower(slower, chosen_target)
    if output is not None:
        _check_output(path, output)
    if session is not None:
        _check_session(path, chosen_target, output, session)
    with tempfile.TemporaryDirectory(prefix="downset-") as scratch, reusing():
        job = Job(path, chosen_target, shapes, seed, Path(scratch), trust, time_limit_s)
        executed, notes = _executed_file(job)
        graph = _load(job, executed)
        if WRITERS[job.form].weights_outside:
            link_weights(path, job.scratch)  # what is written there refers to them
            if output is not None:
                check_output(output, source=[path, *weights_beside(graph)])
                check_room_for_weights(path, Path(output))
        before = arena_as_placed(graph, tuple(range(len(graph.ops))), job.target, time_limit_s)
        wanted = rewrite == "auto" and WRITERS[job.form].rewritten and bool(partition_sites(graph, inexact=inexact))
        share_s = 0.8 * time_limit_s / (1 + wanted + (max_recompute > 0))  # 0.2 went into the arena as it is
        plan = Planned(graph, plan_together(graph, memory=job.target.memory, time_limit_s=share_s, seed=seed))
        verify(graph, plan.together.order, plan.together.arena)

        candidates = list_candidates(job, executed, plan, before)
        if wanted:
            more, said = _rewritten(job, plan, share_s, inexact=inexact)
            candidates, notes = candidates + more, notes + said
        if max_recompute > 0:
            more, said = _in_strips(job, plan, share_s, max_recompute=max_recompute)
            candidates, notes = candidates + more, notes + said
        candidates, said = measure(job, candidates)
        narrowed = _narrowing(job)
        too_slow: set[str] = set()
        while True:
            chosen, outputs, considered, why = _choose(job, candidates, narrowed, slower, too_slow)
            rows, front, also = tell_apart(job, chosen, considered, narrowed)
            if not known_slower(rows, chosen, slower):
                break
            too_slow.add(chosen.label)
        result = summarise(
            job, plan, before, candidates, chosen, outputs, [*notes, *said, *why, *also, *note_operators(job, chosen)]
        )
        result = with_sessions(result, chosen, rows, front)
        check_ram(result, ram_bytes)
        if on_chip:
            result = replace(result, traffic=simulate_traffic(graph, result, on_chip))
        if output is not None:
            result = ship(job, chosen, result, output=Path(output), session=None if session is None else Path(session))
    return result


def _rewritten(job: Job, plan: Planned, time_limit_s: float, *, inexact: bool) -> tuple[list[Candidate], list[str]]:
    """Files of the network with concatenations taken apart, where that lowers the peak and the plan; and notes."""
    try:
        chosen = choose_rewrites(plan.graph, memory=job.target.memory, inexact=inexact, time_limit_s=0.6 * time_limit_s)
        better = _planned_better(job, plan, chosen.graph, chosen.rewrites, 0.4 * time_limit_s)
        if better is None:
            return [], []
        return write_planned(job, replace(better, inexact=inexact), "rewritten"), []
    except UnsupportedError as error:
        return [], [f"not rewritten: {error}"]


def _in_strips(
    job: Job, plan: Planned, time_limit_s: float, *, max_recompute: float
) -> tuple[list[Candidate], list[str]]:
    """Files that compute segments strip by strip, where that lowers the peak and the plan; and notes."""
    if not WRITERS[job.form].in_strips:
        able = " and ".join(suffix for suffix, writer in WRITERS.items() if writer.in_strips)
        return [], [f"not computed in strips: only {able} files are written so, not {job.form}"]
    try:
        found = choose_row_strips(
            plan.graph, memory=job.target.memory, max_recompute=max_recompute, time_limit_s=0.3 * time_limit_s
        )
        peaks = [found.peak_bytes_before, *(segment.peak_bytes for segment in found.segments)]
        rewrites = tuple(
            Rewrite(f"{segment.first} to {segment.last} in {segment.strips} strips", (), "row-wise", before - after)
            for segment, before, after in zip(found.segments, peaks, peaks[1:], strict=False)
        )
        better = _planned_better(job, plan, found.graph, rewrites, 0.4 * time_limit_s)
        files = write_planned(job, better, "strips") if better is not None else []
        for file in files:
            fix_sizes(file.path, job.shapes or {})  # rows are cut at these sizes
    except UnsupportedError as error:
        return [], [f"not computed in strips: {error}"]
    return files, [_arithmetic(found.segments, plan.graph)] if files else []


def _arithmetic(segments: Sequence[StripedSegment], graph: Graph) -> str:
    """Strips that drop rows nobody reads may compute less than the network did."""
    share = 100 * sum(segment.extra_macs for segment in segments) / macs(graph)
    return f"in strips the network computes {abs(share):.1f} % {'more' if share >= 0 else 'less'}"


def _planned_better(
    job: Job, plan: Planned, graph: Graph, rewrites: tuple[Rewrite, ...], time_limit_s: float
) -> Planned | None:
    """The rewritten graph planned, if its arena is smaller than that of the plan without rewriting."""
    if not rewrites:
        return None
    together = plan_together(graph, memory=job.target.memory, time_limit_s=time_limit_s, seed=job.seed)
    verify(graph, together.order, together.arena)
    smaller = together.arena.arena_bytes < plan.together.arena.arena_bytes
    return Planned(graph, together, rewrites) if smaller else None


Narrowed = Callable[[Candidate], Candidate]


def _narrowing(job: Job) -> Narrowed:
    """What gives a candidate the settings by which its arena holds least; each is asked for once."""
    known: dict[str, Candidate] = {}

    def narrowed(item: Candidate) -> Candidate:
        sessions = job.target.sessions
        if sessions is None or item.settings is None or not item.settings.arena:
            return item
        if item.label not in known:
            settings, taken = sessions.narrow(item.path, item.settings, shapes=job.shapes, seed=job.seed)
            known[item.label] = replace(item, settings=settings, measured=taken.nbytes)
        found = known[item.label]
        return replace(item, settings=found.settings, measured=found.measured)

    return narrowed


def _choose(
    job: Job, candidates: Sequence[Candidate], narrowed: Narrowed, slower: float | None, too_slow: Collection[str]
) -> tuple[Candidate, Comparison, list[Candidate], list[str]]:
    """The best file that computes the same, how its outputs compare, those among which it was chosen, and notes.
    Neither the head nor the total may grow; among equals the first. `too_slow`: labels of what is known to be so."""
    considered = [item for item in candidates if item.label not in too_slow and not item.head_grew(candidates[0])]
    timed, notes = time(job, considered, deciding=slower is not None)
    left, said = without_slower(timed, slower)
    notes += said
    while True:
        chosen = least(job, left, narrowed)
        try:
            outputs = compare(job, candidates, chosen)
            lost = min((item.arena_bytes for item in left if item.rewrites), default=chosen.arena_bytes)
            if not chosen.rewrites and lost < chosen.arena_bytes:
                notes.append(
                    f"rewriting would give an arena of {format_bytes(lost)} B, but the runtime took less memory in all "
                    "without it"
                )
            return chosen, outputs, left, notes + differences_elsewhere(job, candidates[0], chosen, outputs)
        except InvalidPlan as error:
            if not chosen.rewrites:
                raise
            notes.append(f"not rewritten: {error}")
            left = [item for item in left if not item.rewrites]


def _target(path: Path, target: str | None) -> Target:
    """The one asked for, or the first for files of this suffix."""
    known: dict[str, Target] = {row.name: row for row in targets_of(path.suffix.lower())}
    if not known:
        suffixes = dict.fromkeys(suffix for row in TARGETS.values() for suffix in row.suffixes)
        raise UsageError(f"{path}: fit reads {', '.join(suffixes)} files; for a plain graph use `downset order`")
    if target is None:
        return next(iter(known.values()))
    if target not in known:
        raise UsageError(f"target {target!r} does not run {path.suffix} files; choose {' or '.join(known)}")
    return known[target]


def _check_options(time_limit_s: float, rewrite: str, max_recompute: float, on_chip: Sequence[int]) -> None:
    if not time_limit_s > 0:
        raise UsageError(f"a time limit of {time_limit_s:g} s leaves no time; give more than 0")
    if rewrite not in ("auto", "off"):
        raise UsageError(f"rewrite is 'auto' or 'off', not {rewrite!r}")
    if not 0 <= max_recompute <= 1:
        raise UsageError(f"max_recompute is a share from 0 to 1, not {max_recompute:g}")
    if any(size < BLOCK_BYTES for size in on_chip):
        raise UsageError(f"on-chip memory of {min(on_chip)} bytes holds no block of {BLOCK_BYTES}; give at least that")


def _check_slower(slower: float | None, target: Target) -> None:
    if slower is None:
        return
    if not slower >= 1:
        raise UsageError(f"slower is a factor from 1, for example 1.1, not {slower:g}")
    if target.sessions is None:
        raise UsageError(f"what a file costs in time is measured for target ort only, not for {target.name}")


def _check_session(
    path: Path, target: Target, output: str | os.PathLike[str] | None, session: str | os.PathLike[str]
) -> None:
    if target.sessions is None:
        raise UsageError(f"a session is opened by settings in ONNX Runtime only (target ort), not in {target.name}")
    if output is None:
        raise UsageError("a session opens what is written: give an output, too")
    if Path(session).resolve() == Path(output).resolve():
        raise UsageError(f"output and session both name {session}; give each a file of its own")
    check_output(session, source=path)


def _check_output(path: Path, output: str | os.PathLike[str]) -> None:
    check_output(output, source=path)
    if Path(output).suffix.lower() != path.suffix.lower():
        raise UsageError(f"output {output} must end in {path.suffix}, like the model")


def _executed_file(job: Job) -> tuple[Path, list[str]]:
    """The file whose operators the runtime executes (for ONNX Runtime its own optimised form, else the model), and
    notes."""
    if job.target.prepare is None:
        return job.path, []
    prepared = job.scratch / "optimised" / job.path.name
    prepared.parent.mkdir()
    return prepared, job.target.prepare(job.path, prepared, job.shapes)


def _load(job: Job, executed: Path) -> Graph:
    if executed == job.path:
        return load(job.path, shapes=job.shapes, trust=job.trust)
    try:
        return load(executed, shapes=job.shapes)
    except LoadError as error:  # it is the user's file that is at fault, whatever was made of it
        raise LoadError(str(error).replace(str(executed), str(job.path))) from None
