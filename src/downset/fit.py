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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from downset.arenas.tflm_greedy import tflm_greedy
from downset.compare import Comparison, compare_outputs, not_compared
from downset.errors import DownsetError, InfeasibleError, InvalidPlan, LimitReached, UnsupportedError, UsageError
from downset.graph import Graph
from downset.liveness import lifetimes, order_problem, peak_bytes
from downset.load import check_readable, load
from downset.plan import plan_arena
from downset.plans import Arena, Found
from downset.records import Record
from downset.together import Together, plan_together
from downset.units import format_bytes
from downset.verify import verify

__all__ = ["Figure", "Fit", "Measured", "fit"]

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
class Fit:
    """What `fit` found. `shipped`: original, optimised, order or order+offsets. `before`: the arena of the original."""

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


@dataclass(slots=True)
class _Candidate:
    """A file that could be shipped, its arena by the model, and its measurement where there is one."""

    name: str
    path: Path
    arena_bytes: int
    measured: Mapping[str, int] | None = None

    def cost(self) -> tuple[int, int]:
        return (self.measured["total_bytes"] if self.measured else 0, self.arena_bytes)

    def head_grew(self, original: _Candidate) -> bool:
        if self.measured is None or original.measured is None:
            return False
        return self.measured.get("head_bytes", 0) > original.measured.get("head_bytes", 0)


def fit(
    model: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    target: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    ram_bytes: int | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
) -> Fit:
    """Order and place the network in `model` for least memory on `target`, verify, measure, and write `output`.

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
        before = _arena_as_placed(graph, file_order, target, time_limit_s)
        together = plan_together(graph, memory=target, time_limit_s=time_limit_s, seed=seed)
        verify(graph, together.order, together.arena)

        candidates = _candidates(path, executed, graph, together, before, target, Path(scratch))
        _measure(candidates, target, shapes, seed, notes)
        # Neither the head nor the total may grow; among equals min keeps the first, which is the original.
        chosen = min((item for item in candidates if not item.head_grew(candidates[0])), key=_Candidate.cost)
        outputs = _compare(candidates, chosen, target, shapes, seed)
        result = _result(path, target, graph, before, together, candidates, chosen, outputs, notes)
        _check_ram(result, ram_bytes)
        if output is not None:
            _bring_external_weights(chosen, path, Path(output))
            place_file(chosen.path, Path(output))
            result = replace(result, output_path=str(output))
    return result


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


def _bring_external_weights(chosen: _Candidate, path: Path, output: Path) -> None:
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


def _arena_as_placed(graph: Graph, steps: tuple[int, ...], target: str, time_limit_s: float) -> Arena:
    """An order as the runtime itself would place it where we know its planner, else with the best placement."""
    if target != "tflm":
        return plan_arena(graph, steps, method="best", memory=target, time_limit_s=0.2 * time_limit_s)
    record_of = lifetimes(graph, steps, target).record_of
    rank = [record_of.index(record) for record in range(1 + max(record_of, default=-1))]

    def as_tflm(records: Sequence[Record], **_: object) -> Found:
        return tflm_greedy(records, rank=rank)

    return plan_arena(graph, steps, method=as_tflm, memory=target)


def _candidates(
    path: Path, executed: Path, graph: Graph, together: Together, before: Arena, target: str, scratch: Path
) -> list[_Candidate]:
    """The original first, then the files we could ship instead."""
    found = [_Candidate("original", path, before.arena_bytes)]
    steps, arena = together.order.steps, together.arena
    moved = steps != tuple(range(len(steps)))
    reordered = scratch / f"order{path.suffix}"
    placed = scratch / f"placed{path.suffix}"
    if target in ("tflm", "litert"):
        from downset.export.tflite import export_tflite

        if moved:
            export_tflite(reordered, graph, steps)
            own = _arena_as_placed(graph, steps, target, 10.0)
            found.append(_Candidate("order", reordered, own.arena_bytes))
        if target == "tflm":
            export_tflite(placed, graph, steps, offsets=arena.tensor_offsets)
            found.append(_Candidate("order+offsets", placed, arena.arena_bytes))
    elif target == "ort":
        from downset.export.onnx import export_onnx

        if moved:
            export_onnx(reordered, graph, steps)
            found.append(_Candidate("order", reordered, arena.arena_bytes))
        found.append(_Candidate("optimised", executed, before.arena_bytes))
    elif moved and path.suffix == ".onnx":
        from downset.export.onnx import export_onnx

        export_onnx(reordered, graph, steps)
        found.append(_Candidate("order", reordered, arena.arena_bytes))
    elif moved:
        from downset.export.torch import export_torch

        export_torch(reordered, graph, steps)
        found.append(_Candidate("order", reordered, arena.arena_bytes))
    return found


def _measure(
    candidates: list[_Candidate],
    target: str,
    shapes: Mapping[str, tuple[int, ...]] | None,
    seed: int,
    notes: list[str],
) -> None:
    """Ask the runtime what each candidate takes. All or none: figures are only compared within one runtime."""
    if target not in ("tflm", "ort"):
        return
    if target == "tflm" and shapes:
        notes.append("not measured: TFLite Micro runs a file at its own input sizes, not at those of --shape")
        return
    measured: list[Mapping[str, int]] = []
    try:
        for candidate in candidates:
            if target == "tflm":
                from downset.run import tflm

                taken = tflm.measure(candidate.path, seed=seed)
                measured.append(
                    {"total_bytes": taken.total_bytes, "head_bytes": taken.head_bytes, "tail_bytes": taken.tail_bytes}
                )
            else:
                from downset.run import ort

                own_way = candidate.name == "original"
                peak = ort.measure_peak(candidate.path, shapes=shapes, seed=seed, file_order=not own_way)
                measured.append(
                    {
                        "total_bytes": peak.peak_bytes,
                        "run_bytes": peak.run_bytes,
                        "persistent_bytes": peak.persistent_bytes,
                        "held_bytes": peak.held_bytes,
                    }
                )
                if candidate.name == "order":
                    # The file is read back: nodes without a name are known by their place in it.
                    _note_departures([op.name for op in load(candidate.path).ops], peak.executed, notes)
    except DownsetError as error:
        notes.append(f"not measured: {error}")
        return
    for candidate, taken_bytes in zip(candidates, measured, strict=True):
        candidate.measured = taken_bytes


def _note_departures(planned: Sequence[str], executed: Sequence[str], notes: list[str]) -> None:
    """Say so where ONNX Runtime did not follow the file's order (it moves Shape and Size forward)."""
    ran = [name for name in executed if name in set(planned)]
    expected = [name for name in planned if name in set(ran)]
    if ran != expected:
        first = next(one for one, other in zip(ran, expected, strict=True) if one != other)
        notes.append(
            f"ONNX Runtime did not follow the order: {first!r} ran early; the measured figures are of that run"
        )


def _runners(target: str) -> Iterator[str]:
    yield from {"tflm": ("litert", "tflm"), "litert": ("litert",), "ort": ("ort",), "torch": ("ort",)}[target]


def _compare(
    candidates: list[_Candidate],
    chosen: _Candidate,
    target: str,
    shapes: Mapping[str, tuple[int, ...]] | None,
    seed: int,
) -> Comparison:
    """Run both files on the same seeded inputs in the first runtime that can run the original.

    Reordering changes no bit, so a difference is an error; only ONNX Runtime's own optimisation may round differently
    from the original, and then the reordered file must still equal the optimised one.
    """
    original = candidates[0]
    if chosen is original:
        return Comparison(True, 0.0, "", "the file is shipped as it is")
    reasons = []
    for name in _runners(target):
        try:
            found = compare_outputs(
                original.path, chosen.path, runtime=name, shapes=shapes, seed=seed, ordered=target == "ort"
            )
            optimised = next((item for item in candidates if item.name == "optimised"), None)
            if found.equal is False and optimised is not None:
                alone = compare_outputs(optimised.path, chosen.path, runtime=name, seed=seed, ordered=True)
                if alone.equal:
                    note = "reordering changes no bit; ONNX Runtime's optimisation with fixed sizes rounds differently"
                    return Comparison(False, found.max_abs_error, name, note)
            if found.equal is False:
                raise InvalidPlan(
                    f"{original.path}: the {chosen.name} file gave other outputs in {name} "
                    f"(largest error {found.max_abs_error}; {found.note}); nothing written"
                )
            return found
        except UnsupportedError as error:
            reasons.append(f"{name}: {error}")
    return not_compared("; ".join(reasons))


def _result(
    path: Path,
    target: str,
    graph: Graph,
    before: Arena,
    together: Together,
    candidates: list[_Candidate],
    chosen: _Candidate,
    outputs: Comparison,
    notes: list[str],
) -> Fit:
    problem = order_problem(graph, target)
    order, arena = together.order, together.arena
    kept = chosen.name in ("original", "optimised")
    file_peak = peak_bytes(problem, range(len(graph.ops)))
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
            f"{result.model} cannot run in {format_bytes(ram_bytes)} B: every order needs at least "
            f"{format_bytes(least)} B; {format_bytes(needed)} B would do"
        )
    raise LimitReached(
        f"{result.model}: best found {format_bytes(needed)} B, bound {format_bytes(least)} B, limit "
        f"{format_bytes(ram_bytes)} B: not known whether it fits; a longer --time-limit may tell"
    )
