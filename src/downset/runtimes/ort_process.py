"""The growth of a process that opens a session of ONNX Runtime and runs it."""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.read import ELEMENT_TYPES
from downset.process.isolation import isolated
from downset.process.limits import RUNNING_S, worker_s
from downset.results.processes import ProcessGrowth
from downset.results.sessions import SessionSettings
from downset.runtimes.growth import figures_of, growths_of, in_turns
from downset.runtimes.inputs import fixed_shapes, given_arrays, given_or_random, run_inputs

__all__ = ["growth_here", "plain_sessions", "plain_settings", "process_growths"]

Named = str | os.PathLike[str]
Shapes = Mapping[str, Sequence[int]]
Kinds = Mapping[str, tuple[str, Sequence[int]]]
"""By name: numpy's element type and the shape."""

_MADE = {"float16", "float32", "float64", "bool", "str"} | {
    f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)
}
"""Element types of inputs that can be made."""


def process_growths(
    sessions: Sequence[tuple[Named, SessionSettings]],
    *,
    shapes: Shapes | None = None,
    seed: int = 0,
    rounds: int = 1,
    timed: bool = True,
) -> list[list[ProcessGrowth]]:
    """The readings of each session, one for each of the `rounds`; all have the inputs of the first. In a round every
    session has its turn, every second round in reverse sequence. A session has no readings where one of its processes
    failed, and where the system does not report resident memory. Each process may take the time limit of a worker.
    Without `timed` there is one further run instead of many, and its time says little."""
    each_s = worker_s(RUNNING_S)
    kinds = _kinds(Path(sessions[0][0]), fixed_shapes(shapes)) if sessions else {}
    arguments = {"sessions": _plain_pairs(sessions), "kinds": kinds, **run_inputs(shapes, seed)}
    arguments |= {"rounds": rounds, "timed": timed, "each_s": each_s}
    most_s = each_s * (1 + rounds * len(sessions))
    arrays, _ = isolated(__name__, "growth_here", arguments, fresh=True, timeout_s=most_s)
    return growths_of(arrays["figures"])


def _kinds(path: Path, shapes: Mapping[str, list[int]]) -> dict[str, tuple[str, list[int]]]:
    """By name: numpy's element type and the shape of an input. Raises UnsupportedError where no values can be generated
    for one."""
    graph, inputs = read_skeleton(path).graph, {}
    weights = {initializer.name for initializer in graph.initializer}
    for value in (value for value in graph.input if value.name not in weights):
        kind = value.type.tensor_type
        shape = shapes.get(value.name, [int(dim.dim_value) for dim in kind.shape.dim])
        dtype = ELEMENT_TYPES.get(kind.elem_type, "opaque").replace("string", "str")
        if not all(shape) or dtype not in _MADE:
            what = f"input {value.name!r} of type {dtype} and shape {shape}"
            raise UnsupportedError(f"{what}: no values can be generated for it")
        inputs[value.name] = (dtype, shape)
    return inputs


def plain_sessions(
    sessions: Sequence[tuple[Named, SessionSettings]], shapes: Mapping[str, Sequence[int]] | None, seed: int
) -> dict[str, Any]:
    """Sessions as arguments of a worker."""
    return {"sessions": _plain_pairs(sessions), **run_inputs(shapes, seed)}


def _plain_pairs(sessions: Sequence[tuple[Named, SessionSettings]]) -> list[tuple[str, Any]]:
    return [(os.fspath(path), plain_settings(settings)) for path, settings in sessions]


def plain_settings(settings: SessionSettings) -> Any:
    import msgspec

    return msgspec.to_builtins(settings)


def growth_here(
    sessions: Sequence[tuple[str, Any]],
    kinds: Kinds,
    inputs: Mapping[str, Any],
    rounds: int,
    timed: bool,
    each_s: float,
) -> dict[str, npt.NDArray[Any]]:
    """`process_growths` inside a worker that has not imported the library: each session runs in a child, which imports
    it. Pages of the library that the parent had read would otherwise not count. Inputs are made once: they are there
    before a session is opened, and do not count."""
    importlib.import_module("downset.runtimes.ort_session")
    given, seed = given_arrays(inputs), inputs["seed"]
    feeds = {
        name: given_or_random(given.get(name), shape, dtype, seed=seed, position=zlib.crc32(name.encode()))
        for name, (dtype, shape) in kinds.items()
    }
    asked = [partial(_figures, path, fields, feeds, timed) for path, fields in sessions]
    return {"figures": in_turns(asked, rounds=rounds, limit_s=each_s)}


def _figures(path: str, fields: Any, feeds: Mapping[str, Any], timed: bool, mark: Callable[[], None]) -> list[float]:
    import msgspec

    from downset.runtimes.ort_session import quiet_library
    from downset.runtimes.ort_settings import open_session

    settings, library = msgspec.convert(fields, SessionSettings), quiet_library()

    def opened() -> Callable[[], object]:
        session = open_session(library, path, settings)
        return partial(session.run, None, feeds)

    return figures_of(opened, timed=timed, mark=mark)
