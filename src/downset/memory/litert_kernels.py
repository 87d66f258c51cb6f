"""Formulas for the bytes that LiteRT's built-in kernels ask of its arena beyond the tensors of a file.

*Source*: the Prepare functions of tensorflow/lite/kernels/conv.cc and reduce.cc. On one thread a convolution copies the
windows that it reads (im2col), unless each is one position that follows the last. A sum or mean has an accumulator for
each value of its result, an index and its axes, and a temporary tensor without bytes.
`python -m experiments.tflite_memory.litert` holds arenas with these buffers to where LiteRT puts its tensors.
"""

from __future__ import annotations

import math

from downset.graph.core import ABSENT, Graph, Op
from downset.memory.kernel_request import Request

__all__ = ["litert_request"]

_VALUE_BYTES = {"float32": 4, "int8": 1, "uint8": 1}
_SUM_BYTES = {"float32": 4, "int8": 4, "uint8": 4, "int16": 4, "int32": 8, "int64": 8}
_INDEX_BYTES = 4


def litert_request(graph: Graph, op: Op) -> Request | None:
    """The request of LiteRT's kernel for this operator, without alignment. Empty where it asks for nothing, and for
    networks that are not in TFLite's layout; None where the formula is not known: convolutions in groups, and of
    values of another type than the weights."""
    if op.kind in ("ReduceMean", "ReduceSum"):
        return _reduction(graph, op)
    if op.kind != "Conv" or op.attrs.get("layout") != "NHWC" or op.attrs.get("depthwise"):
        return Request()
    if ABSENT in (*op.inputs[:2], *op.outputs[:1]):
        return None
    read, weights, result = (graph.tensors[tensor] for tensor in (*op.inputs[:2], op.outputs[0]))
    if len(read.shape) != 4 or len(weights.shape) != 4 or weights.shape[3] != read.shape[3]:
        return None
    if read.dtype not in _VALUE_BYTES or (read.dtype == "float32") != (weights.dtype == "float32"):
        return None
    taps = math.prod(weights.shape[1:3])
    if taps == 1 and all(step == 1 for step in (*op.attrs["strides"], *op.attrs["dilations"])):
        return Request()
    return Request((math.prod(result.shape[:3]) * taps * read.shape[3] * _VALUE_BYTES[read.dtype],))


def _reduction(graph: Graph, op: Op) -> Request | None:
    """The request of a sum or mean along axes that the file states."""
    if len(op.inputs) != 2 or ABSENT in (*op.inputs, *op.outputs):
        return None
    read, axes, result = (graph.tensors[tensor] for tensor in (*op.inputs, op.outputs[0]))
    if read.dtype not in _SUM_BYTES or axes.role != "constant":
        return None
    sums = math.prod(result.shape) * _SUM_BYTES[read.dtype]
    return Request((len(read.shape) * _INDEX_BYTES, math.prod(axes.shape) * _INDEX_BYTES, sums, 0))
