"""TFLite Micro in a worker process: the bytes that its arena took, outputs, and times."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.extras import optional_library
from downset.process.isolation import isolated
from downset.results.sessions import Latency
from downset.runtimes.inputs import random_array
from downset.runtimes.latencies import latencies

__all__ = ["ARENA_BYTES", "count_of", "measure", "time_runs"]

ARENA_BYTES = 1 << 28
"""Bytes of the arena given to TFLite Micro here; pages that are never touched take no memory."""


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
    paths: Sequence[str | os.PathLike[str]], *, seed: int = 0, rounds: int = 15, budget_s: float = 2.0
) -> list[Latency]:
    """The latency of each file, with its ratio to that of the first. Each round runs every file once. There are up to
    `rounds` timed rounds, which begin within `budget_s` after an untimed one; if that takes longer, it is the one that
    counts. Raises UnsupportedError as `measure` does."""
    arguments = {"paths": [str(path) for path in paths], "seed": seed, "rounds": rounds, "budget_s": budget_s}
    arrays, _ = isolated("downset.runtimes.tflm", "time_here", arguments)
    return latencies(arrays["seconds"])


def time_here(paths: Sequence[str], seed: int, rounds: int, budget_s: float) -> dict[str, npt.NDArray[Any]]:
    """`time_runs` inside the worker process: seconds by round and file."""
    runtime = optional_library("tflite_micro", what="timing in TFLite Micro", extra="tflm").runtime
    try:
        interpreters = [runtime.Interpreter.from_file(path, arena_size=ARENA_BYTES) for path in paths]
        first = time.perf_counter()
        seconds: list[list[float]] = []
        for number in range(1 + rounds):
            if number and time.perf_counter() - first > budget_s:
                break
            seconds.append([_invoked_s(interpreter, seed) for interpreter in interpreters])
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(f"TFLite Micro cannot run {Path(paths[-1]).name}: {error}") from None
    return {"seconds": np.array(seconds[1:] or seconds)}


def _invoked_s(interpreter: Any, seed: int) -> float:
    _set_inputs(interpreter, seed)
    begin = time.perf_counter()
    interpreter.invoke()
    return time.perf_counter() - begin


def _set_inputs(interpreter: Any, seed: int) -> None:
    for position, index in enumerate(count_of(interpreter.get_input_details)):
        detail = interpreter.get_input_details(index)
        interpreter.set_input(random_array(detail["shape"], detail["dtype"], seed=seed, position=position), index)


def run_here(path: str, seed: int, steps: int) -> dict[str, npt.NDArray[Any]]:
    """`measure` inside the worker process; TFLite Micro prints its allocations to C's stdout or stderr."""
    runtime = optional_library("tflite_micro", what="measuring in TFLite Micro", extra="tflm").runtime
    try:
        interpreter = runtime.Interpreter.from_file(path, arena_size=ARENA_BYTES)
        outputs = []
        for step in range(steps):
            _set_inputs(interpreter, seed + step)
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
