"""The main job: a model file in, the same network needing less memory out, with proof, and checked by running both.

Each target is a short recipe below: what file the runtime would really execute, which candidate files could be shipped,
and how the runtime measures them. What ships is the best *measured* candidate where the runtime can be asked, and the
best by its memory model elsewhere; the original is always among the candidates, so nothing gets worse.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from downset.candidates import Candidate, Planned, arena_as_placed, compare, list_candidates, measure, write_planned
from downset.compare import Comparison
from downset.cost import macs
from downset.errors import InfeasibleError, InvalidPlan, LimitReached, UnsupportedError, UsageError
from downset.graph import Graph
from downset.liveness import order_problem, peak_bytes
from downset.load import check_readable, load
from downset.plans import Arena
from downset.rewrite.choose import Rewrite, choose_rewrites
from downset.rewrite.concat_partition import partition_sites
from downset.rewrite.row_strips import choose_row_strips
from downset.together import Together, plan_together
from downset.traffic import Traffic, off_chip_traffic
from downset.units import format_bytes
from downset.verify import verify

__all__ = ["Figure", "Fit", "Measured", "OnChip", "fit"]

_BLOCK_BYTES = 1024
"""What moves at a time between the chip and the memory beside it, in the simulation."""
_TARGETS = {".tflite": ("tflm", "litert"), ".onnx": ("ort", "torch"), ".pt2": ("torch",)}


@dataclass(frozen=True, slots=True)
class Figure:
    """Bytes before and after, and the proven bound that no order and placement can pass."""

    before: int
    after: int
    bound: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """What the runtime itself says it took, in bytes. `details`: its own breakdown by candidate."""

    runtime: str
    before: int
    after: int
    details: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OnChip:
    """Off-chip traffic, simulated, of the file before and after, with so much memory on chip."""

    on_chip_bytes: int
    before: Traffic
    after: Traffic


@dataclass(frozen=True, slots=True)
class Fit:
    """What `fit` found. `shipped`: original, optimised, order, order+offsets, rewritten or rewritten+offsets. `graph`
    and `together` are what is shipped, or would be if the runtime had not taken less for another file; `before` is the
    arena of the original. `rewrites` were made in what is shipped."""

    model: str
    target: str
    graph: Graph
    before: Arena
    together: Together
    peak: Figure
    arena: Figure
    shipped: str
    measured: Measured | None
    outputs: Comparison
    output_path: str | None
    notes: tuple[str, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    traffic: tuple[OnChip, ...] = ()


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
) -> Fit:
    """Order and place the network in `model` for least memory on `target`, verify, measure, and write `output`.

    `rewrite`: "auto" also tries graph rewriting where that lowers the peak ("off": never), with quantised sums part by
    part only if `inexact`. `max_recompute`: above 0, an .onnx file may also compute early segments strip by strip, with
    so much more arithmetic at most (a share of the network's multiply-adds). `on_chip`: sizes in bytes for which
    off-chip traffic is simulated.

    Without `output` nothing is written. Raises InfeasibleError when it is proven that `ram_bytes` cannot suffice,
    LimitReached when it did not suffice but more search might help, and any other DownsetError for bad input; then
    nothing is written either.
    """
    path = Path(model)
    target = _target(path, target)
    if output is not None:
        _check_output(path, Path(output))
    with tempfile.TemporaryDirectory(prefix="downset-") as scratch:
        notes: list[str] = []
        executed = _executed_file(path, target, shapes, Path(scratch), notes)
        graph = load(executed, shapes=shapes if executed == path else None)
        file_order = tuple(range(len(graph.ops)))
        before = arena_as_placed(graph, file_order, target, time_limit_s)
        wanted = rewrite == "auto" and path.suffix != ".pt2" and bool(partition_sites(graph, inexact=inexact))
        share_s = 0.5 * time_limit_s if wanted else time_limit_s
        plan = Planned(graph, plan_together(graph, memory=target, time_limit_s=share_s, seed=seed))
        verify(graph, plan.together.order, plan.together.arena)

        candidates = list_candidates(path, executed, plan, before, target, Path(scratch))
        if wanted:
            candidates += _rewritten(path, plan, target, Path(scratch), share_s, seed, inexact, notes)
        if max_recompute > 0:
            candidates += _in_strips(path, plan, target, Path(scratch), share_s, seed, max_recompute, notes)
        measure(candidates, target, shapes, seed, notes)
        chosen, outputs = _choose(candidates, target, shapes, seed, notes)
        result = _result(path, target, plan, before, candidates, chosen, outputs, notes)
        _check_ram(result, ram_bytes)
        if on_chip:
            result = replace(result, traffic=_traffic(graph, result, on_chip))
        if output is not None:
            _bring_external_weights(chosen, path, Path(output))
            place_file(chosen.path, Path(output))
            result = replace(result, output_path=str(output))
    return result


def _rewritten(
    path: Path,
    plan: Planned,
    target: str,
    scratch: Path,
    time_limit_s: float,
    seed: int,
    inexact: bool,
    notes: list[str],
) -> list[Candidate]:
    """Files of the network with concatenations taken apart, where that lowers the peak and the plan."""
    try:
        chosen = choose_rewrites(plan.graph, memory=target, inexact=inexact, time_limit_s=0.6 * time_limit_s)
        return _files_of(
            path, plan, chosen.graph, chosen.rewrites, target, scratch, 0.4 * time_limit_s, seed, "rewritten", inexact
        )
    except UnsupportedError as error:
        notes.append(f"not rewritten: {error}")
        return []


def _in_strips(
    path: Path,
    plan: Planned,
    target: str,
    scratch: Path,
    time_limit_s: float,
    seed: int,
    max_recompute: float,
    notes: list[str],
) -> list[Candidate]:
    """Files that compute segments strip by strip, where that lowers the peak and the plan."""
    if path.suffix != ".onnx":
        notes.append(f"not computed in strips: only .onnx files are written so, not {path.suffix}")
        return []
    try:
        found = choose_row_strips(
            plan.graph, memory=target, max_recompute=max_recompute, time_limit_s=0.3 * time_limit_s
        )
        peaks = [found.peak_bytes_before, *(segment.peak_bytes for segment in found.segments)]
        rewrites = tuple(
            Rewrite(f"{segment.first} to {segment.last} in {segment.strips} strips", (), "row-wise", before - after)
            for segment, before, after in zip(found.segments, peaks, peaks[1:], strict=False)
        )
        files = _files_of(path, plan, found.graph, rewrites, target, scratch, 0.4 * time_limit_s, seed, "strips")
    except UnsupportedError as error:
        notes.append(f"not computed in strips: {error}")
        return []
    if files:
        extra = sum(segment.extra_macs for segment in found.segments) / macs(plan.graph)
        notes.append(f"in strips the network computes {100 * extra:.1f} % more")
    return files


def _files_of(
    path: Path,
    plan: Planned,
    graph: Graph,
    rewrites: tuple[Rewrite, ...],
    target: str,
    scratch: Path,
    time_limit_s: float,
    seed: int,
    name: str,
    inexact: bool = False,
) -> list[Candidate]:
    """The rewritten graph planned and written, if its arena is smaller than that of the plan without rewriting."""
    if not rewrites:
        return []
    together = plan_together(graph, memory=target, time_limit_s=time_limit_s, seed=seed)
    verify(graph, together.order, together.arena)
    if together.arena.arena_bytes >= plan.together.arena.arena_bytes:
        return []
    return write_planned(path, Planned(graph, together, rewrites, inexact), target, scratch, name)


def _choose(
    candidates: list[Candidate], target: str, shapes: Mapping[str, tuple[int, ...]] | None, seed: int, notes: list[str]
) -> tuple[Candidate, Comparison]:
    """The best file that computes the same: neither the head nor the total may grow; among equals the first."""
    left = [item for item in candidates if not item.head_grew(candidates[0])]
    while True:
        chosen = min(left, key=Candidate.cost)
        try:
            outputs = compare(candidates, chosen, target, shapes, seed)
            lost = min((item for item in left if item.rewrites and not chosen.rewrites), key=_arena, default=None)
            if lost is not None and lost.arena_bytes < chosen.arena_bytes:
                notes.append(
                    f"rewriting would give an arena of {format_bytes(lost.arena_bytes)} B, but the runtime took less "
                    "memory in all without it"
                )
            return chosen, outputs
        except InvalidPlan as error:
            if not chosen.rewrites:
                raise
            notes.append(f"not rewritten: {error}")
            left = [item for item in left if not item.rewrites]


def _arena(candidate: Candidate) -> int:
    return candidate.arena_bytes


def _traffic(graph: Graph, result: Fit, on_chip: Sequence[int]) -> tuple[OnChip, ...]:
    """Of the order the runtime would execute anyway, and of what is shipped."""
    file_order = tuple(range(len(graph.ops)))
    moved = result.shipped not in ("original", "optimised")
    after = (result.graph, result.together.order.steps) if moved else (graph, file_order)
    found = []
    for size in on_chip:
        block_bytes = min(_BLOCK_BYTES, size)
        one, other = (
            off_chip_traffic(item, steps, size, block_bytes=block_bytes) for item, steps in ((graph, file_order), after)
        )
        found.append(OnChip(size, one, other))
    return tuple(found)


def _target(path: Path, target: str | None) -> str:
    known = _TARGETS.get(path.suffix.lower())
    if known is None:
        raise UsageError(f"{path}: fit reads {', '.join(_TARGETS)} files; for a plain graph use `downset order`")
    if target is None:
        return known[0]
    if target not in known:
        raise UsageError(f"target {target!r} does not run {path.suffix} files; choose {' or '.join(known)}")
    return target


def _check_output(path: Path, output: Path) -> None:
    """Say what is wrong with the output path before the work starts, not after it."""
    if output.suffix.lower() != path.suffix.lower():
        raise UsageError(f"output {output} must end in {path.suffix}, like the model")
    if output.exists() and path.exists() and output.samefile(path):
        raise UsageError(f"output {output} is the model itself; choose another name")
    if output.is_dir():
        raise UsageError(f"output {output} is a directory; name a file")
    if not output.parent.is_dir():
        raise UsageError(f"output directory {output.parent} does not exist")
    if not os.access(output.parent, os.W_OK):
        raise UsageError(f"output directory {output.parent} is not writable")


def place_file(source: Path, output: Path) -> None:
    """Copy beside the destination, then rename: an existing file is replaced whole or not at all."""
    beside = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        shutil.copyfile(source, beside)
        beside.replace(output)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _bring_external_weights(chosen: Candidate, path: Path, output: Path) -> None:
    """Weights outside an .onnx file lie beside it under the names it refers to; what is there already is left alone.
    ONNX Runtime's optimised forms carry their weights inside."""
    if path.suffix != ".onnx" or chosen.name == "optimised" or output.parent.resolve() == path.parent.resolve():
        return
    from downset.export.onnx import external_files

    for name in external_files(chosen.path):
        target = output.parent / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            place_file(path.parent / name, target)


def _executed_file(
    path: Path, target: str, shapes: Mapping[str, tuple[int, ...]] | None, scratch: Path, notes: list[str]
) -> Path:
    """The file whose operators the runtime executes: for ONNX Runtime its own optimised form, else the model."""
    if target != "ort":
        return path
    from downset.load.onnx import check_onnx
    from downset.run import ort

    check_readable(path)
    check_onnx(path, shapes=shapes)  # a bad file is our one-line error, not the runtime's

    prepared = scratch / "optimised" / path.name
    prepared.parent.mkdir()
    ort.optimise_offline(path, prepared, shapes=shapes)
    notes.append("ONNX Runtime's offline optimisation (EXTENDED) was applied before ordering")
    return prepared


def _result(
    path: Path,
    target: str,
    plan: Planned,
    before: Arena,
    candidates: list[Candidate],
    chosen: Candidate,
    outputs: Comparison,
    notes: list[str],
) -> Fit:
    graph, together = plan.graph, plan.together
    if chosen.plan is not None:
        graph, together = chosen.plan.graph, chosen.plan.together
    order, arena = together.order, together.arena
    kept = chosen.name in ("original", "optimised")
    file_peak = peak_bytes(order_problem(plan.graph, target), range(len(plan.graph.ops)))
    after_peak = file_peak if kept else order.peak_bytes
    bound = int(order.evidence.bound)
    peak = Figure(file_peak, after_peak, min(bound, after_peak), after_peak <= bound)
    arena_figure = Figure(
        before.arena_bytes, chosen.arena_bytes, min(bound, chosen.arena_bytes), chosen.arena_bytes <= bound
    )
    if arena.arena_bytes < chosen.arena_bytes:
        notes.append(
            f"a plan of {format_bytes(arena.arena_bytes)} B exists, but the runtime took less memory in all for "
            f"the {chosen.name} file"
        )
    measured = None
    first = candidates[0].measured
    if first is not None and chosen.measured is not None:
        details = {item.name: item.measured for item in candidates if item.measured is not None}
        measured = Measured(target, first["total_bytes"], chosen.measured["total_bytes"], details)
    return Fit(
        str(path),
        target,
        graph,
        before,
        together,
        peak,
        arena_figure,
        chosen.name,
        measured,
        outputs,
        None,
        tuple(notes),
        chosen.rewrites,
    )


def _check_ram(result: Fit, ram_bytes: int | None) -> None:
    """Judge the memory limit by what the runtime took where it was measured, by the arena elsewhere."""
    if ram_bytes is None:
        return
    needed = result.measured.after if result.measured else result.arena.after
    if needed <= ram_bytes:
        return
    overhead = needed - result.arena.after if result.measured and result.target == "tflm" else 0
    least = result.arena.bound + max(overhead, 0)
    if least > ram_bytes:
        raise InfeasibleError(
            f"{result.model} cannot run in {format_bytes(ram_bytes)} B: every order"
            f"{' of the rewritten network' if result.rewrites else ''} needs at least "
            f"{format_bytes(least)} B; {format_bytes(needed)} B would do"
        )
    if result.arena.proven and result.measured:
        beside = format_bytes(needed - result.arena.after)
        raise LimitReached(
            f"{result.model} takes {format_bytes(needed)} B in {result.measured.runtime}, limit "
            f"{format_bytes(ram_bytes)} B: the arena of {format_bytes(result.arena.after)} B is proven least, and no "
            f"search lowers the {beside} B that the runtime takes beside it"
        )
    raise LimitReached(
        f"{result.model}: best found {format_bytes(needed)} B, bound {format_bytes(least)} B, limit "
        f"{format_bytes(ram_bytes)} B: not known whether it fits; a longer --time-limit may tell"
    )
