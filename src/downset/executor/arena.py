"""Executes a graph inside one buffer of exactly the planned bytes.

Every activation is a view at its planned offset. The buffer is filled with poison before the run, and the bytes of each
tensor again when its lifetime ends. So a wrong plan gives wrong outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError, UsageError
from downset.extras import torch_library
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.float_types import numpy_type
from downset.kernels.table import check_kernels, compute
from downset.memory.records import align_up
from downset.results.plans import Arena, Order
from downset.runtimes.inputs import random_array

__all__ = ["run_in_arena", "seeded_inputs"]

_POISON = 0xFF
"""The byte that fills an arena before a run: floats of these bytes are NaN, signed integers are -1."""
_TYPES = {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"}


@dataclass(frozen=True, slots=True)
class ArenaRun:
    """Outputs in the graph's order. `high_water_bytes`: the end of the highest tensor that was written, rounded up to
    the plan's alignment."""

    outputs: list[npt.NDArray[Any]]
    high_water_bytes: int


def seeded_inputs(graph: Graph, *, seed: int = 0) -> list[npt.NDArray[Any]]:
    """Random values for the graph's inputs, in its order. The same seed gives the same values."""
    arrays = []
    for position, tensor in enumerate(graph.tensors[index] for index in graph.inputs):
        if tensor.dtype not in _TYPES:
            raise UnsupportedError(f"input {tensor.name!r} of type {tensor.dtype}: no values can be generated for it")
        arrays.append(random_array(tensor.shape, numpy_type(tensor.dtype), seed=seed, position=position))
    return arrays


def run_in_arena(graph: Graph, order: Order, arena: Arena, inputs: Sequence[npt.NDArray[Any]]) -> ArenaRun:
    """Execute the graph with PyTorch's kernels at the planned offsets. The plan is not checked: a wrong one gives wrong
    outputs.

    Raises UnsupportedError naming an operator without a kernel before anything runs, and UsageError for inputs that do
    not fit the graph.
    """
    check_kernels(graph)
    if len(inputs) != len(graph.inputs):
        raise UsageError(f"{graph.name} has {len(graph.inputs)} inputs, but {len(inputs)} were given")
    with torch_library().no_grad():
        run = _PoisonedArena(graph, arena)
        for tensor, value in zip(graph.inputs, inputs, strict=True):
            if tuple(value.shape) != graph.tensors[tensor].shape:
                wanted = list(graph.tensors[tensor].shape)
                raise UsageError(f"input {graph.tensors[tensor].name!r} has shape {wanted}, not {list(value.shape)}")
            run.store(tensor, torch_library().from_numpy(np.array(value, order="C")))
        for step, operator in enumerate(order.steps):
            run.execute(graph.ops[operator])
            run.release(step)
        outputs = [run.load(tensor).clone().cpu().numpy() for tensor in graph.outputs]
    return ArenaRun(outputs, run.high_water_bytes)


class _PoisonedArena:
    def __init__(self, graph: Graph, arena: Arena) -> None:
        torch = torch_library()
        self._graph, self._arena = graph, arena
        self._buffer = torch.full((max(arena.arena_bytes, 1),), _POISON, dtype=torch.uint8)
        self._outside: dict[int, Any] = {}  # constants, and tensors that the memory model does not count
        self.high_water_bytes = 0
        self._alignment = arena.records[0].alignment if arena.records else 1
        self._ending: dict[int, list[tuple[int, int]]] = {}
        for record, offset in zip(arena.records, arena.offsets, strict=True):
            self._ending.setdefault(record.stop - 1, []).append((offset, record.nbytes))
        self._offsets: Mapping[int, int] = arena.tensor_offsets
        self._last_step = len(graph.ops) - 1

    def _bytes(self, tensor: int) -> Any:
        """The tensor's planned bytes."""
        meta, start = self._graph.tensors[tensor], self._offsets[tensor]
        if meta.dtype not in _TYPES:
            raise UnsupportedError(f"tensor {meta.name!r} of type {meta.dtype} cannot be executed")
        raw = self._buffer[start : start + meta.nbytes]
        if raw.numel() != meta.nbytes:
            raise UsageError(f"tensor {meta.name!r} at {start} lies outside the arena")
        return raw

    def load(self, tensor: int) -> Any:
        if tensor in self._offsets:
            meta, raw = self._graph.tensors[tensor], self._bytes(tensor)
            dtype = getattr(torch_library(), meta.dtype)
            # A plan may leave an offset unaligned for the element type; the kernel then reads a copy.
            aligned = raw.storage_offset() % dtype.itemsize == 0
            return (raw if aligned else raw.clone()).view(dtype).reshape(meta.shape)
        if tensor not in self._outside:
            value = self._graph.constant(tensor)
            if value is None:
                raise UnsupportedError(f"tensor {self._graph.tensors[tensor].name!r} has no known value")
            self._outside[tensor] = torch_library().from_numpy(np.array(value, order="C"))
        return self._outside[tensor]

    def store(self, tensor: int, value: Any) -> None:
        meta = self._graph.tensors[tensor]
        if tensor in self._offsets:
            raw, torch = self._bytes(tensor), torch_library()
            dtype = getattr(torch, meta.dtype)
            raw.copy_(value.to(dtype).reshape(meta.shape).contiguous().reshape(-1).view(torch.uint8))
            end = self._offsets[tensor] + align_up(meta.nbytes, self._alignment)
            self.high_water_bytes = max(self.high_water_bytes, end)
        else:
            dtype = getattr(torch_library(), meta.dtype) if meta.dtype in _TYPES else value.dtype
            self._outside[tensor] = value.to(dtype).reshape(meta.shape).clone()

    def execute(self, op: Op) -> None:
        wanted = [tensor for tensor in op.outputs if tensor != ABSENT]
        if wanted and all(tensor in self._graph.constants for tensor in wanted):
            return
        inputs = [None if tensor == ABSENT else self.load(tensor) for tensor in op.inputs]
        shapes = [self._graph.tensors[tensor].shape if tensor != ABSENT else () for tensor in op.outputs]
        results = compute(op, inputs, shapes)
        # All results are complete before any is stored, because an output may lie where an input does.
        results = [result.clone() for result in results]
        for tensor, result in zip(op.outputs, results, strict=False):
            if tensor != ABSENT:
                self.store(tensor, result)

    def release(self, step: int) -> None:
        """Poison the tensors that no later step reads."""
        if step == self._last_step:
            return  # outputs are read after the last step
        for offset, nbytes in self._ending.get(step, ()):
            self._buffer[offset : offset + nbytes] = _POISON
