"""ONNX Runtime in worker processes: outputs, the executed order, memory and time of sessions.

By default ONNX Runtime chooses the order of nodes and keeps memory for later runs. With the settings
`sessions.FILE_ORDER` it follows the file's order and keeps no byte longer than the plan states. So a file is optimised
offline first, then reordered, then run with these settings. Other settings (`sessions.FITTED`) keep ONNX Runtime's
optimisation.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.formats.onnx.bodies import overridable
from downset.formats.onnx.data_files import link_weights, save_linked, stored_bytes
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.model_file import forget_shapes, resizes
from downset.messages import Setting
from downset.process.isolation import isolated
from downset.process.limits import limits, worker_bytes, worker_s
from downset.results.sessions import FILE_ORDER, Latency, SessionSettings
from downset.runtimes.feeds import saved
from downset.runtimes.inputs import run_inputs
from downset.runtimes.latencies import latencies
from downset.runtimes.ort_process import plain_sessions, plain_settings, process_growths

__all__ = [
    "least_region",
    "measure_peak",
    "measure_sessions",
    "optimise_as",
    "optimise_offline",
    "outputs_apart",
    "placed_nodes",
    "process_growth",
    "program_bytes",
    "run",
    "run_on",
    "session_seconds",
    "time_sessions",
]

Shapes = Mapping[str, tuple[int, ...]]

_GROWTH = (1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5)
_SPARE = (1.25, 1.5, 2.0)
"""`_GROWTH` where the order differs from load to load: a first region that is too small by a byte triples what is
held."""
_WORKER = "downset.runtimes.ort_session"
_TIMING_S = 120.0
"""Seconds after which timing is ended, unless its budget is larger."""
Named = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class PeakMeasurement:
    """The figures that ONNX Runtime's CPU arena reports, in bytes.

    `peak_bytes`: the most in use at one time, loading included. `persistent_bytes`: the part of these that stays in use
    between runs (weights that kernels packed). `live_bytes`: the most in use without the persistent bytes at the end of
    a kernel, when its workspace is free: what the memory model `ort` counts. `held_bytes`: what the arena took from the
    system. `executed`: node names in the order in which they ran.
    """

    peak_bytes: int
    persistent_bytes: int
    live_bytes: int
    held_bytes: int
    executed: tuple[str, ...]

    @property
    def run_bytes(self) -> int:
        """The most bytes in use without the persistent ones: intermediates and workspace of kernels, or what loading
        needed if that was more."""
        return self.peak_bytes - self.persistent_bytes


def optimise_offline(
    path: str | os.PathLike[str], output: str | os.PathLike[str], *, shapes: Shapes | None = None
) -> None:
    """Write the file as ONNX Runtime's portable optimisations (EXTENDED) change it, with the input sizes fixed to
    `shapes`.

    With fixed sizes ONNX Runtime folds operators that only compute shapes. Weights that an old file lists as inputs
    become constants, so that they can be folded. Weights outside the file are linked into the folder of `output`, or
    copied to another device. Raises UnsupportedError where ONNX Runtime refuses the file, or the file with these sizes.
    """
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        fixed, nodes = _with_fixed_inputs(Path(path), Path(folder), shapes or {})
        try:
            with limits(operators=nodes):
                isolated(_WORKER, "optimise_here", {"path": str(fixed), "output": str(output)})
        except UnsupportedError as error:
            if shapes and _loads(path, Path(folder) / "as_it_is.onnx"):
                sizes = " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())
                raise UnsupportedError(
                    f"ONNX Runtime loads {Path(path).name}, but not with the sizes {sizes}: an operator, which may "
                    f"stand in a branch that is not taken, refuses them; give others with ",
                    Setting("shapes"),
                    " (",
                    error.message,
                    ")",
                ) from None
            raise
    if not Path(output).exists():
        raise UnsupportedError(f"ONNX Runtime wrote no optimised form of {path}")
    link_weights(Path(path), Path(output).parent)


def _loads(path: Named, output: Path) -> bool:
    """Whether ONNX Runtime loads a file without fixed sizes. It writes the optimised file to `output`."""
    try:
        isolated(_WORKER, "optimise_here", {"path": os.fspath(path), "output": str(output)})
    except UnsupportedError:
        return False
    return True


def optimise_as(path: Named, output: Named, settings: SessionSettings) -> None:
    """Write the file as a session with these settings optimises it for this processor, weights included. Raises
    UnsupportedError where ONNX Runtime refuses the file."""
    arguments = {"path": os.fspath(path), "output": os.fspath(output), "settings": plain_settings(settings)}
    isolated(_WORKER, "optimise_here", arguments)
    if not Path(output).exists():
        raise UnsupportedError(f"ONNX Runtime wrote no optimised form of {path}")


def _with_fixed_inputs(path: Path, folder: Path, shapes: Shapes) -> tuple[Path, int]:
    """A file with these input sizes, in which the only weights listed as inputs are those that a caller may override:
    the file itself if it is one, else a copy in `folder`, where external weights are linked. Returns
    its path and the number of its nodes."""
    model = read_skeleton(path)
    before = model.SerializeToString()
    weights = {initializer.name for initializer in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if any(resizes(value, shapes.get(value.name, ())) for value in inputs):
        forget_shapes(model.graph)
    for value in inputs:
        if value.name in shapes:
            del value.type.tensor_type.shape.dim[:]
            for extent in shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = extent
    kept = overridable(model)
    inputs = [value for value in model.graph.input if value.name not in weights or value.name in kept]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    if model.SerializeToString() == before:
        return path, len(model.graph.node)
    return save_linked(model, path, folder), len(model.graph.node)


def run(
    path: str | os.PathLike[str], *, shapes: Shapes | None = None, seed: int = 0, file_order: bool = True
) -> list[npt.NDArray[Any]]:
    """Outputs on inputs drawn from the seed, on one thread. With `file_order` the nodes run in the file's order without
    optimisation; otherwise ONNX Runtime optimises (EXTENDED) and orders them."""
    arguments = _arguments(path, shapes, seed) | {"file_order": file_order}
    arrays, _ = isolated(_WORKER, "run_here", arguments)
    return [arrays[f"output_{index}"] for index in range(len(arrays))]


def run_on(
    path: str | os.PathLike[str], feeds: Mapping[str, npt.NDArray[Any]], *, shapes: Shapes | None = None
) -> list[npt.NDArray[Any]]:
    """Outputs on the inputs `feeds`, by name; optimised (EXTENDED), on one thread. `shapes` replaces the file's input
    shapes."""
    with tempfile.TemporaryDirectory(prefix="downset-") as folder, saved([feeds]) as where:
        fixed = _with_fixed_inputs(Path(path), Path(folder), shapes)[0] if shapes else path
        arrays, _ = isolated(_WORKER, "run_on_here", {"path": os.fspath(fixed), **where})
    return [arrays[f"output_{index}"] for index in range(len(arrays))]


def measure_peak(
    path: Named, *, shapes: Shapes | None = None, seed: int = 0, settings: SessionSettings = FILE_ORDER
) -> PeakMeasurement:
    """Run a session with these settings and with profiling, and read the figures of its arena. Raises UnsupportedError
    where ONNX Runtime is missing, cannot run the file, or does not report memory in its profile."""
    return measure_sessions(path, [settings], shapes=shapes, seed=seed)[0]


def measure_sessions(
    path: Named,
    settings: Sequence[SessionSettings],
    *,
    shapes: Shapes | None = None,
    seed: int = 0,
    first_that_fits: bool = False,
) -> list[PeakMeasurement]:
    """`measure_peak` with each of these settings, in one process. With `first_that_fits` the first settings whose arena
    needs no more than its first region are the last that are measured."""
    options = {"settings": list(map(plain_settings, settings)), "first_that_fits": first_that_fits}
    arguments = _arguments(path, shapes, seed) | options
    arrays, _ = isolated(_WORKER, "measure_here", arguments)
    measured = []
    for index in range(len(arrays) // 2):
        peak, persistent, live, held_bytes = (int(value) for value in arrays[f"bytes_{index}"])
        executed = tuple(str(name) for name in arrays[f"executed_{index}"])
        measured.append(PeakMeasurement(peak, persistent, live, held_bytes, executed))
    return measured


def least_region(
    path: Named, *, shapes: Shapes | None = None, seed: int = 0, settings: SessionSettings = FILE_ORDER
) -> tuple[SessionSettings, PeakMeasurement]:
    """The settings with the size of the arena's first region at which the arena holds the fewest bytes, and the
    measurement with it.

    Tries the peak of a run and some sizes above it, since the arena's best-fit placement leaves holes. Where the order
    differs from load to load, another load may hold more.
    """
    usual = measure_peak(path, shapes=shapes, seed=seed, settings=settings)
    growths = _GROWTH if settings.follows_file else _SPARE
    regions = dict.fromkeys(-(-int(usual.run_bytes * growth) // 256) * 256 for growth in growths)
    tried = [settings.with_region(region) for region in regions if region > 0]
    measured = measure_sessions(path, tried, shapes=shapes, seed=seed, first_that_fits=True) if tried else []
    choices = [(settings, usual), *zip(tried, measured, strict=False)]
    return min(choices, key=lambda choice: (choice[1].held_bytes, choice[0].region_bytes or 0))


def process_growth(
    sessions: Sequence[tuple[Named, SessionSettings]], *, shapes: Shapes | None = None, seed: int = 0
) -> list[int | None]:
    """The largest growth of a process's resident memory, in bytes, while each session is opened and run three times,
    each in a new process. None where the system does not report it or the run failed."""
    grown = process_growths(sessions, shapes=shapes, seed=seed, timed=False)
    return [readings[0].peak_bytes if readings else None for readings in grown]


def program_bytes(program: Named, processes: int) -> list[tuple[int, int]]:
    """(bytes in use at most, bytes held) that the program of `session_program` prints, for so many processes, one after
    another. Each has an interpreter of its own: in forks of one, addresses and hashes, by which a runtime may order
    nodes, are the same. Raises UnsupportedError where it fails, LimitReached where it takes too long."""
    arguments = {"path": os.fspath(program)}
    printed = (isolated(_WORKER, "program_here", arguments, fresh=True)[0]["bytes"] for _ in range(processes))
    return [(int(in_use), int(held_bytes)) for in_use, held_bytes in printed]


def time_sessions(
    sessions: Sequence[tuple[Named, SessionSettings]],
    *,
    shapes: Shapes | None = None,
    seed: int = 0,
    budget_s: float = 2.0,
    rounds: tuple[int, int] = (7, 101),
) -> list[Latency]:
    """The latency of each session, with its ratio to that of the first, from `session_seconds`. Sessions that may not
    fit into a worker's memory together, as each may hold its weights twice, are timed in groups, the first in each."""
    first, others = sessions[:1], sessions[1:]
    count = max(worker_bytes() // max(2 * stored_bytes(path) for path, _ in sessions) - 1, 1)
    groups = [others[start : start + count] for start in range(0, len(others), count)] or [others]
    share_s = budget_s / len(groups)
    timed = [
        latencies(session_seconds([*first, *group], shapes=shapes, seed=seed, budget_s=share_s, rounds=rounds))
        for group in groups
    ]
    return [timed[0][0], *(latency for group in timed for latency in group[1:])]


def session_seconds(
    sessions: Sequence[tuple[Named, SessionSettings]],
    *,
    shapes: Shapes | None = None,
    seed: int = 0,
    budget_s: float = 2.0,
    rounds: tuple[int, int] = (7, 101),
    latency: bool = False,
) -> npt.NDArray[np.float64]:
    """Seconds of processor time of a run, by round and session, or of its `latency`. All rounds run in one process, and
    each session runs once in each. `rounds`: the least and the most rounds; between these, rounds go on until
    `budget_s` is spent."""
    arguments = plain_sessions(sessions, shapes, seed) | {"budget_s": budget_s, "rounds": list(rounds)}
    arguments["latency"] = latency
    timeout_s = worker_s(max(_TIMING_S, 4 * budget_s))
    seconds: npt.NDArray[np.float64] = isolated(_WORKER, "time_here", arguments, timeout_s=timeout_s)[0]["seconds"]
    return seconds


def outputs_apart(
    path: Named, settings: Sequence[SessionSettings], *, shapes: Shapes | None = None, seed: int = 0
) -> list[float]:
    """The largest difference between the outputs of each session and those of the first, as a share of the largest
    value (`agreement.difference`)."""
    arguments = plain_sessions([(path, of) for of in settings], shapes, seed)
    return [float(apart) for apart in isolated(_WORKER, "apart_here", arguments)[0]["apart"]]


def placed_nodes(
    path: Named, settings: SessionSettings, *, shapes: Shapes | None = None, seed: int = 0
) -> dict[str, str]:
    """The provider that runs each node, by the node's name once ONNX Runtime has optimised the file, copies between
    devices included, in the order of a run. Raises UnsupportedError where a provider of `settings` is not installed."""
    arguments = _arguments(path, shapes, seed) | {"settings": plain_settings(settings)}
    arrays, _ = isolated(_WORKER, "placed_here", arguments)
    return {str(name): str(provider) for name, provider in zip(arrays["names"], arrays["providers"], strict=True)}


def _arguments(path: Named, shapes: Shapes | None, seed: int) -> dict[str, Any]:
    return {"path": os.fspath(path), **run_inputs(shapes, seed)}
