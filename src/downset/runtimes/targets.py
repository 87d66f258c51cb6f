"""The targets that a network can be fitted for. A row for each states which files it runs, and how it places tensors
and is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from downset.arenas.plan import plan_arena
from downset.errors import UnsupportedError
from downset.formats.onnx.model_file import check_onnx
from downset.formats.onnx.open_axes import declare_as, open_axes
from downset.formats.reading import check_readable, load
from downset.graph.core import Graph
from downset.memory.kernel_libraries import kernel_library
from downset.memory.liveness import lifetimes
from downset.memory.models import TFLM_WITHOUT_OFFSETS, MemoryName, memory_model
from downset.messages import Setting
from downset.results.plans import Arena
from downset.results.processes import ProcessGrowth
from downset.results.sessions import DEFAULT, FITTED, Latency, SessionSettings
from downset.runtimes import litert, ort, tflm
from downset.runtimes.compare import RuntimeName
from downset.runtimes.litert_process import litert_growths

__all__ = ["TARGETS", "Sessions", "Taken", "Target", "TargetName", "targets_of"]

TargetName = Literal["tflm", "litert", "ort", "torch"]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Taken:
    """The memory that a runtime reports for a file. `nbytes`: bytes by part; candidates are compared by its entry
    `total_bytes`. `executed`: the names of the operators in the order in which they ran, where the runtime reports
    it. `workspaces`: by operator, the bytes that its kernel holds while it runs beyond its inputs and results, where
    the runtime reports them."""

    nbytes: Mapping[str, int]
    executed: tuple[str, ...] = ()
    workspaces: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sessions:
    """A runtime whose memory depends on the file and on the settings of the session that opens it.

    `default`: the settings of a user who states none. `fitted`: settings with which a written file may be opened; with
    the first of them it runs as written. `measure(path, settings, shapes=, seed=)`: the memory with each of these
    settings. `narrow(path, settings, shapes=, seed=)`: these settings with the arena size at which the arena holds
    least, and the memory with them. `processes` and `time`: for pairs of path and settings, the growth of a process
    and the latency relative to the first pair."""

    default: SessionSettings
    fitted: tuple[SessionSettings, ...]
    measure: Callable[..., list[Taken]]
    narrow: Callable[..., tuple[SessionSettings, Taken]]
    processes: Callable[..., list[int | None]]
    time: Callable[..., list[Latency]]


@dataclass(frozen=True, slots=True)
class Target:
    """`suffixes`: those of the files that the runtime runs. `memory`: its memory model. `runners`: the runtimes in
    which the outputs of two files are compared, in the sequence in which they are tried.

    `place(graph, steps, seconds)`: the arena as the runtime places an order, where its planner is known.
    `measure(path, shapes=, seed=, trust=)`: run a file and read the memory that it took; None where `sessions` measures
    it. `trust`: the file may run code that it brings. `time(paths, limit, shapes=, seed=)`: the latencies of files by
    processor time, in the same rounds; there are more rounds while it is not known whether a ratio is above `limit`.
    `processes(files, shapes=, seed=)`: the growth of a new process by file and kernels, measured in addition to the
    arena; it decides nothing. `prepare(path, output, shapes)`: write the file that the runtime would execute instead of
    `path`, and return notes. `file_order`: a written file is run in its order, without the runtime's optimisation.
    `offsets`: the runtime places tensors at the offsets in a file. `fixed_overhead`: its memory outside the arena does
    not depend on the order. `takes_seconds`: a process that runs it takes seconds to start."""

    name: TargetName
    suffixes: tuple[str, ...]
    memory: MemoryName
    runners: tuple[RuntimeName, ...]
    place: Callable[[Graph, Sequence[int], float], Arena] | None = None
    measure: Callable[..., Taken] | None = None
    time: Callable[..., list[Latency]] | None = None
    sessions: Sessions | None = None
    processes: Callable[..., list[list[ProcessGrowth]]] | None = None
    prepare: Callable[[Path, Path, Shapes | None], list[str]] | None = None
    file_order: bool = False
    offsets: bool = False
    fixed_overhead: bool = False
    takes_seconds: bool = False

    @property
    def measures(self) -> bool:
        """Whether the runtime reports the memory that a file takes."""
        return self.measure is not None or self.sessions is not None

    @property
    def times(self) -> bool:
        """Whether the runtime is timed."""
        return self.time is not None or self.sessions is not None


def _place_tflm(graph: Graph, steps: Sequence[int], seconds: float, scratch: str = "") -> Arena:
    """`scratch`: the library whose kernels' scratch is placed among the tensors."""
    del seconds
    model = replace(TFLM_WITHOUT_OFFSETS, scratch=scratch)
    rank = lifetimes(graph, steps, model).first_tensors()
    return plan_arena(graph, steps, method="tflm_greedy", memory=model, time_limit_s=math.inf, rank=rank)


def with_kernels(target: Target, kernels: str) -> Target:
    """The target tflm with the memory model of a library's kernels. Their scratch counts where formulas are known.
    Raises UsageError for an unknown library or version."""
    library = kernel_library(kernels)
    model = memory_model(f"tflm-{kernels if library.chip else library.name}")
    return replace(target, memory=model.name, place=partial(_place_tflm, scratch=model.scratch))  # type: ignore[arg-type]


def _measure_tflm(path: Path, *, shapes: Shapes | None, seed: int, trust: bool) -> Taken:
    del trust
    if shapes:
        raise UnsupportedError("TFLite Micro runs a file at its own input sizes, not at those of ", Setting("shapes"))
    taken, graph = tflm.measure(path, seed=seed), load(path)
    return Taken(
        {
            "total_bytes": taken.total_bytes,
            "head_bytes": taken.head_bytes,
            "tail_bytes": taken.tail_bytes,
            "cortex_m_tail_bytes": tflm.on_cortex_m(taken.tail_bytes, len(graph.ops), len(graph.tensors)),
        }
    )


def _place_litert(graph: Graph, steps: Sequence[int], seconds: float) -> Arena:
    del seconds
    return plan_arena(graph, steps, method="litert_greedy", memory="litert", time_limit_s=math.inf)


def _measure_litert(path: Path, *, shapes: Shapes | None, seed: int, trust: bool) -> Taken:
    del trust, seed  # tensors are placed before anything runs, in the file's order
    return Taken({"total_bytes": litert.measure(path, shapes=shapes)})


def _measure_torch(path: Path, *, shapes: Shapes | None, seed: int, trust: bool) -> Taken:
    from downset.runtimes import torch_eager

    peak = torch_eager.measure(path, shapes=shapes, seed=seed, trust=trust)
    return Taken({"total_bytes": peak.total_bytes}, workspaces=peak.workspaces)


def _time_torch(paths: Sequence[Path], *arguments: float | None, **options: Any) -> list[Latency]:
    from downset.runtimes import torch_eager

    return torch_eager.time_runs(paths, *arguments, **options)


def _measure_ort(path: Path, settings: Sequence[SessionSettings], *, shapes: Shapes | None, seed: int) -> list[Taken]:
    return [_taken(measured) for measured in ort.measure_sessions(path, settings, shapes=shapes, seed=seed)]


def _narrow_ort(
    path: Path, settings: SessionSettings, *, shapes: Shapes | None, seed: int
) -> tuple[SessionSettings, Taken]:
    chosen, measured = ort.least_region(path, shapes=shapes, seed=seed, settings=settings)
    return chosen, _taken(measured)


def _taken(peak: ort.PeakMeasurement) -> Taken:
    parts = {
        "total_bytes": peak.held_bytes,
        "held_bytes": peak.held_bytes,
        "in_use_bytes": peak.peak_bytes,
        "run_bytes": peak.run_bytes,
        "persistent_bytes": peak.persistent_bytes,
    }
    return Taken(parts, peak.executed)


def _prepare_ort(path: Path, output: Path, shapes: Shapes | None) -> list[str]:
    check_readable(path)
    check_onnx(path, shapes=shapes)  # so that a bad file is a one-line error, not a failure of the runtime
    ort.optimise_offline(path, output)
    declare_as(output, path)
    notes = ["ONNX Runtime's offline optimisation (EXTENDED) was applied before ordering"]
    axes = open_axes(path, shapes or {})
    if not axes:
        return notes
    listed = ", ".join(f"{axis.name} = {axis.size}" for axis in axes)
    return [*notes, f"sizes that the file leaves open stay open; planned and measured for {listed}"]


_TARGETS = (
    Target(
        "tflm",
        (".tflite",),
        "tflm",
        ("litert", "tflm"),
        place=_place_tflm,
        measure=_measure_tflm,
        time=tflm.time_runs,
        offsets=True,
        fixed_overhead=True,
    ),
    Target(
        "litert",
        (".tflite",),
        "litert",
        ("litert",),
        place=_place_litert,
        measure=_measure_litert,
        time=litert.time_runs,
        processes=litert_growths,
    ),
    Target(
        "ort",
        (".onnx",),
        "ort",
        ("ort",),
        prepare=_prepare_ort,
        file_order=True,
        sessions=Sessions(DEFAULT, FITTED, _measure_ort, _narrow_ort, ort.process_growth, ort.time_sessions),
    ),
    Target(
        "torch",
        (".onnx", ".pt2"),
        "torch",
        ("ort", "torch"),
        measure=_measure_torch,
        time=_time_torch,
        takes_seconds=True,
    ),
)
TARGETS: Mapping[str, Target] = {target.name: target for target in _TARGETS}


def targets_of(suffix: str) -> tuple[Target, ...]:
    """The targets that run files of this suffix; the first is the default."""
    return tuple(target for target in TARGETS.values() if suffix in target.suffixes)
