"""The identity of windows: a convolution or pool that makes some channels and rows of the original's result."""

from __future__ import annotations

from collections.abc import Callable

from downset.equivalence.claims import Box, Unproven, whole
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode, FileValue
from downset.equivalence.identities import Place
from downset.equivalence.meaning import Along, base_kind, channels_axis, fused, number, others, windows

__all__ = ["check_window", "hold_weights", "right_stretch", "same_window_kind", "window"]

Stretch = tuple[int, int]
"""Positions along one axis, half-open."""


def window(place: Place, node: FileNode, out: Box) -> Box:
    """Prove that a convolution or pool makes the box `out` of the original's result. Returns the part of the box that
    is right: rows at a cut may read padding where the original reads rows."""
    if fused(place.node) != fused(node):
        raise Unproven("its activation differs")
    same_window_kind(place.node, node)
    axis = channels_axis(node, len(out))
    weights = place.first.values[node.inputs[1]] if len(node.inputs) > 1 else None
    claim = _window_input(place, node, out, axis, _groups(node, place.first, axis), weights)
    if weights is not None:
        hold_weights(place, node, out[axis], None)
        for position in range(2, max(len(node.inputs), len(place.node.inputs))):
            target = node.inputs[position] if position < len(node.inputs) else ABSENT
            place.holds(position, target, (out[axis],) if position == 2 else out)
    return claim


def same_window_kind(mine: FileNode, original: FileNode) -> None:
    if base_kind(mine) != base_kind(original) or others(mine) != others(original):
        raise Unproven(f"{mine.kind} has other settings than {original.kind} {original.label!r}")


def hold_weights(place: Place, node: FileNode, channels: tuple[int, int], summed: tuple[int, int] | None) -> None:
    """Prove that the weights are those for these output channels and, with `summed`, for these input channels."""
    weights = place.first.values[node.inputs[1]]
    box = list(whole(weights))
    box[out_axis(node)] = channels
    if summed is not None:
        box[in_axis(node)] = summed
    place.holds(1, node.inputs[1], tuple(box))


def out_axis(node: FileNode) -> int:
    return 3 if node.kind == "DEPTHWISE_CONV_2D" else 0


def in_axis(node: FileNode) -> int:
    return 3 if node.kind == "CONV_2D" else 1


def _groups(node: FileNode, network: FileNetwork, axis: int) -> int:
    if len(node.inputs) < 2:
        return 0
    channels = (network.values[node.inputs[0]].shape or ())[axis]
    if node.kind == "DEPTHWISE_CONV_2D":
        return channels
    per_group = (network.values[node.inputs[1]].shape or ())[in_axis(node)]
    groups = channels // per_group
    if node.kind != "CONV_2D" and number(node, "group", 1) != groups:
        raise Unproven("its groups do not divide its channels")
    return groups


def _window_input(place: Place, node: FileNode, out: Box, axis: int, groups: int, weights: FileValue | None) -> Box:
    """The part of the box `out` that the operator makes right, given a proven box of its input."""
    source = place.first.values[node.inputs[0]]
    candidates = [(box, box) for box in place.boxes(0, node.inputs[0])]
    candidates += place.padded_boxes(0, node.inputs[0], _padding(node))
    if not candidates:
        raise Unproven(f"its input holds no part of {source.label!r}")
    channels = _channels_read(place, node, out[axis], axis, groups)
    fitting = [(box, claim) for box, claim in candidates if box[axis] == channels and box[0] == out[0]]
    if not fitting:
        raise Unproven(f"its input does not hold the channels {channels[0]}:{channels[1]} of {source.label!r}")
    return _right_of_window(place, node, out, fitting[0], axis, weights)


def _padding(node: FileNode) -> str:
    """The value that a kernel uses where a window reaches beyond its input; "" for an average, which skips it."""
    if node.kind in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        return "zero"
    return "lowest" if node.kind == "MAX_POOL_2D" else ""


def _channels_read(place: Place, node: FileNode, channels: tuple[int, int], axis: int, groups: int) -> tuple[int, int]:
    total = (place.first.values[node.inputs[0]].shape or ())[axis]
    if groups == 0:  # a pool
        return channels
    if groups == 1:
        if number(place.node, "group", 1) != 1:
            raise Unproven("it has groups")
        return (0, total)
    weights = place.first.values[node.inputs[1]].shape or ()
    out_of_group, in_of_group = weights[out_axis(node)] // groups, total // groups
    if channels[0] % out_of_group or channels[1] % out_of_group:
        raise Unproven("it makes part of a group")
    read = (channels[0] // out_of_group, channels[1] // out_of_group)
    if node.kind not in ("CONV_2D", "DEPTHWISE_CONV_2D") and number(place.node, "group", 1) != read[1] - read[0]:
        raise Unproven("it has a different number of groups")
    return (read[0] * in_of_group, read[1] * in_of_group)


def check_window(place: Place, node: FileNode, out: Box, read: Box, axis: int, weights: FileValue | None) -> None:
    """Prove that along every axis but `axis` the windows read the same positions as the original's, and padding in the
    same places. `read`: the box of the input."""
    if _right_of_window(place, node, out, (read, read), axis, weights) != out:
        raise Unproven("its windows need positions that it does not read")


def _right_of_window(
    place: Place, node: FileNode, out: Box, source: tuple[Box, Box], axis: int, weights: FileValue | None
) -> Box:
    """The part of the box `out` whose windows read what the original's windows read. `source`: the box of the input,
    and the positions in it that are right."""
    read, right = source
    size = whole(place.first.values[node.inputs[0]])
    spatial = [axis_index for axis_index in range(1, len(out)) if axis_index != axis]
    kernel = None
    if weights is not None:
        shape = weights.shape or ()
        kernel = shape[1:3] if node.kind in ("CONV_2D", "DEPTHWISE_CONV_2D") else shape[2:]
    try:
        ours = windows(place.node, [read[axis_index][1] - read[axis_index][0] for axis_index in spatial], kernel)
        theirs = windows(node, [size[axis_index][1] for axis_index in spatial], kernel)
    except ValueError as error:
        raise Unproven(f"its {error} is not understood") from None
    box, output = list(out), whole(place.first.values[node.outputs[0]])
    for axis_index, mine, original in zip(spatial, ours, theirs, strict=True):
        averages = node.kind in ("AveragePool", "LpPool")
        low, high = _along(
            mine,
            original,
            out[axis_index],
            (read[axis_index], right[axis_index]),
            size[axis_index][1],
            averages=averages,
        )
        box[axis_index] = (max(low, 0), min(high, output[axis_index][1]))
    return tuple(box)


def _along(
    mine: Along, its: Along, positions: Stretch, source: tuple[Stretch, Stretch], extent: int, *, averages: bool
) -> Stretch:
    """The positions whose windows read what the original's windows read: right values of the input, which has `extent`
    positions, and padding in the same places."""
    read, right = source
    if (mine.size, mine.stride, mine.dilation) != (its.size, its.stride, its.dilation):
        raise Unproven("its window differs")
    if mine.made != positions[1] - positions[0]:
        raise Unproven(f"it makes {mine.made} positions, not {positions[1] - positions[0]}")
    if read[0] - mine.pad_begin != positions[0] * its.stride - its.pad_begin:
        raise Unproven("its windows begin at another place")
    behind = (positions[1] - 1) * its.stride - its.pad_begin + its.reach
    if averages and (behind > extent + its.pad_end or behind > read[1] + mine.pad_end):
        raise Unproven("its windows reach beyond the padding")

    def is_right(position: int) -> bool:
        first = position * its.stride - its.pad_begin
        window = first, first + its.reach
        return _within(_common(window, (0, extent)), read) and _within(_common(window, read), right)

    return right_stretch(positions, is_right)


def right_stretch(positions: Stretch, is_right: Callable[[int], bool]) -> Stretch:
    """The right positions, which must follow one another."""
    low, high = positions
    while low < high and not is_right(low):
        low += 1
    while low < high and not is_right(high - 1):
        high -= 1
    if low >= high or not all(map(is_right, range(low, high))):
        raise Unproven("its windows need positions that it does not read")
    return low, high


def _common(one: Stretch, other: Stretch) -> Stretch:
    return max(one[0], other[0]), min(one[1], other[1])


def _within(inner: Stretch, outer: Stretch) -> bool:
    return inner[0] >= inner[1] or (outer[0] <= inner[0] and inner[1] <= outer[1])
