"""Bytes to and from slow memory of ten networks in ExecuTorch: placed by its own `banked_greedy`, and planned by ours.

    PYTHONPATH=build/executorch/1.5.1 python -m experiments.memories.executorch [--quick]

Needs ExecuTorch (it is not a dependency; `tests/installed_apart.py` installs both versions); otherwise the
committed rows are printed, marked `recorded`. Fast memory has half of the bytes that ExecuTorch's `greedy` takes in one
memory. Bytes are counted in the program that is emitted: each call of a kernel reads or writes each of its operands in
slow memory once. Version 1.4.1 has no `banked_greedy`. Outputs are those of eager PyTorch.
"""

from __future__ import annotations

import importlib.metadata
import math
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch

from downset.integrations.executorch import memories_pass
from experiments.frame import Experiment, fields, run
from experiments.memories.executorch_networks import networks
from experiments.rows import Row

__all__ = ["slow_bytes"]

SLOW, SLOW_BYTES = 2, 1 << 30
_MOVES = "dim_order_ops::_clone_dim_order"
_SIZES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2}
"""Bytes of an element by the number of its type in a program."""


def slow_bytes(program: Any) -> tuple[int, int]:
    """(bytes of moves, bytes of other calls) in slow memory, from the emitted program alone."""
    plan = program.executorch_program.execution_plan[0]
    moved = direct = 0
    for instruction in (one.instr_args for chain in plan.chains for one in chain.instructions):
        if type(instruction).__name__ != "KernelCall":
            continue
        nbytes_at: dict[int, int] = {}
        for number in _operands(plan, instruction.args):
            place = getattr(plan.values[number].val, "allocation_info", None)
            if place is not None and place.memory_id == SLOW:
                offset = place.memory_offset_low + (place.memory_offset_high << 32)
                nbytes_at[offset] = max(nbytes_at.get(offset, 0), _nbytes(plan.values[number].val))
        if plan.operators[instruction.op_index].name == _MOVES:
            moved += sum(nbytes_at.values())
        else:
            direct += sum(nbytes_at.values())
    return moved, direct


def _operands(plan: Any, args: Any) -> Iterator[int]:
    for number in args:
        items = getattr(plan.values[number].val, "items", None)
        if type(plan.values[number].val).__name__ in ("TensorList", "OptionalTensorList"):
            yield from (item for item in items if item >= 0)
        else:
            yield number


def _nbytes(tensor: Any) -> int:
    return math.prod(tensor.sizes) * _SIZES[int(tensor.scalar_type)]


def lowered(module: torch.nn.Module, inputs: tuple[torch.Tensor], planning: Any) -> Any:
    from executorch.exir import ExecutorchBackendConfig, to_edge

    config = {} if planning is None else {"memory_planning_pass": planning}
    return to_edge(torch.export.export(module, inputs)).to_executorch(ExecutorchBackendConfig(**config))


def check_outputs(program: Any, module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
    from executorch.runtime import Runtime

    (result,) = Runtime.get().load_program(program.buffer).load_method("forward").execute(inputs)
    torch.testing.assert_close(result, module(*inputs))


def banked(fast_bytes: int) -> Any:
    """ExecuTorch's own planner of two memories; None where this version has none."""
    if find_spec("executorch.exir.banked_memory_planning") is None:
        return None
    from executorch.exir.banked_memory_planning import Bank, TargetMemoryMap, banked_memory_planning_pass

    return banked_memory_planning_pass(TargetMemoryMap([Bank("fast", fast_bytes, 1), Bank("slow", SLOW_BYTES, SLOW)]))


def row_of(version: str, name: str, module: torch.nn.Module, shape: tuple[int, ...]) -> Row:
    inputs = (torch.randn(shape),)
    plain = lowered(module, inputs, None)
    greedy = sum(plain.executorch_program.execution_plan[0].non_const_buffer_sizes)
    fast = greedy // 2 // 16 * 16
    planner, told = banked(fast), []
    theirs = None if planner is None else sum(slow_bytes(lowered(module, inputs, planner)))
    ours = memories_pass(fast_bytes=fast, slow_bytes=SLOW_BYTES, work_limit=200_000, report=told.append)
    program = lowered(module, inputs, ours)
    check_outputs(program, module, inputs)
    moved, direct = slow_bytes(program)
    assert (moved, direct) == (told[0].moved_bytes, told[0].direct_bytes), "the program has other bytes than the plan"
    row: Row = {"network": name, "version": version, "greedy": greedy, "fast": fast, "banked": theirs}
    row |= {"moves": told[0].moves, "moved": moved, "direct": direct, "ours": moved + direct}
    return row | {"ratio": None if not theirs else round((moved + direct) / theirs, 4)}


def rows(_options: Namespace) -> Iterator[Row]:
    if find_spec("executorch") is None:
        return
    version = importlib.metadata.version("executorch")
    for name, case in networks().items():
        yield row_of(version, name, *case)


EXPERIMENT = Experiment(
    "memories_executorch",
    rows,
    (
        *fields("network", "version"),
        *fields("greedy", "fast", "banked", "moves", "moved", "direct", "ours", spec=","),
        ("ours / banked", "{ratio:.3f}"),
    ),
    key=("network", "version"),
)

if __name__ == "__main__":
    run(EXPERIMENT)
