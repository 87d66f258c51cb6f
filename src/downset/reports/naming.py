"""Common names of operators, and shapes as people write them."""

from __future__ import annotations

from downset.graph.core import ABSENT, Graph, Op, Tensor

__all__ = ["kind_name", "shape_text"]

_CHANNELS = {"NHWC": -1, "NCHW": 1}


def kind_name(graph: Graph, op: Op) -> str:
    """The operator's kind; a convolution of as many groups as its input has channels is "depthwise Conv"."""
    group = op.attrs.get("group", 1)  # an operator of another domain may hold any value
    convolves = op.kind.rpartition("::")[2].rpartition(".")[2] in ("Conv", "FusedConv")
    if not convolves or not isinstance(group, int) or group <= 1 or not op.inputs or op.inputs[0] == ABSENT:
        return op.kind
    shape = graph.tensors[op.inputs[0]].shape
    axis = _CHANNELS.get(str(op.attrs.get("layout", "NCHW")), 1)
    return f"depthwise {op.kind}" if len(shape) > 1 and shape[axis] == group else op.kind


def shape_text(tensor: Tensor) -> str:
    """1x16000, or "scalar"; nothing for a tensor of which only the bytes are known."""
    if not tensor.shape:
        return "" if tensor.dtype == "opaque" else "scalar"
    return "x".join(map(str, tensor.shape))
