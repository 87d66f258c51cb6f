"""ExecuTorch programs planned by its own greedy planner, placed by ours, and ordered and placed by ours.

    PYTHONPATH=build/executorch/1.5.1 python -m experiments.arenas.executorch_peer [--quick]

Needs ExecuTorch (it is not a dependency; `tests/installed_apart.py` installs both versions); otherwise the
committed rows are printed, marked `recorded`. Each program is exported from the same float32 module, planned, and run
in ExecuTorch's runtime: outputs are compared with eager PyTorch. Bytes are those of all memories of the emitted
program; what the report of `planning_pass` says before and after is held against them. CPU seconds: the whole of
`to_executorch`, the second time of two in turns."""

from __future__ import annotations

import importlib.metadata
import time
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from downset.integrations.executorch import algorithm, planning_pass
from experiments.frame import Experiment, fields, run
from experiments.memories.executorch_networks import networks
from experiments.rows import Row

WAYS = ("executorch", "offsets", "ours")


def pass_of(way: str, told: list[Any]) -> Any:
    from executorch.exir.passes import MemoryPlanningPass

    if way == "ours":
        return planning_pass(report=told.append)
    return MemoryPlanningPass(memory_planning_algo=algorithm() if way == "offsets" else None)


def lowered(exported: Any, way: str, told: list[Any]) -> tuple[float, Any]:
    """CPU seconds of planning and emission, and the program."""
    from executorch.exir import ExecutorchBackendConfig, to_edge

    edge = to_edge(exported)
    config = ExecutorchBackendConfig(memory_planning_pass=pass_of(way, told))
    begin = time.process_time()
    program = edge.to_executorch(config)
    return time.process_time() - begin, program


def row_of(version: str, name: str, module: nn.Module, shape: tuple[int, ...]) -> Row:
    from executorch.runtime import Runtime

    inputs = (torch.randn(shape),)
    exported, told = torch.export.export(module, inputs), list[Any]()
    row: Row = {"network": name, "version": version}
    cpu_s: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(2):
        for way in WAYS:
            seconds, program = lowered(exported, way, told)
            cpu_s[way].append(seconds)
            row[f"{way}_bytes"] = sum(program.executorch_program.execution_plan[0].non_const_buffer_sizes)
            (result,) = Runtime.get().load_program(program.buffer).load_method("forward").execute(inputs)
            torch.testing.assert_close(result, module(*inputs))
    report = told[-1]
    said = report.own_bytes, min(report.given_bytes, report.ordered_bytes)
    if said != (row["executorch_bytes"], row["ours_bytes"]):
        raise SystemExit(f"{name}: the report says {said}, the programs take {row}")
    row["ratio"] = round(row["ours_bytes"] / row["executorch_bytes"], 4)
    return row | {f"{way}_cpu_s": round(cpu_s[way][-1], 3) for way in WAYS}


def rows(_options: Namespace) -> Iterator[Row]:
    if find_spec("executorch") is None:
        return
    version = importlib.metadata.version("executorch")
    for name, case in networks().items():
        yield row_of(version, name, *case)


EXPERIMENT = Experiment(
    "arenas_executorch",
    rows,
    (
        *fields("network", "version"),
        ("ExecuTorch's greedy", "{executorch_bytes:,}"),
        ("our offsets", "{offsets_bytes:,}"),
        ("our order and offsets", "{ours_bytes:,}"),
        ("ratio", "{ratio:.3f}"),
        ("CPU s: its own", "{executorch_cpu_s:.3f}"),
        ("our offsets", "{offsets_cpu_s:.3f}"),
        ("our order and offsets", "{ours_cpu_s:.3f}"),
    ),
    key=("network", "version"),
)

if __name__ == "__main__":
    run(EXPERIMENT)
