"""The windows of convolutions by axis, and the smallest window that holds several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.graph.core import ABSENT, Graph, Op
from downset.graph.edit import Edit

__all__ = ["GEOMETRY", "ConvolutionAxis", "common_window", "joined_conv", "windows"]

GEOMETRY = frozenset({"kernel_shape", "strides", "dilations", "pads", "auto_pad", "group"})
"""Attributes of a convolution that state its window."""


@dataclass(frozen=True, slots=True)
class ConvolutionAxis:
    """A convolution along one axis of `size` values, with `before` zeros before the first and `after` behind the last.
    It makes `result` values; each reads `taps` values that are `dilation` apart, `stride` further than the one
    before."""

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    after: int
    result: int

    @property
    def extent(self) -> int:
        return (self.taps - 1) * self.dilation + 1

    @property
    def reach(self) -> int:
        """The number of results is (size + reach) // stride + 1."""
        return self.before + self.after - self.extent


def windows(graph: Graph, index: int) -> tuple[ConvolutionAxis, ...]:
    """A convolution's window along each spatial axis, with the pads that ONNX's `auto_pad` means."""
    op = graph.ops[index]
    size, taps = graph.tensors[op.inputs[0]].shape[2:], graph.tensors[op.inputs[1]].shape[2:]
    results = graph.tensors[op.outputs[0]].shape[2:]
    rank = len(taps)
    strides = [int(value) for value in op.attrs.get("strides") or [1] * rank]
    dilations = [int(value) for value in op.attrs.get("dilations") or [1] * rank]
    pads = [int(value) for value in op.attrs.get("pads") or [0] * (2 * rank)]
    mode = op.attrs.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        for axis in range(rank):
            wanted = (results[axis] - 1) * strides[axis] + (taps[axis] - 1) * dilations[axis] + 1 - size[axis]
            small, large = max(wanted, 0) // 2, max(wanted, 0) - max(wanted, 0) // 2
            pads[axis], pads[axis + rank] = (small, large) if mode == "SAME_UPPER" else (large, small)
    elif mode == "VALID":
        pads = [0] * (2 * rank)
    return tuple(
        ConvolutionAxis(
            size[axis], taps[axis], strides[axis], dilations[axis], pads[axis], pads[axis + rank], results[axis]
        )
        for axis in range(rank)
    )


def common_window(each: Sequence[tuple[ConvolutionAxis, ...]]) -> tuple[ConvolutionAxis, ...]:
    """By axis: the smallest window that has every tap of all these windows, whose sizes, strides and numbers of results
    are equal."""
    windows = []
    for along in zip(*each, strict=True):
        before = max(window.before for window in along)
        distances = [before - window.before for window in along]
        distances += [window.dilation for window in along if window.taps > 1]
        dilation = math.gcd(*distances) or 1
        extent = max(before - window.before + window.extent for window in along)
        size, stride, result = along[0].size, along[0].stride, along[0].result
        # The least pad behind with which the last result's window fits; pads are not negative.
        least = max((result - 1) * stride + extent - size - before, 0)
        # Up to stride - 1 more is never read. Both pads are equal where possible, since some kernels require that.
        largest = max((result - 1) * stride + extent - size - before + stride - 1, 0)
        after = before if least <= before <= largest else least
        if len({window.reach for window in along}) == 1:
            after = max(window.after for window in along)  # right at every size
        windows.append(ConvolutionAxis(size, (extent - 1) // dilation + 1, stride, dilation, before, after, result))
    return tuple(windows)


def joined_conv(edit: Edit, graph: Graph, ops: Sequence[int], source: int, output: int, *, group: int = 1) -> Op:
    """One convolution of `source` with the weights and biases of all these, one after another along the output
    channels."""
    first = graph.ops[ops[0]]
    each = [windows(graph, index) for index in ops]
    joined = common_window(each)
    kernel = [window.taps for window in joined]
    parts = [graph.ops[index].inputs[1] for index in ops]
    shapes = [graph.tensors[part].shape for part in parts]
    outside = sum(shape[0] for shape in shapes)
    places = [_place(one, joined) for one in each]
    reads = [graph.constants[part] for part in parts]

    def weights() -> npt.NDArray[Any]:
        values = [np.asarray(read()) for read in reads]
        whole = np.zeros((outside, shapes[0][1], *kernel), values[0].dtype)
        start = 0
        for value, place in zip(values, places, strict=True):
            whole[(slice(start, start + len(value)), slice(None), *place)] = value
            start += len(value)
        return whole

    like = graph.tensors[parts[0]]
    inputs = [
        source,
        edit.add_tensor(f"{like.name}/merged", (outside, shapes[0][1], *kernel), like, role="constant", value=weights),
    ]
    biases = [graph.ops[index].inputs[2] if len(graph.ops[index].inputs) > 2 else ABSENT for index in ops]
    if any(bias != ABSENT for bias in biases):
        read_biases = [None if bias == ABSENT else graph.constants[bias] for bias in biases]

        def bias() -> npt.NDArray[Any]:
            arrays = [None if read is None else np.asarray(read()) for read in read_biases]
            dtype = next(value.dtype for value in arrays if value is not None)
            filled = [
                np.zeros(shape[0], dtype) if value is None else value
                for value, shape in zip(arrays, shapes, strict=True)
            ]
            return np.concatenate(filled)

        bias_like = graph.tensors[next(tensor for tensor in biases if tensor != ABSENT)]
        name = f"{bias_like.name}/merged"
        inputs.append(edit.add_tensor(name, (outside,), bias_like, role="constant", value=bias))
    attrs = {key: value for key, value in first.attrs.items() if key not in GEOMETRY} | {
        "kernel_shape": kernel,
        "strides": [window.stride for window in joined],
        "dilations": [window.dilation for window in joined],
        "pads": [window.before for window in joined] + [window.after for window in joined],
        "group": group,
    }
    return Op(f"{first.name}/merged", first.kind, tuple(inputs), (output,), attrs)


def _place(one: tuple[ConvolutionAxis, ...], joined: tuple[ConvolutionAxis, ...]) -> list[slice]:
    """By axis: the slice of the merged kernel at which the taps of one kernel lie."""
    places = []
    for window, whole in zip(one, joined, strict=True):
        start = (whole.before - window.before) // whole.dilation
        step = max(window.dilation // whole.dilation, 1)  # a kernel of one tap may state any dilation
        places.append(slice(start, start + (window.taps - 1) * step + 1, step))
    return places
