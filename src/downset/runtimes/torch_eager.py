"""PyTorch in a worker process: the bytes that its CPU allocator gives while an exported program runs.

The program runs call by call in the order of the file, without gradients, as `torch.export.load(path).module()` does.
PyTorch's profiler reports every allocation. Inputs and weights exist before, and do not count. What a kernel holds
while it runs counts (a copy in another layout, the columns of a convolution): it depends on PyTorch's version, the
processor and the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from downset.errors import UnsupportedError
from downset.extras import torch_library
from downset.formats.torch.runnable import RunnableProgram, runnable_program
from downset.messages import Setting
from downset.process.isolation import isolated
from downset.results.sessions import Latency
from downset.runtimes.inputs import random_array
from downset.runtimes.latencies import latencies
from downset.runtimes.rounds import round_seconds
from downset.text import brief

__all__ = ["measure", "time_runs"]

_RUNS = 2
"""Runs that are measured; the first one also makes what libraries keep."""
_MARK = "downset call "
"""The profiler's name of a call, before its number."""


@dataclass(frozen=True, slots=True)
class TorchPeak:
    """`total_bytes`: the most that was allocated at once in any run. `workspaces`: by operator of the file, the bytes
    that it held while it ran beyond those that it left allocated; operators that held none are left out. `threads`:
    with how many PyTorch computed."""

    total_bytes: int
    workspaces: Mapping[int, int]
    threads: int


def measure(
    path: str | os.PathLike[str],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    trust: bool = False,
) -> TorchPeak:
    """Run a `.pt2` file on inputs drawn from the seed. Without `trust` it is read as data, and only PyTorch's own
    operators run. Raises UnsupportedError where PyTorch is missing or does not run the file."""
    _check_runs([path], shapes)
    arguments = {"path": str(path), "seed": seed, "trust": trust}
    arrays, _ = isolated("downset.runtimes.torch_eager", "run_here", arguments)
    workspaces = {int(call): int(nbytes) for call, nbytes in arrays["workspaces"]}
    return TorchPeak(int(arrays["total"]), workspaces, int(arrays["threads"]))


def time_runs(
    paths: Sequence[str | os.PathLike[str]],
    limit: float | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    budget_s: float = 2.0,
) -> list[Latency]:
    """The latency of each `.pt2` file by processor time on one thread, with its ratio to that of the first, in rounds
    as `round_seconds` times them. The files are read as data. Raises UnsupportedError as `measure` does."""
    _check_runs(paths, shapes)
    arguments = {"paths": [str(path) for path in paths], "limit": limit, "seed": seed, "budget_s": budget_s}
    arrays, _ = isolated("downset.runtimes.torch_eager", "time_here", arguments)
    return latencies(arrays["seconds"])


def _check_runs(paths: Sequence[str | os.PathLike[str]], shapes: Mapping[str, tuple[int, ...]] | None) -> None:
    for path in map(Path, paths):
        if path.suffix.lower() != ".pt2":
            raise UnsupportedError(f"PyTorch runs .pt2 files, not {path.name}")
    if shapes:
        raise UnsupportedError("PyTorch runs a .pt2 file at its own input sizes, not at those of ", Setting("shapes"))


def time_here(paths: Sequence[str], limit: float | None, seed: int, budget_s: float) -> dict[str, Any]:
    """`time_runs` inside the worker process: seconds by round and file."""
    torch = torch_library("timing in PyTorch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        programs = [runnable_program(Path(path)) for path in paths]
        fed = [(program, _inputs(torch, program, seed)) for program in programs]
        with torch.no_grad():
            files = [(_nothing, partial(_run, program, inputs)) for program, inputs in fed]
            return {"seconds": round_seconds(files, limit=limit, budget_s=budget_s)}
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
        raise UnsupportedError(f"PyTorch cannot run {Path(paths[-1]).name}: {brief(error)}") from None
    finally:
        torch.set_num_threads(threads)


def _nothing() -> None:
    pass


def _run(program: RunnableProgram, inputs: Mapping[str, Any]) -> None:
    program.run(inputs, check_types=False)  # which takes no time where runs are timed


def run_here(path: str, seed: int, trust: bool) -> dict[str, Any]:
    """`measure` inside the worker process."""
    torch = torch_library("measuring in PyTorch")
    program = runnable_program(Path(path), trust=trust)
    try:
        inputs = _inputs(torch, program, seed)
        with torch.no_grad():
            runs = [_profiled(torch, program, inputs) for _ in range(_RUNS)]
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
        raise UnsupportedError(f"PyTorch cannot run {Path(path).name}: {brief(error)}") from None
    workspaces = {call: max(run[1].get(call, 0) for run in runs) for call in range(len(program.operators))}
    listed = [(call, nbytes) for call, nbytes in workspaces.items() if nbytes]
    return {
        "total": np.int64(max(total for total, _ in runs)),
        "workspaces": np.asarray(listed, np.int64).reshape(-1, 2),
        "threads": np.int64(torch.get_num_threads()),
    }


def _inputs(torch: Any, program: RunnableProgram, seed: int) -> Mapping[str, Any]:
    """The inputs by name, drawn from the seed."""
    arrays = []
    for position, value in enumerate(program.program.inputs):
        lacks = not hasattr(np, value.dtype) and value.dtype != "bool"
        arrays.append(
            random_array(value.shape or (), "float32" if lacks else value.dtype, seed=seed, position=position)
        )
    return program.inputs_of(torch, arrays)


def _profiled(torch: Any, program: RunnableProgram, inputs: Mapping[str, Any]) -> tuple[int, dict[int, int]]:
    """(the most bytes allocated at once in a run, the workspace of each call)."""
    profiler = torch.profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        results = program.run(inputs, lambda call: profiler.record_function(f"{_MARK}{call}"))
    del results
    events = profiled.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda change: change[0])  # stable: changes at one time stay in their sequence
    calls = sorted(
        (event.start_ns(), event.end_ns(), int(event.name().removeprefix(_MARK)))
        for event in events
        if event.name().startswith(_MARK)
    )
    return _peaks(changes, calls)


def _peaks(changes: list[tuple[int, int]], calls: list[tuple[int, int, int]]) -> tuple[int, dict[int, int]]:
    """The result of `_profiled`, from (time, bytes) of each change and (start, end, number) of each call."""
    live = most = place = 0
    workspaces = {}
    for start, end, call in calls:
        while place < len(changes) and changes[place][0] < start:  # what was let go after the call before
            live, place = live + changes[place][1], place + 1
        peak = live
        while place < len(changes) and changes[place][0] <= end:
            live, place = live + changes[place][1], place + 1
            peak = max(peak, live)
        most = max(most, peak)
        workspaces[call] = peak - live
    return most, workspaces
