"""LiteRT in a worker process: outputs for seeded inputs, times, and the size of its arena.

All use the built-in kernels without delegates. By default LiteRT gives operators to XNNPACK, which places tensors by
itself: neither the file's order nor these figures then tell how much memory is taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.formats.reading import load
from downset.formats.tflite.interpreter import open_interpreter
from downset.memory.liveness import lifetimes
from downset.process.isolation import isolated
from downset.results.sessions import Latency
from downset.runtimes.inputs import random_array
from downset.runtimes.latencies import latencies
from downset.runtimes.rounds import round_seconds

__all__ = ["allocate", "measure", "run", "setting_inputs", "time_runs"]

_ALIGNMENT = 64


def run(
    path: str | os.PathLike[str],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    steps: int = 1,
) -> list[npt.NDArray[Any]]:
    """Outputs of `steps` runs one after another in one interpreter (a state may change them), on inputs drawn from the
    seed. LiteRT runs without delegates, so the order of the file is the order of execution. Raises UnsupportedError
    where LiteRT is missing or cannot run the file."""
    arguments = {"path": str(path), "shapes": _plain(shapes), "seed": seed, "steps": steps}
    arrays, _ = isolated("downset.runtimes.litert", "run_here", arguments)
    return [arrays[f"output_{index}"] for index in range(len(arrays))]


def measure(path: str | os.PathLike[str], *, shapes: Mapping[str, tuple[int, ...]] | None = None) -> int:
    """Bytes of LiteRT's CPU arena, found from the addresses of its tensors: those of the network, and those that
    kernels request in addition (im2col buffers). Weights, variables and persistent data of kernels lie elsewhere and do
    not count.

    Raises UnsupportedError where LiteRT is missing, cannot load the file, or has tensors outside the arena (networks
    with bodies, or with sizes that are known only at run time)."""
    graph = load(path, shapes=shapes)
    place = graph.source.tensor_index
    living = lifetimes(graph, range(len(graph.ops)), "litert").record_of
    tensors = [place[tensor] if place else tensor for tensor, record in enumerate(living) if record >= 0]
    if not tensors:
        return 0
    arguments = {"path": str(path), "shapes": _plain(shapes), "tensors": tensors}
    arrays, _ = isolated("downset.runtimes.litert", "places_here", arguments)
    return _extent(Path(path).name, arrays["planned"], arrays["beside"])


def _extent(name: str, planned: npt.NDArray[Any], beside: npt.NDArray[Any]) -> int:
    """The size of the memory block in which all tensors of `planned`, (address, bytes), lie. LiteRT's planner leaves
    no hole larger than the alignment, so a hole ends the block. Tensors of `beside` count only inside the block. Raises
    UnsupportedError where `planned` lies in several memory blocks."""
    ranges = sorted((int(offset), int(offset) + int(nbytes)) for offset, nbytes in (*planned, *beside))
    first, last = int(planned[:, 0].min()), int((planned[:, 0] + planned[:, 1]).max())
    begin = end = -1
    for low, high in ranges:
        if begin < 0 or low > end + _ALIGNMENT:
            if begin >= 0 and begin <= first <= end:
                break
            begin = low
        end = max(end, high)
    if not begin <= first <= last <= end:
        raise UnsupportedError(f"LiteRT keeps tensors of {name} in more than one memory block: not measured")
    return end - begin


def _plain(shapes: Mapping[str, tuple[int, ...]] | None) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in (shapes or {}).items()}


def run_here(path: str, shapes: Mapping[str, list[int]], seed: int, steps: int) -> dict[str, npt.NDArray[Any]]:
    """`run` inside the worker process."""
    interpreter = open_interpreter(path)
    try:
        allocate(interpreter, shapes)
        outputs = []
        for step in range(steps):
            setting_inputs(interpreter, seed + step)()
            interpreter.invoke()
            outputs += [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"LiteRT cannot run {Path(path).name}: {error}") from None
    return {f"output_{index}": array for index, array in enumerate(outputs)}


def time_runs(
    paths: Sequence[str | os.PathLike[str]],
    limit: float | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    budget_s: float = 2.0,
) -> list[Latency]:
    """The latency of each file by processor time on one thread, without delegates, with its ratio to that of the first,
    in rounds as `round_seconds` times them. Raises UnsupportedError as `run` does."""
    files = [str(path) for path in paths]
    arguments = {"paths": files, "shapes": _plain(shapes), "limit": limit, "seed": seed, "budget_s": budget_s}
    arrays, _ = isolated("downset.runtimes.litert", "time_here", arguments)
    return latencies(arrays["seconds"])


def time_here(
    paths: Sequence[str], shapes: Mapping[str, list[int]], limit: float | None, seed: int, budget_s: float
) -> dict[str, npt.NDArray[Any]]:
    """`time_runs` inside the worker process: seconds by round and file."""
    interpreters = [open_interpreter(path) for path in paths]
    try:
        for interpreter in interpreters:
            allocate(interpreter, shapes)
        files = [(setting_inputs(interpreter, seed), interpreter.invoke) for interpreter in interpreters]
        return {"seconds": round_seconds(files, limit=limit, budget_s=budget_s)}
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"LiteRT cannot run {Path(paths[-1]).name}: {error}") from None


def setting_inputs(interpreter: Any, seed: int) -> Callable[[], None]:
    """A function that sets the inputs, drawn from the seed."""
    values = [
        (detail["index"], random_array(detail["shape"], detail["dtype"], seed=seed, position=position))
        for position, detail in enumerate(interpreter.get_input_details())
    ]

    def set_inputs() -> None:
        for index, value in values:
            interpreter.set_tensor(index, value)

    return set_inputs


def places_here(path: str, shapes: Mapping[str, list[int]], tensors: list[int]) -> dict[str, npt.NDArray[Any]]:
    """`measure` inside the worker process: (address, bytes) of the given tensors, and of those that are not in the
    file."""
    interpreter = open_interpreter(path)
    try:
        in_file = 1 + max(detail["index"] for detail in interpreter.get_tensor_details())
        allocate(interpreter, shapes)
        details = interpreter.get_tensor_details()
        beside = [detail["index"] for detail in details if detail["index"] >= in_file]
        places = {"planned": _places(interpreter, tensors), "beside": _places(interpreter, beside)}
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"LiteRT cannot run {Path(path).name}: {error}") from None
    return places


def allocate(interpreter: Any, shapes: Mapping[str, list[int]]) -> None:
    """Give the inputs these shapes, by name, and the tensors their places."""
    for detail in interpreter.get_input_details():
        if detail["name"] in shapes:
            interpreter.resize_tensor_input(detail["index"], shapes[detail["name"]])
    interpreter.allocate_tensors()


def _places(interpreter: Any, tensors: list[int]) -> npt.NDArray[Any]:
    arrays = [interpreter.tensor(index)() for index in tensors]
    rows = [(array.__array_interface__["data"][0], array.nbytes) for array in arrays if array.nbytes]
    return np.asarray(rows, np.int64).reshape(-1, 2)
