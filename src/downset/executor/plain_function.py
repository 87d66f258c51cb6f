"""A network as a plain PyTorch function, operator by operator, for PyTorch to run or to compile."""

from __future__ import annotations

from typing import Any

from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.extras import torch_library
from downset.graph.core import ABSENT, Graph
from downset.graph.float_types import OWN
from downset.kernels.table import compute

__all__ = ["network_function"]


def network_function(graph: Graph, *, device: str = "cpu", dtype: str = OWN) -> tuple[Any, list[Any]]:
    """(function, inputs): the network as a function of its inputs, computed by the kernel table with images channels
    last in memory, and seeded random inputs for it."""
    torch = torch_library()
    binder = Binder(graph, device=device, dtype=dtype)
    constants: dict[tuple[int, int], Any] = {}  # by operator and position
    for index, op in enumerate(graph.ops):
        for position, tensor in enumerate(op.inputs):
            if tensor != ABSENT and tensor in graph.constants:
                value = binder.argument(op, position)
                last = value.dim() == 4 and value.is_floating_point()
                constants[index, position] = value.contiguous(memory_format=torch.channels_last) if last else value

    fixed = binder.fixed_outputs(graph.outputs)
    wanted = {*graph.outputs, *(t for op in graph.ops for t in op.inputs)} - {ABSENT}
    computed = [(index, op) for index, op in enumerate(graph.ops) if any(t not in graph.constants for t in op.outputs)]
    dtypes = {t: binder.dtype_of(t) for _, op in computed for t in op.outputs if t in wanted}

    def run(*values: Any) -> tuple[Any, ...]:
        table = {**fixed, **dict(zip(graph.inputs, values, strict=True))}
        for index, op in computed:
            inputs = [
                None
                if tensor == ABSENT
                else constants[index, position]
                if (index, position) in constants
                else table[tensor]
                for position, tensor in enumerate(op.inputs)
            ]
            shapes = [graph.tensors[t].shape if t != ABSENT else () for t in op.outputs]
            results = zip(op.outputs, compute(op, inputs, shapes), strict=False)
            table.update((t, value.to(dtypes[t])) for t, value in results if t in dtypes)
        return tuple(table[t] for t in graph.outputs)

    return run, list(map(binder.place, seeded_inputs(graph), graph.inputs))
