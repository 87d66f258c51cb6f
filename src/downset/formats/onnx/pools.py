"""Sizes of pools and transposed convolutions as ONNX Runtime computes them, where ONNX's inference computes others.

The standard and its inference allow a window that starts in the padding behind the image; ONNX Runtime and PyTorch drop
it. With the padding SAME, the inference pads for dilated windows; ONNX Runtime pads as if they were not dilated. A
transposed convolution with the padding SAME makes, in ONNX Runtime, its input's size times the stride, or the size that
its windows cover where that is smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from downset.formats.onnx.bodies import subgraphs
from downset.graph.kinds import kind_of

__all__ = ["may_differ", "pooled_sizes"]


def may_differ(nodes: Iterable[Any]) -> bool:
    """Whether a pool or transposed convolution, among the nodes or in their bodies, may have other sizes in ONNX
    Runtime than ONNX infers."""
    return any(_differs(node) or any(may_differ(body.node) for body in subgraphs(node)) for node in nodes)


def _differs(node: Any) -> bool:
    """Whether a node is a pool that rounds up, a dilated pool with the padding SAME, or a transposed convolution with
    the padding SAME and `output_padding`."""
    category = kind_of(node.op_type).category
    if category not in ("pool", "transposed convolution") or node.domain not in ("", "ai.onnx"):
        return False
    attributes = {item.name: item for item in node.attribute}
    same = "auto_pad" in attributes and attributes["auto_pad"].s.startswith(b"SAME")
    if category == "transposed convolution":
        return same and "output_padding" in attributes and "output_shape" not in attributes
    rounds_up = "ceil_mode" in attributes and (attributes["ceil_mode"].i or attributes["ceil_mode"].ref_attr_name)
    dilated = "dilations" in attributes and any(extent != 1 for extent in attributes["dilations"].ints)
    return bool(rounds_up or (dilated and same))


def pooled_sizes(onnx: Any, node: Any, shape: Sequence[int], weights: Sequence[int] = ()) -> tuple[int, ...] | None:
    """The spatial sizes of the result of a node for which `may_differ` holds. `shape`: that of the input, [batch,
    channels, *spatial]. `weights`: the shape of the weights, [., ., *window], if there are any. None for every other
    node, and for attributes that do not fit the shape."""
    if not _differs(node):
        return None
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute if not item.ref_attr_name}
    kernel, axes = attributes.get("kernel_shape") or weights[2:], len(shape) - 2
    strides, dilations = attributes.get("strides") or [1] * axes, attributes.get("dilations") or [1] * axes
    pads, padding = attributes.get("pads") or [0] * (2 * axes), attributes.get("auto_pad", b"NOTSET")
    if axes < 1 or not len(kernel) == len(strides) == len(dilations) == axes or len(pads) != 2 * axes:
        return None
    if kind_of(node.op_type).category == "transposed convolution":
        behind = attributes.get("output_padding") or [0] * axes
        windows = [dilation * (extent - 1) + 1 for extent, dilation in zip(kernel, dilations, strict=True)]
        return tuple(
            min(extent * stride, (extent - 1) * stride + window + more)
            for extent, stride, window, more in zip(shape[2:], strides, windows, behind, strict=False)
        )
    sizes = []
    for axis, extent in enumerate(shape[2:]):
        stride, window = strides[axis], dilations[axis] * (kernel[axis] - 1) + 1
        if stride < 1:
            return None
        head, both = pads[axis], pads[axis] + pads[axes + axis]
        if padding == b"VALID":
            head = both = 0
        elif padding.startswith(b"SAME"):
            both = (-(-extent // stride) - 1) * stride + kernel[axis] - extent
            head = int((both + (padding == b"SAME_LOWER")) / 2)
        room = extent + both - window
        size = int(room / stride) + 1  # C++ divides toward zero
        if attributes.get("ceil_mode"):
            size = -(-room // stride) + 1
            if (size - 1) * stride >= extent + head:
                size -= 1
        sizes.append(size)
    return tuple(sizes)
