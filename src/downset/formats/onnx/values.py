"""Values that are known without inputs: small constants, sizes, and values computed from these by ONNX's reference
implementation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LARGEST_ELEMENTS", "Array", "evaluate", "small"]

LARGEST_ELEMENTS = 1024
"""The most elements of a value that is evaluated: sizes and indices, never weights or what a damaged file claims."""

Array = npt.NDArray[Any]

_EVALUATED = frozenset(
    {
        "Abs",
        "Add",
        "And",
        "Cast",
        "CastLike",
        "Ceil",
        "Concat",
        "ConstantOfShape",
        "CumSum",
        "Div",
        "Equal",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "NonZero",
        "Not",
        "Or",
        "Pad",
        "Pow",
        "Range",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "Reshape",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Sign",
        "Slice",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
        "Xor",
    }
)
"""Operators with which exporters compute sizes."""


def small(onnx: Any, tensor: Any) -> Array | None:
    """The value of a tensor of the file, if it is small and inside the file."""
    if math.prod(tensor.dims) > LARGEST_ELEMENTS or tensor.data_location == 1:
        return None
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except Exception:  # protobuf and numpy raise errors of several classes for a damaged tensor
        return None


def evaluate(
    onnx: Any,
    node: Any,
    *,
    values: Mapping[str, Array | None],
    shapes: Mapping[str, tuple[int, ...] | None],
    opsets: Sequence[Any],
    most: int = LARGEST_ELEMENTS,
) -> Mapping[str, Array]:
    """The results of a node of ONNX's own domain if all that it reads is known and all results are small, of at most
    `most` elements; else none.

    `values`: of the tensors that it reads, by name. `shapes`: of those that it reads or makes. None: not known.
    """
    if node.op_type == "Constant":
        return _constant(onnx, node)
    if node.op_type in ("Shape", "Size") and node.input and node.output:
        shape = shapes.get(node.input[0])
        return {} if shape is None else {node.output[0]: _sizes(node, shape)}
    if node.op_type not in _EVALUATED or any(item.ref_attr_name for item in node.attribute):
        return {}
    if any(value is None for value in values.values()):
        return {}
    result_shapes = [shapes.get(name) for name in node.output if name]
    # NonZero makes at most as many positions as its small input has elements.
    shaped = node.op_type == "NonZero" or all(shape is not None for shape in result_shapes)
    if not shaped or any(math.prod(shape) > most for shape in result_shapes if shape is not None):
        return {}
    return _run(onnx, node, values, opsets)


def _constant(onnx: Any, node: Any) -> Mapping[str, Array]:
    for item in node.attribute:
        if item.name == "value" and not item.ref_attr_name:
            value = small(onnx, item.t)
            return {} if value is None else {node.output[0]: value}
        if item.name in ("value_int", "value_ints", "value_float", "value_floats") and not item.ref_attr_name:
            dtype = np.int64 if "int" in item.name else np.float32
            return {node.output[0]: np.asarray(onnx.helper.get_attribute_value(item), dtype)}
    return {}


def _sizes(node: Any, shape: tuple[int, ...]) -> Array:
    """The result of a Shape (its part from `start` to `end`) or a Size."""
    if node.op_type == "Size":
        return np.asarray(math.prod(shape), np.int64)
    bounds = {item.name: item.i for item in node.attribute}
    return np.asarray(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)


def _run(onnx: Any, node: Any, values: Mapping[str, Array | None], opsets: Sequence[Any]) -> Mapping[str, Array]:
    from onnx.reference import ReferenceEvaluator

    helper = onnx.helper
    empty = [helper.make_empty_tensor_value_info(name) for name in values]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "node", empty, outputs)
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets)).run(None, dict(values))
    except Exception:  # a node that does not evaluate (a division by zero, an index outside) has no known value
        return {}
    named = zip((name for name in node.output if name), results, strict=True)
    return {name: np.asarray(value) for name, value in named if isinstance(value, (np.ndarray, np.generic))}
