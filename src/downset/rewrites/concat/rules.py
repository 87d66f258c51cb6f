"""How one reader of a concatenation is split over the concatenation's parts.

`rule_for` finds the rule, if there is one. A rule edits the graph (`edits`) so that the reader no longer reads the
concatenation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from downset.graph.core import ABSENT, Graph, Op
from downset.graph.edit import Edit
from downset.graph.kinds import kind_of
from downset.rewrites.concat.edits import (
    Accumulate,
    flatten,
    flatten_images,
    move_behind,
    split_convolution,
    split_product,
    split_sum,
)
from downset.rewrites.concat.operands import concat_axis, operand_cut, summed_axis

__all__ = ["Kind", "moves_behind", "rule_for"]

Kind = Literal["channel-wise", "kernel-wise"]
Transformation = Callable[[Edit, int, int, Accumulate], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """How to split a reader: `apply(edit, site, reader, accumulate)` takes indices of the edit's original graph."""

    kind: Kind
    apply: Transformation


_OTHERS_MOVED = frozenset({"BatchNormalization", "Concat", "Flatten", "Pad"})
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})


def moves_behind(op: Op) -> bool:
    """Whether a concatenation can move behind operators of this kind. `rule_for` decides for a single operator."""
    row = kind_of(op.kind)
    if row.category == "convolution":
        return int(op.attrs.get("group", 1)) > 1
    return row.unary or row.broadcasts or row.pools or op.kind in _OTHERS_MOVED


def rule_for(graph: Graph, site: int, reader: int, inexact: bool) -> Rule | None:
    """The rule by which the operator `reader` can be split over the parts of the concatenation `site`, or None.

    Quantised results are summed part by part only if `inexact`.
    """
    op, concat = graph.ops[reader], graph.ops[site]
    row = kind_of(op.kind)
    joined = concat.outputs[0]
    axis = concat_axis(graph, concat)
    if len(op.outputs) != 1 or op.after:
        return None
    if op.kind == "Concat":
        return Rule("kernel-wise", flatten) if concat_axis(graph, op) == axis else None
    if row.broadcasts:
        return Rule("kernel-wise", move_behind) if _binary(graph, op, joined, axis) else None
    if op.inputs.count(joined) != 1 or op.inputs[0] != joined:
        return None
    constant = all(tensor == ABSENT or tensor in graph.constants for tensor in op.inputs[1:])
    if row.unary and (len(op.inputs) == 1 or (row.further == "numbers" and constant)):
        return Rule("kernel-wise", move_behind)
    if op.kind in ("Gemm", "MatMul"):
        sums = _matrix(graph, op, joined, axis) and (inexact or _floats(graph, op))
        return Rule("channel-wise", split_product if op.kind == "Gemm" else split_sum) if sums else None
    rank = len(graph.tensors[joined].shape)
    if op.kind == "Pad":
        return Rule("kernel-wise", move_behind) if constant and _leaves_alone(graph, op, axis, rank) else None
    if rank < 3 or axis != _channel_axis(op, rank):
        return None
    if row.pools and len(op.inputs) == 1:
        return Rule("kernel-wise", move_behind)
    if op.kind == "Flatten" and int(op.attrs.get("axis", 1)) == 1:
        return Rule("kernel-wise", flatten_images)
    if not constant:
        return None
    if op.kind == "BatchNormalization" and len(op.inputs) == 5 and not op.attrs.get("training_mode"):
        return Rule("kernel-wise", move_behind)
    return _convolution(graph, concat, op, axis, inexact)


def _floats(graph: Graph, op: Op) -> bool:
    """Whether input, weights and result of an operator are floats. Kernels for integer weights also round inputs."""
    return all(graph.tensors[tensor].dtype in _FLOATS for tensor in (op.inputs[0], op.inputs[1], op.outputs[0]))


def _channel_axis(op: Op, rank: int) -> int:
    return rank - 1 if op.attrs.get("layout") == "NHWC" else 1


def _leaves_alone(graph: Graph, op: Op, axis: int, rank: int) -> bool:
    """Whether a Pad is known to change nothing along the axis."""
    if len(op.inputs) > 3:  # for some axes only
        return False
    amounts = graph.constant(op.inputs[1]) if len(op.inputs) > 1 else np.asarray(op.attrs.get("pads", ()))
    if amounts is None or amounts.size != 2 * rank:
        return False
    if amounts.shape != (rank, 2):  # ONNX's begins, then its ends; TFLite's are pairs
        amounts = amounts.reshape(2, rank).T
    return not amounts[axis].any()


def _convolution(graph: Graph, concat: Op, op: Op, axis: int, inexact: bool) -> Rule | None:
    if kind_of(op.kind).category != "convolution" or len(op.inputs) > 3:  # a fourth input is added to the result
        return None
    groups = int(op.attrs.get("group", 1))
    channels = [graph.tensors[tensor].shape[axis] for tensor in concat.inputs]
    if groups == 1:
        return Rule("channel-wise", split_convolution) if inexact or _floats(graph, op) else None
    per_group = sum(channels) // groups
    return Rule("kernel-wise", move_behind) if all(count % per_group == 0 for count in channels) else None


def _binary(graph: Graph, op: Op, joined: int, axis: int) -> bool:
    """Whether an element-wise operator of two operands can be split: the other operand is a constant, does not vary
    along the axis, or is a concatenation of parts of the same shapes."""
    shape = graph.tensors[joined].shape
    if len(op.inputs) != 2 or graph.tensors[op.outputs[0]].shape != shape:
        return False
    if op.kind == "PRelu" and op.inputs[0] != joined:
        return False
    return all(operand_cut(graph, tensor, joined, axis) is not None for tensor in op.inputs)


def _matrix(graph: Graph, op: Op, joined: int, axis: int) -> bool:
    """Whether a matrix product sums over the axis of the concatenation, and its weights can be cut."""
    rank = len(graph.tensors[joined].shape)
    weights = op.inputs[1] if len(op.inputs) > 1 else ABSENT
    if axis != rank - 1 or rank < 2 or weights not in graph.constants:
        return False
    shape = graph.tensors[weights].shape
    if op.kind == "MatMul":
        return len(shape) == 2 and not op.attrs.get("transA") and not op.attrs.get("transB")
    total = graph.tensors[joined].shape[axis]
    bias = all(tensor == ABSENT or tensor in graph.constants for tensor in op.inputs[2:])
    return len(shape) == 2 and not op.attrs.get("transA") and shape[summed_axis(op)] == total and bias
