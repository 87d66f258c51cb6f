"""PyTorch in a worker process: the bytes that its CPU allocator gives while an exported program runs.

The program runs call by call in the order of the file, without gradients, as `torch.export.load(path).module()` does.
PyTorch's profiler reports every allocation. Inputs and weights exist before, and do not count. What a kernel holds
while it runs counts (a copy in another layout, the columns of a convolution): it depends on PyTorch's version, the
processor and the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from downset.errors import UnsupportedError
from downset.extras import torch_library
from downset.formats.torch.runnable import RunnableProgram, runnable_program, torch_dtype
from downset.messages import Setting
from downset.process.isolation import isolated
from downset.runtimes.inputs import random_array
from downset.text import brief

__all__ = ["measure"]

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
    if Path(path).suffix.lower() != ".pt2":
        raise UnsupportedError(f"PyTorch runs .pt2 files, not {Path(path).name}")
    if shapes:
        raise UnsupportedError("PyTorch runs a .pt2 file at its own input sizes, not at those of ", Setting("shapes"))
    arguments = {"path": str(path), "seed": seed, "trust": trust}
    arrays, _ = isolated("downset.runtimes.torch_eager", "run_here", arguments)
    workspaces = {int(call): int(nbytes) for call, nbytes in arrays["workspaces"]}
    return TorchPeak(int(arrays["total"]), workspaces, int(arrays["threads"]))


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


def _inputs(torch: Any, program: RunnableProgram, seed: int) -> dict[str, Any]:
    """The inputs by name, with the strides that they have in the program."""
    drawn = {}
    for position, value in enumerate(program.program.inputs):
        if value.shape is None:
            raise ValueError(f"input {value.name!r} is not a tensor")
        dtype = torch_dtype(torch, value.dtype)
        plain = dtype if hasattr(np, value.dtype) or value.dtype == "bool" else torch.float32
        array = random_array(value.shape, str(plain).removeprefix("torch."), seed=seed, position=position)
        tensor = torch.empty_strided(value.shape, program.strides[value.name], dtype=dtype)
        drawn[value.name] = tensor.copy_(torch.from_numpy(array))
    return drawn


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
