"""Where slices of both formats begin, and by which steps: ONNX's Slice, and TFLite's SLICE and STRIDED_SLICE."""

from __future__ import annotations

from dataclasses import dataclass

from downset.equivalence.claims import Box, Unproven, whole
from downset.equivalence.file_network import FileNetwork, FileNode
from downset.equivalence.identities import Place, bounds_of
from downset.equivalence.meaning import number

__all__ = ["SlicedAxis", "resliced", "sliced_axes"]


@dataclass(frozen=True, slots=True)
class SlicedAxis:
    """Along one axis of the input: the position `start` is the first that is taken, and each `step`th behind it.
    `count`: how many are taken. `gone`: the result lacks this axis, of which one position is taken."""

    start: int
    step: int
    count: int
    gone: bool = False


def sliced_axes(node: FileNode, network: FileNetwork, sizes: list[int]) -> list[SlicedAxis]:
    """The slice along each axis of an input of these sizes. Raises Unproven where its bounds are not constant, it takes
    positions backwards, or adds axes."""
    lists = bounds_of(node, network)
    starts, ends = lists[0], lists[1]
    if starts is None or ends is None:
        raise Unproven("states no constant bounds")
    if node.kind == "Slice":
        axes = list(range(len(starts))) if lists[2] is None else lists[2]
        if any(not -len(sizes) <= axis < len(sizes) for axis in axes):
            raise Unproven("slices an axis that its input lacks")
        axes = [axis % len(sizes) for axis in axes]
        steps = lists[3] or [1] * len(starts)
    else:
        axes, steps = list(range(len(starts))), lists[2] or [1] * len(starts)
    if len(set(axes)) != len(axes) or not len(axes) == len(starts) == len(ends) == len(steps):
        raise Unproven("has bounds of other axes")
    masks = [number(node, f"{name}Mask", 0) for name in ("begin", "end", "shrinkAxis", "newAxis", "ellipsis")]
    if masks[3] or masks[4] or number(node, "offset", 0):
        raise Unproven("has a mask of new axes, or ends that are counted from its begins")
    slices = [SlicedAxis(0, 1, size) for size in sizes]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        gone, size = bool(masks[2] >> axis & 1), sizes[axis]
        if step < 1:
            raise Unproven("reverses rows")
        low = 0 if masks[0] >> axis & 1 else min(max(start + size * (start < 0), 0), size)
        if node.kind == "SLICE":
            high = size if end == -1 else low + end
        else:
            high = size if masks[1] >> axis & 1 else min(max(end + size * (end < 0), 0), size)
        high = low + 1 if gone else high
        slices[axis] = SlicedAxis(low, step, max(-(-(high - low) // step), 0), gone)
    return slices


def resliced(place: Place, node: FileNode, out: Box) -> None:
    """A slice of a part of what the original's slice reads: it takes the same positions for the box of the result."""
    if place.node.kind != node.kind:
        raise Unproven(f"it is no {node.kind}")
    full = whole(place.first.values[node.inputs[0]])
    theirs = sliced_axes(node, place.first, [stop for _, stop in full])
    reasons = "its input holds no part of what the original reads"
    for box in place.boxes(0, node.inputs[0]):
        ours = sliced_axes(place.node, place.second, [stop - start for start, stop in box])
        stretches = iter(out)
        wanted = [(0, 1) if one.gone else next(stretches) for one in theirs]
        fits = [
            (mine.step, mine.gone, mine.count) == (its.step, its.gone, high - low)
            and start + mine.start == its.start + low * its.step
            and its.start + (high - 1) * its.step < stop
            for mine, its, (low, high), (start, stop) in zip(ours, theirs, wanted, box, strict=True)
        ]
        if all(fits):
            return
        reasons = "it takes other positions"
    raise Unproven(reasons)
