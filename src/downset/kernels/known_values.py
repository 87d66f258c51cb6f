"""Values that are known before a run: results of operators that read only constants or nothing, and shapes, which are
fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.extras import torch_library
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.float_types import numpy_type
from downset.graph.kinds import kind_of
from downset.kernels.table import compute, has_kernel
from downset.kernels.without_autocast import without_autocast

__all__ = ["with_known_values"]

Array = npt.NDArray[Any]


def with_known_values(graph: Graph, *, sized: bool = True) -> Graph:
    """The same graph with the results of operators on constants as constants. The kernel table computes them when they
    are asked for. Without `sized` results that may depend on the batch size are left out: shapes, tensors expanded to
    them, and those that operators make of numbers alone. Use that where the batch size is still to change.
    O(operators)."""
    constants = dict(graph.constants)
    for op in graph.ops:
        outputs = [tensor for tensor in op.outputs if tensor != ABSENT]
        row = kind_of(op.kind)
        if not has_kernel(op.kind) or row.draws != "never" or all(tensor in constants for tensor in outputs):
            continue
        inputs = [tensor for tensor in op.inputs if tensor != ABSENT]
        if not sized and (row.sized or not inputs):
            continue
        if op.kind == "Shape":
            first, stop = int(op.attrs.get("start", 0)), op.attrs.get("end")
            constants[outputs[0]] = partial(np.array, graph.tensors[op.inputs[0]].shape[first:stop], np.int64)
        elif all(tensor in constants for tensor in inputs):
            run = _once(graph, op, [None if tensor == ABSENT else constants[tensor] for tensor in op.inputs])
            for index, tensor in enumerate(op.outputs):
                if tensor != ABSENT:
                    constants[tensor] = partial(_result, run, index)
    return replace(graph, constants=constants) if len(constants) > len(graph.constants) else graph


def _result(run: Callable[[], list[Array]], position: int) -> Array:
    return run()[position]


def _plain(result: Any) -> Any:
    """The result in a type that numpy has."""
    return result.float() if str(result.dtype) == "torch.bfloat16" else result


def _once(graph: Graph, op: Op, reads: Sequence[Callable[[], Array] | None]) -> Callable[[], list[Array]]:
    """The results of an operator, in the element types that the graph states, computed when they are first asked
    for."""
    cache: list[list[Array]] = []

    def run() -> list[Array]:
        if not cache:
            torch = torch_library()
            arguments = [None if read is None else torch.from_numpy(np.array(read(), order="C")) for read in reads]
            metas = [graph.tensors[tensor] if tensor != ABSENT else None for tensor in op.outputs]
            with torch.no_grad(), without_autocast():
                results = compute(op, arguments, [() if tensor is None else tensor.shape for tensor in metas])
            cache.append(
                [
                    np.asarray(_plain(result).numpy(), None if tensor is None else numpy_type(tensor.dtype))
                    for result, tensor in zip(results, metas, strict=False)
                ]
            )
        return cache[0]

    return run
