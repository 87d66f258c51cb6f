"""TFLite Micro in a worker process: the bytes that its arena took, outputs, and times."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.extras import optional_library
from downset.formats.tflite.read import two_memories
from downset.messages import Setting
from downset.process.isolation import isolated
from downset.results.sessions import Latency
from downset.runtimes.inputs import random_array
from downset.runtimes.latencies import latencies
from downset.runtimes.rounds import round_seconds

__all__ = ["ARENA_BYTES", "LARGEST_SPAN", "arena_size", "count_of", "is_installed", "measure", "time_runs"]

ARENA_BYTES = 1 << 28
"""Bytes of the arena given to TFLite Micro here; pages that are never touched take no memory."""


LARGEST_SPAN = 1 << 30
"""Bytes of address space from the lower memory to the end of the higher one that a run here takes at most."""


def arena_size(path: str | os.PathLike[str]) -> int:
    """Bytes of the arena that a run of this file gets here: a file with moves reaches over both of its memories, and
    what lies between them is never touched. Raises UnsupportedError where they lie too far apart."""
    memories = two_memories(path)
    if memories is None:
        return ARENA_BYTES
    if memories.span_bytes > LARGEST_SPAN:
        raise UnsupportedError(
            f"{Path(path).name} reaches over {memories.span_bytes:,} bytes of addresses from one memory to the other: "
            f"here at most {LARGEST_SPAN:,} are run"
        )
    return ARENA_BYTES + memories.span_bytes


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures that TFLite Micro prints. The head holds tensors and scratch, the tail persistent data; the total is
    both. `outputs`: those of all runs, one after another."""

    head_bytes: int
    tail_bytes: int
    total_bytes: int
    outputs: list[npt.NDArray[Any]]


_NODE_BYTES, _TENSOR_BYTES = (64, 32), (24, 12)
"""Bytes of a node with its registration (eight pointers and sizes), and of an evaluation tensor (two pointers and a
type): each with pointers of eight bytes, then of four."""


def on_cortex_m(tail_bytes: int, operators: int, tensors: int) -> int:
    """An estimate of the tail on a processor with pointers of four bytes, from the tail measured on this host: nodes
    and tensors are half as large. The persistent data of kernels counts as on this host; most of it is per-channel
    multipliers and shifts, which do not change. So the true tail is smaller."""
    node, tensor = (wide - narrow for wide, narrow in (_NODE_BYTES, _TENSOR_BYTES))
    return tail_bytes - node * operators - tensor * tensors


def is_installed() -> bool:
    """Whether TFLite Micro can be asked here, so that a failure to run a file is about the file."""
    return find_spec("tflite_micro") is not None


def measure(path: str | os.PathLike[str], *, seed: int = 0, steps: int = 2) -> Measurement:
    """Load the file in TFLite Micro, run it `steps` times on inputs drawn from the seed, and read its allocations.

    Raises UnsupportedError where the tflite-micro wheel is missing or cannot run the file.
    """
    arrays, printed = isolated("downset.runtimes.tflm", "run_here", {"path": str(path), "seed": seed, "steps": steps})
    figures = {
        part: int(match[1])
        for part in ("total", "head", "tail")
        if (match := re.search(rf"Arena allocation {part} (\d+) bytes", printed))
    }
    if len(figures) < 3:
        raise UnsupportedError(f"TFLite Micro printed no allocations for {Path(path).name}")
    outputs = [arrays[f"output_{index}"] for index in range(len(arrays))]
    return Measurement(figures["head"], figures["tail"], figures["total"], outputs)


def time_runs(
    paths: Sequence[str | os.PathLike[str]],
    limit: float | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    budget_s: float = 2.0,
) -> list[Latency]:
    """The latency of each file by processor time, with its ratio to that of the first, in rounds as `round_seconds`
    times them. Raises UnsupportedError as `measure` does, and where inputs are to have other sizes."""
    if shapes:
        raise UnsupportedError("TFLite Micro runs a file at its own input sizes, not at those of ", Setting("shapes"))
    arguments = {"paths": [str(path) for path in paths], "limit": limit, "seed": seed, "budget_s": budget_s}
    arrays, _ = isolated("downset.runtimes.tflm", "time_here", arguments)
    return latencies(arrays["seconds"])


def time_here(paths: Sequence[str], limit: float | None, seed: int, budget_s: float) -> dict[str, npt.NDArray[Any]]:
    """`time_runs` inside the worker process: seconds by round and file."""
    runtime = optional_library("tflite_micro", what="timing in TFLite Micro", extra="tflm").runtime
    try:
        interpreters = [runtime.Interpreter.from_file(path, arena_size=arena_size(path)) for path in paths]
        files = [(_setting_inputs(interpreter, seed), interpreter.invoke) for interpreter in interpreters]
        return {"seconds": round_seconds(files, limit=limit, budget_s=budget_s)}
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(f"TFLite Micro cannot run {Path(paths[-1]).name}: {error}") from None


def _setting_inputs(interpreter: Any, seed: int) -> Callable[[], None]:
    """A function that sets the inputs, drawn from the seed."""
    values = []
    for position, index in enumerate(count_of(interpreter.get_input_details)):
        detail = interpreter.get_input_details(index)
        values.append((random_array(detail["shape"], detail["dtype"], seed=seed, position=position), index))

    def set_inputs() -> None:
        for value, index in values:
            interpreter.set_input(value, index)

    return set_inputs


def run_here(path: str, seed: int, steps: int) -> dict[str, npt.NDArray[Any]]:
    """`measure` inside the worker process; TFLite Micro prints its allocations to C's stdout or stderr."""
    runtime = optional_library("tflite_micro", what="measuring in TFLite Micro", extra="tflm").runtime
    try:
        interpreter = runtime.Interpreter.from_file(path, arena_size=arena_size(path))
        outputs = []
        for step in range(steps):
            _setting_inputs(interpreter, seed + step)()
            interpreter.invoke()
            outputs += [np.array(interpreter.get_output(index)) for index in count_of(interpreter.get_output_details)]
        interpreter.print_allocations()
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(f"TFLite Micro cannot run {Path(path).name}: {error}") from None
    return {f"output_{index}": array for index, array in enumerate(outputs)}


def count_of(details: Any) -> range:
    """The indices of inputs or outputs. The wheel does not report their number, so `details` is called until it
    fails."""
    for index in range(1024):
        try:
            details(index)
        except (IndexError, ValueError, RuntimeError):
            return range(index)
    return range(1024)
