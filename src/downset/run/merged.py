"""Several convolutions of one input as one: kernels stacked, results read as slices of its channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from downset.errors import UnsupportedError
from downset.graph import ABSENT, Graph, Op
from downset.run.bound import Binder, Call, Geometry
from downset.run.library import torch_library

__all__ = ["bind_merged", "common_frame", "why_not_merged"]


def _convolution(graph: Graph, ops: Sequence[int]) -> Op | None:
    """The convolution of a unit that is one convolution, or one with the ReLU behind it."""
    first = graph.ops[ops[0]]
    if first.kind not in ("Conv", "com.microsoft::FusedConv") or len(ops) > 2:
        return None
    if len(ops) == 2 and (graph.ops[ops[1]].kind != "Relu" or first.attrs.get("activation")):
        return None
    return first


def _relu(graph: Graph, ops: Sequence[int]) -> bool:
    return len(ops) == 2 or graph.ops[ops[0]].attrs.get("activation") == "Relu"


def common_frame(
    kernels: Sequence[Sequence[int]], pads: Sequence[Sequence[int]], dilations: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """(kernel, begin pads) of the merged convolution: P = max p, K = P + max(k − p) on each axis, in taps of the
    dilation; kernel i then lies at offset P − p of its own. None where an offset is no whole number of taps."""
    frame, begins = [], []
    for axis, dilation in enumerate(dilations):
        begin = max(pad[axis] for pad in pads)
        offsets = [begin - pad[axis] for pad in pads]
        if any(offset % dilation for offset in offsets):
            return None
        frame.append(max(offset // dilation + kernel[axis] for offset, kernel in zip(offsets, kernels, strict=True)))
        begins.append(begin)
    return frame, begins


def why_not_merged(graph: Graph, units: Sequence[Sequence[int]]) -> str | None:
    """None where these units can run as one convolution, else the reason. Exact: zeros are added to kernels only."""
    if len(units) < 2:
        return "a single unit"
    convolutions = [_convolution(graph, ops) for ops in units]
    ops = [op for op in convolutions if op is not None]
    if len(ops) < len(units):
        return "not all are convolutions"
    first = ops[0]
    outputs = [graph.tensors[op.outputs[0]].shape for op in ops]
    for op in ops:
        if op.inputs[0] != first.inputs[0]:
            return "different inputs"
        if op.attrs.get("layout") == "NHWC" or len(graph.tensors[op.inputs[0]].shape) != 4:
            return "not an image, channels first"
        if int(op.attrs.get("group", 1)) != 1:
            return "grouped convolutions"
        if len(op.inputs) > 3 or any(t != ABSENT and t not in graph.constants for t in op.inputs[1:]):
            return "weights that are not constant"
        if op.attrs.get("auto_pad", "NOTSET") != "NOTSET" or op.attrs.get("activation") not in (None, "", "Relu"):
            return "an automatic padding or an activation other than ReLU"
        for name in ("strides", "dilations"):
            if tuple(op.attrs.get(name) or (1, 1)) != tuple(first.attrs.get(name) or (1, 1)):
                return f"different {name}"
    if len({shape[2:] for shape in outputs}) > 1:
        return "outputs of different sizes"
    if len({_relu(graph, unit) for unit in units}) > 1:
        return "an activation behind some of them only"
    kernels = [graph.tensors[op.inputs[1]].shape[2:] for op in ops]
    pads = [tuple(op.attrs.get("pads") or (0, 0, 0, 0))[:2] for op in ops]
    if common_frame(kernels, pads, tuple(first.attrs.get("dilations") or (1, 1))) is None:
        return "pads that differ by a part of the dilation"
    return None


def bind_merged(binder: Binder, units: Sequence[Sequence[int]], *, threads: int) -> tuple[Call, ...]:
    """One call that makes the results of all units. Raises UnsupportedError where they cannot be merged."""
    graph, torch = binder.graph, torch_library()
    reason = why_not_merged(graph, units)
    if reason is not None:
        raise UnsupportedError(f"operators of {len(units)} units cannot be merged: {reason}")
    ops = [graph.ops[unit[0]] for unit in units]
    results = tuple(graph.ops[unit[-1]].outputs[0] for unit in units)
    dilations = tuple(ops[0].attrs.get("dilations") or (1, 1))
    strides = tuple(ops[0].attrs.get("strides") or (1, 1))
    weights = [binder.constant(op.inputs[1]) for op in ops]
    pads = [tuple(op.attrs.get("pads") or (0, 0, 0, 0))[:2] for op in ops]
    found = common_frame([tuple(weight.shape[2:]) for weight in weights], pads, dilations)
    assert found is not None  # why_not_merged has looked
    frame, begins = found
    stacked = weights[0].new_zeros((sum(weight.shape[0] for weight in weights), weights[0].shape[1], *frame))
    biases = weights[0].new_zeros(stacked.shape[0])
    at = 0
    for op, weight, pad in zip(ops, weights, pads, strict=True):
        top, left = ((begin - own) // step for begin, own, step in zip(begins, pad, dilations, strict=True))
        height, width = weight.shape[2:]
        stacked[at : at + weight.shape[0], :, top : top + height, left : left + width] = weight
        if len(op.inputs) > 2 and op.inputs[2] != ABSENT:
            biases[at : at + weight.shape[0]] = binder.constant(op.inputs[2])
        at += weight.shape[0]
    shape = graph.tensors[ops[0].inputs[0]].shape
    wanted = graph.tensors[results[0]].shape[2:]
    ends = [
        stride * (out - 1) + (kernel - 1) * dilation + 1 - extent - begin
        for stride, out, kernel, dilation, extent, begin in zip(
            strides, wanted, frame, dilations, shape[2:], begins, strict=True
        )
    ]
    # Equal pads serve where they give the same rows and columns; otherwise the image is padded (or cut) first.
    equal = all(end <= begin < end + stride for end, begin, stride in zip(ends, begins, strides, strict=True))
    inside = tuple(begins) if equal else (0, 0)
    outside = [0, 0, 0, 0] if equal else [begins[1], ends[1], begins[0], ends[0]]
    padded = (shape[0], shape[1], shape[2] + outside[2] + outside[3], shape[3] + outside[0] + outside[1])
    geometry = Geometry(inside, strides, dilations, 1, _relu(graph, units[0]))
    key = tuple(op.inputs[1] for op in ops)
    convolve = binder.convolution(("merged", *key), stacked, biases, geometry, padded, threads)
    channels = [weight.shape[0] for weight in weights]

    def run(values: list[Any]) -> Sequence[Any]:
        image = values[0] if equal else torch.nn.functional.pad(values[0], outside)
        (result,) = convolve([image])
        return list(torch.split(result, channels, dim=1))

    return (Call((ops[0].inputs[0],), results, run),)
