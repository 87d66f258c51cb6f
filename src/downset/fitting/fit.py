"""The main job: a model file in, the same network needing less memory out, with proof, and checked by running both.

Each target is a short recipe below: what file the runtime would really execute, which candidate files could be shipped,
and how the runtime measures them. What ships is the best *measured* candidate where the runtime can be asked, and the
best by its memory model elsewhere; the original is always among the candidates, so nothing gets worse.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from downset.arenas.check import verify
from downset.errors import InvalidPlan, LoadError, UnsupportedError, UsageError
from downset.fitting.candidates import (
    Candidate,
    Job,
    Planned,
    arena_as_placed,
    compare,
    list_candidates,
    measure,
    write_planned,
)
from downset.fitting.summary import BLOCK_BYTES, check_ram, simulate_traffic, summarise
from downset.formats.reading import check_readable, load
from downset.formats.whole_files import check_output, copy_whole
from downset.graph.core import Graph
from downset.graph.cost import macs
from downset.joint.order_and_arena import plan_together
from downset.plans import Rewrite
from downset.results import Comparison, Fit
from downset.rewrites.concat.choose import choose_rewrites
from downset.rewrites.concat.partition import partition_sites
from downset.rewrites.row_strips import choose_row_strips
from downset.text import format_bytes

__all__ = ["fit"]

_TARGETS = {".tflite": ("tflm", "litert"), ".onnx": ("ort", "torch"), ".pt2": ("torch",)}


def fit(
    model: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    target: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ram_bytes: int | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
    rewrite: str = "auto",
    inexact: bool = False,
    max_recompute: float = 0.0,
    on_chip: Sequence[int] = (),
    trust: bool = False,
) -> Fit:
    """Order and place the network in `model` for least memory on `target`, verify, measure, and write `output`.

    `rewrite`: "auto" also tries graph rewriting where that lowers the peak ("off": never), with quantised sums part by
    part only if `inexact`. `max_recompute`: above 0, an .onnx file may also compute early segments strip by strip, with
    so much more arithmetic at most (a share of the network's multiply-adds). `on_chip`: sizes in bytes for which
    off-chip traffic is simulated. `trust`: PyTorch may load a .pt2 file, and run what it brings (see `load`).

    Without `output` nothing is written. Raises InfeasibleError when it is proven that `ram_bytes` cannot suffice,
    LimitReached when it did not suffice but more search might help, and any other DownsetError for bad input; then
    nothing is written either.
    """
    path = Path(model)
    target = _target(path, target)
    _check_options(time_limit_s, rewrite, max_recompute, on_chip)
    if output is not None:
        _check_output(path, output)
    with tempfile.TemporaryDirectory(prefix="downset-") as scratch:
        job = Job(path, target, shapes, seed, Path(scratch), [], trust)
        executed = _executed_file(job)
        graph = _load(job, executed)
        before = arena_as_placed(graph, tuple(range(len(graph.ops))), target, time_limit_s)
        wanted = rewrite == "auto" and job.form != ".pt2" and bool(partition_sites(graph, inexact=inexact))
        share_s = 0.5 * time_limit_s if wanted else time_limit_s
        plan = Planned(graph, plan_together(graph, memory=target, time_limit_s=share_s, seed=seed))
        verify(graph, plan.together.order, plan.together.arena)

        candidates = list_candidates(job, executed, plan, before)
        if wanted:
            candidates += _rewritten(job, plan, share_s, inexact=inexact)
        if max_recompute > 0:
            candidates += _in_strips(job, plan, share_s, max_recompute=max_recompute)
        measure(job, candidates)
        chosen, outputs = _choose(job, candidates)
        result = summarise(job, plan, before, candidates, chosen, outputs)
        check_ram(result, ram_bytes)
        if on_chip:
            result = replace(result, traffic=simulate_traffic(graph, result, on_chip))
        if output is not None:
            _bring_external_weights(job, chosen, Path(output))
            copy_whole(chosen.path, Path(output))
            result = replace(result, output_path=str(output))
    return result


def _rewritten(job: Job, plan: Planned, time_limit_s: float, *, inexact: bool) -> list[Candidate]:
    """Files of the network with concatenations taken apart, where that lowers the peak and the plan."""
    try:
        chosen = choose_rewrites(plan.graph, memory=job.target, inexact=inexact, time_limit_s=0.6 * time_limit_s)
        better = _planned_better(job, plan, chosen.graph, chosen.rewrites, 0.4 * time_limit_s)
        return write_planned(job, replace(better, inexact=inexact), "rewritten") if better is not None else []
    except UnsupportedError as error:
        job.notes.append(f"not rewritten: {error}")
        return []


def _in_strips(job: Job, plan: Planned, time_limit_s: float, *, max_recompute: float) -> list[Candidate]:
    """Files that compute segments strip by strip, where that lowers the peak and the plan."""
    if job.form != ".onnx":
        job.notes.append(f"not computed in strips: only .onnx files are written so, not {job.form}")
        return []
    try:
        found = choose_row_strips(
            plan.graph, memory=job.target, max_recompute=max_recompute, time_limit_s=0.3 * time_limit_s
        )
        peaks = [found.peak_bytes_before, *(segment.peak_bytes for segment in found.segments)]
        rewrites = tuple(
            Rewrite(f"{segment.first} to {segment.last} in {segment.strips} strips", (), "row-wise", before - after)
            for segment, before, after in zip(found.segments, peaks, peaks[1:], strict=False)
        )
        better = _planned_better(job, plan, found.graph, rewrites, 0.4 * time_limit_s)
        files = write_planned(job, better, "strips") if better is not None else []
    except UnsupportedError as error:
        job.notes.append(f"not computed in strips: {error}")
        return []
    if files:
        extra = sum(segment.extra_macs for segment in found.segments) / macs(plan.graph)
        job.notes.append(f"in strips the network computes {100 * extra:.1f} % more")
    return files


def _planned_better(
    job: Job, plan: Planned, graph: Graph, rewrites: tuple[Rewrite, ...], time_limit_s: float
) -> Planned | None:
    """The rewritten graph planned, if its arena is smaller than that of the plan without rewriting."""
    if not rewrites:
        return None
    together = plan_together(graph, memory=job.target, time_limit_s=time_limit_s, seed=job.seed)
    verify(graph, together.order, together.arena)
    smaller = together.arena.arena_bytes < plan.together.arena.arena_bytes
    return Planned(graph, together, rewrites) if smaller else None


def _choose(job: Job, candidates: Sequence[Candidate]) -> tuple[Candidate, Comparison]:
    """The best file that computes the same: neither the head nor the total may grow; among equals the first."""
    left = [item for item in candidates if not item.head_grew(candidates[0])]
    while True:
        chosen = min(left, key=Candidate.cost)
        try:
            outputs = compare(job, candidates, chosen)
            lost = min((item.arena_bytes for item in left if item.rewrites), default=chosen.arena_bytes)
            if not chosen.rewrites and lost < chosen.arena_bytes:
                job.notes.append(
                    f"rewriting would give an arena of {format_bytes(lost)} B, but the runtime took less memory in all "
                    "without it"
                )
            return chosen, outputs
        except InvalidPlan as error:
            if not chosen.rewrites:
                raise
            job.notes.append(f"not rewritten: {error}")
            left = [item for item in left if not item.rewrites]


def _target(path: Path, target: str | None) -> str:
    known = _TARGETS.get(path.suffix.lower())
    if known is None:
        raise UsageError(f"{path}: fit reads {', '.join(_TARGETS)} files; for a plain graph use `downset order`")
    if target is None:
        return known[0]
    if target not in known:
        raise UsageError(f"target {target!r} does not run {path.suffix} files; choose {' or '.join(known)}")
    return target


def _check_options(time_limit_s: float, rewrite: str, max_recompute: float, on_chip: Sequence[int]) -> None:
    if not time_limit_s > 0:
        raise UsageError(f"a time limit of {time_limit_s:g} s leaves no time; give more than 0")
    if rewrite not in ("auto", "off"):
        raise UsageError(f"rewrite is 'auto' or 'off', not {rewrite!r}")
    if not 0 <= max_recompute <= 1:
        raise UsageError(f"max_recompute is a share from 0 to 1, not {max_recompute:g}")
    if any(size < BLOCK_BYTES for size in on_chip):
        raise UsageError(f"on-chip memory of {min(on_chip)} bytes holds no block of {BLOCK_BYTES}; give at least that")


def _check_output(path: Path, output: str | os.PathLike[str]) -> None:
    check_output(output, source=path)
    if Path(output).suffix.lower() != path.suffix.lower():
        raise UsageError(f"output {output} must end in {path.suffix}, like the model")


def _bring_external_weights(job: Job, chosen: Candidate, output: Path) -> None:
    """Weights outside an .onnx file lie beside it under the names it refers to; what is there already is left alone.
    ONNX Runtime's optimised forms carry their weights inside."""
    if job.form != ".onnx" or chosen.name == "optimised" or output.parent.resolve() == job.path.parent.resolve():
        return
    from downset.formats.onnx.write import external_files

    for name in external_files(chosen.path):
        target = output.parent / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_whole(job.path.parent / name, target)


def _executed_file(job: Job) -> Path:
    """The file whose operators the runtime executes: for ONNX Runtime its own optimised form, else the model."""
    if job.target != "ort":
        return job.path
    from downset.formats.onnx.model_file import check_onnx
    from downset.runtimes import ort

    check_readable(job.path)
    check_onnx(job.path, shapes=job.shapes)  # a bad file is our one-line error, not the runtime's
    prepared = job.scratch / "optimised" / job.path.name
    prepared.parent.mkdir()
    ort.optimise_offline(job.path, prepared, shapes=job.shapes)
    job.notes.append("ONNX Runtime's offline optimisation (EXTENDED) was applied before ordering")
    return prepared


def _load(job: Job, executed: Path) -> Graph:
    if executed == job.path:
        return load(job.path, shapes=job.shapes, trust=job.trust)
    try:
        return load(executed)
    except LoadError as error:  # it is the user's file that is at fault, whatever was made of it
        raise LoadError(str(error).replace(str(executed), str(job.path))) from None
