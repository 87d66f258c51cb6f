"""The identity of transposed convolutions: rows of the original's result from the rows of its input that add to
them."""

from __future__ import annotations

from typing import NamedTuple

from downset.equivalence.claims import Box, Unproven, whole
from downset.equivalence.file_network import ABSENT, FileNode
from downset.equivalence.identities import Place
from downset.equivalence.meaning import integers, number, others
from downset.equivalence.windows import right_stretch

__all__ = ["transposed_window"]

_PLACED = frozenset({"pads", "output_padding"})


def transposed_window(place: Place, node: FileNode, out: Box) -> Box:
    """Prove that a transposed convolution makes the box `out` of the original's result, with all channels. Returns the
    part of the box that is right: rows at a cut may lack what other rows of the input add to them.

    Row i of the input adds to the rows stride · i + dilation · k - pad of the result, for each k of the window."""
    mine = place.node
    if others(mine, without=_PLACED) != others(node, without=_PLACED) or "auto_pad" in node.settings:
        raise Unproven("it has other settings")
    source, full = (whole(place.first.values[value]) for value in (node.inputs[0], node.outputs[0]))
    spatial = len(out) - 2
    kernel = (place.first.values[node.inputs[1]].shape or ())[2:]
    strides, dilations = (integers(node, name, (1,) * spatial) for name in ("strides", "dilations"))
    if not len(kernel) == len(strides) == len(dilations) == spatial or "output_shape" in node.settings:
        raise Unproven("its window is not understood")
    for position in range(1, max(len(node.inputs), len(mine.inputs))):
        target = node.inputs[position] if position < len(node.inputs) else ABSENT
        place.holds(position, target, () if target == ABSENT else whole(place.first.values[target]))
    if out[1] != full[1]:
        raise Unproven("it makes some channels")
    number(mine, "group", 1)
    reasons = "its input holds no part of what the original reads"
    for box in place.boxes(0, node.inputs[0]):
        if box[0] != out[0] or box[1] != source[1]:
            continue
        right = list(out)
        try:
            for axis in range(spatial):
                window = _TransposedAlong(strides[axis], dilations[axis], kernel[axis], source[2 + axis][1])
                pads = [_pads(one, axis, spatial) for one in (mine, node)]
                right[2 + axis] = _along(window, pads, box[2 + axis], out[2 + axis])
        except Unproven as reason:
            reasons = str(reason)
            continue
        clipped = [(max(low, 0), min(high, end)) for (low, high), (_, end) in zip(right, full, strict=True)]
        return tuple(clipped)
    raise Unproven(reasons)


class _TransposedAlong(NamedTuple):
    stride: int
    dilation: int
    kernel: int
    extent: int
    """The rows of the original's input."""


def _pads(node: FileNode, axis: int, spatial: int) -> tuple[int, int, int]:
    """(rows cut off before and behind, rows added behind)."""
    pads = integers(node, "pads", (0,) * (2 * spatial))
    return pads[axis], pads[axis + spatial], integers(node, "output_padding", (0,) * spatial)[axis]


def _along(
    window: _TransposedAlong, pads: list[tuple[int, int, int]], read: tuple[int, int], positions: tuple[int, int]
) -> tuple[int, int]:
    """The positions along one dimension that get all that the original's rows add to them. `pads`: of this operator and
    of the original."""
    stride, dilation, kernel, extent = window
    (before, behind, more), (cut, _, _) = pads
    count = (read[1] - read[0] - 1) * stride - before - behind + dilation * (kernel - 1) + 1 + more
    if count != positions[1] - positions[0]:
        raise Unproven(f"it makes {count} positions, not {positions[1] - positions[0]}")
    if before + read[0] * stride - cut != positions[0]:
        raise Unproven("its windows begin at another place")

    def is_right(position: int) -> bool:
        adding = (divmod(position + cut - dilation * step, stride) for step in range(kernel))
        return all(rest or not 0 <= row < extent or read[0] <= row < read[1] for row, rest in adding)

    return right_stretch(positions, is_right)
