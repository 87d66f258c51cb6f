"""BatchNormalization behind a convolution, folded into its weights and bias. This saves a kernel and is exact up to
rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.graph.core import ABSENT, Graph
from downset.graph.edit import Edit

__all__ = ["fold_batch_norm"]

Array = npt.NDArray[Any]


def fold_batch_norm(graph: Graph) -> Graph:
    """The same network in which each BatchNormalization that alone reads the result of a Conv with constant weights is
    folded into the Conv.

    Not folded: normalisations with several outputs or in channels-last layout, convolutions with a fused activation or
    in channels-last layout, and weights without a known value. New weights are computed when they are read.
    O(operators).
    """
    made_by, read_by = graph.producers(), graph.consumers()
    edit = Edit(graph)
    folded = False
    for index, op in enumerate(graph.ops):
        if op.kind != "BatchNormalization" or op.attrs.get("layout") == "NHWC":
            continue
        source = op.inputs[0]
        conv_index = made_by[source]
        if conv_index < 0 or len(read_by[source]) != 1 or source in graph.outputs:
            continue
        conv = graph.ops[conv_index]
        if conv.kind != "Conv" or conv.attrs.get("activation") or conv.attrs.get("layout") == "NHWC":
            continue
        parameters = [*op.inputs[1:5], conv.inputs[1], *conv.inputs[2:3]]
        constant = all(tensor in graph.constants for tensor in parameters if tensor != ABSENT)
        if not constant or len([tensor for tensor in op.outputs if tensor != ABSENT]) != 1:
            continue
        bias = conv.inputs[2] if len(conv.inputs) > 2 and conv.inputs[2] != ABSENT else None
        reads = [graph.constants[tensor] for tensor in op.inputs[1:5]]
        epsilon = float(op.attrs.get("epsilon", 1e-5))
        weights, shift = _folded(
            reads, graph.constants[conv.inputs[1]], None if bias is None else graph.constants[bias], epsilon
        )
        kernel = graph.tensors[conv.inputs[1]]
        name = conv.name
        new_weights = edit.add_tensor(f"{name}.folded_weight", kernel.shape, kernel, role="constant", value=weights)
        new_bias = edit.add_tensor(f"{name}.folded_bias", kernel.shape[:1], kernel, role="constant", value=shift)
        edit.replace(conv_index, [])
        edit.replace(
            index, [replace(conv, inputs=(conv.inputs[0], new_weights, new_bias), outputs=(op.outputs[0],), after=())]
        )
        folded = True
    return edit.finish() if folded else graph


def _folded(
    reads: list[Callable[[], Array]], weights: Callable[[], Array], bias: Callable[[], Array] | None, epsilon: float
) -> tuple[Callable[[], Array], Callable[[], Array]]:
    def factor() -> Array:
        scale, _, _, variance = (np.asarray(read(), np.float64) for read in reads)
        return np.asarray(scale / np.sqrt(variance + epsilon))

    def new_weights() -> Array:
        values = np.asarray(weights())
        along = (-1,) + (1,) * (values.ndim - 1)
        return np.asarray(values * factor().reshape(along), values.dtype)

    def new_bias() -> Array:
        _, shift, mean, _ = (np.asarray(read(), np.float64) for read in reads)
        before = 0.0 if bias is None else np.asarray(bias(), np.float64)
        return np.asarray(shift + (before - mean) * factor(), np.asarray(weights()).dtype)

    return new_weights, new_bias
