"""The local identities: an operator makes a part of the result of the original's operator, from parts of its inputs.

Each function proves this for one operator, from claims already proven about its inputs, or raises Unproven. No function
depends on how the network was rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from downset.equivalence.claims import Box, Claim, Unproven, Views, array_of, scales_of, whole
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode, FileValue
from downset.equivalence.meaning import fused, number, others

__all__ = [
    "Place",
    "aligned",
    "bounds_of",
    "box_text",
    "broadcast",
    "elementwise",
    "global_pool",
    "integers_of",
    "joined",
    "kept",
    "normalised",
    "padded",
    "pads_of",
    "same_constant",
    "same_settings",
    "same_type",
    "shape_is",
    "sliced",
    "undivided",
]

Pads = list[tuple[int, int]]
"""By axis: how many elements are added before the first and behind the last; a negative number removes elements."""


@dataclass(frozen=True, slots=True)
class Place:
    """An operator `node` of the rewritten network `second`, the claims proven so far, and the original `first`."""

    node: FileNode
    second: FileNetwork
    first: FileNetwork
    views: Views
    claims: dict[int, Claim]

    def value(self, position: int) -> FileValue | None:
        """The input at this position, or None."""
        operand = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        return None if operand == ABSENT else self.second.values[operand]

    def holds(self, position: int, target: int, box: Box) -> None:
        """Prove that an input holds this box of a value of the original."""
        operand = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        if ABSENT in (operand, target):
            if operand != target:
                raise Unproven(f"input {position} is there in one of the files only")
            return
        original = self.first.values[target]
        if original.content is not None:
            same_constant(self.second.values[operand], original, box)
            return
        claim = self.claims.get(operand)
        if claim is None or box not in self.views.boxes(claim, target):
            raise Unproven(f"input {position} does not hold {box_text(box)} of {original.label!r}")

    def boxes(self, position: int, target: int) -> list[Box]:
        """The boxes of a value of the original that an input holds."""
        operand = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        claim = self.claims.get(operand)
        return [] if claim is None else list(self.views.boxes(claim, target))

    def padded_boxes(self, position: int, target: int, padding: str) -> list[tuple[Box, Box]]:
        """(the box of a value of the original that an input holds, the positions in it that are right), for an input
        with this padding around it or with wrong values in it; otherwise an empty list."""
        operand = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        claim = self.claims.get(operand)
        if claim is None or claim.of != target or claim.terms is not None or claim.padding not in ("", padding):
            return []
        return [(claim.box, claim.valid or claim.box)] if claim.padding or claim.valid is not None else []


def box_text(box: Box) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"


def same_constant(value: FileValue, original: FileValue, box: Box) -> None:
    """Prove that a constant, or the result of a Constant operator, holds this box of another."""
    value = value.as_constant
    if value.content is None:
        raise Unproven(f"{value.label!r} is not a constant")
    if original.shape is not None and box == whole(original) and value.form == original.form:
        same = value.same_content(original)
    else:
        cut = array_of(original)[tuple(slice(*along) for along in box)]
        mine = array_of(value)
        same = mine.dtype == cut.dtype and mine.shape == cut.shape and mine.tobytes() == cut.tobytes()
        same = same and scales_of(value, tuple((0, extent) for extent in mine.shape)) == scales_of(original, box)
    if not same:
        raise Unproven(f"the constant {value.label!r} is not {box_text(box)} of {original.label!r}")


def kept(place: Place, node: FileNode) -> None:
    """The operator is the original's `node`, on whole inputs; graphs that it holds are not looked at."""
    mine = place.node
    if mine.kind != node.kind or mine.settings != node.settings or len(mine.inputs) != len(node.inputs):
        raise Unproven("its kind or settings differ")
    for position, target in enumerate(node.inputs):
        box = whole(place.first.values[target]) if target != ABSENT else ()
        place.holds(position, target, box)


def elementwise(place: Place, node: FileNode, out: Box) -> None:
    """Each element of the result follows from the same element of every input; inputs are broadcast from the last axis
    on."""
    same_settings(place.node, node)
    if len(place.node.inputs) != len(node.inputs):
        raise Unproven("it has another number of inputs")
    if node.settings.keys() & {"axis", "broadcast"}:  # before version 7 of ONNX's operators
        raise Unproven("it broadcasts in its own way")
    broadcast(place, node, out, [stop for _, stop in whole(place.first.values[node.outputs[0]])])


def aligned(full: Box, out: Box) -> Box:
    """The box of an input with these dimensions that is broadcast to the box `out`, from the last axis on."""
    tail = out[len(out) - len(full) :]
    return tuple((0, 1) if size == 1 else stretch for (_, size), stretch in zip(full, tail, strict=True))


def broadcast(place: Place, node: FileNode, out: Box, sizes: list[int]) -> None:
    """Each input, broadcast from the last axis on to the `sizes` of the original's result, holds the box `out`."""
    for position, target in enumerate(node.inputs):
        shape = () if target == ABSENT else place.first.values[target].shape
        if shape is None:
            raise Unproven(f"the shape of input {position} is not known")
        full = sizes[len(out) - len(shape) :]
        if len(shape) > len(out) or any(extent not in (1, size) for extent, size in zip(shape, full, strict=True)):
            raise Unproven(f"input {position} does not broadcast to the result")
        place.holds(position, target, aligned(tuple((0, extent) for extent in shape), out))


def normalised(place: Place, node: FileNode, out: Box) -> None:
    """A BatchNormalization that only scales and shifts each channel by constants."""
    same_settings(place.node, node)
    if number(node, "training_mode", 0) or len(node.inputs) != 5:
        raise Unproven("it learns")
    place.holds(0, node.inputs[0], out)
    for position in range(1, 5):
        place.holds(position, node.inputs[position], (out[1],))


def global_pool(place: Place, node: FileNode, out: Box) -> None:
    """A global pool, which pools each channel separately."""
    same_settings(place.node, node)
    place.holds(0, node.inputs[0], (*out[:2], *whole(place.first.values[node.inputs[0]])[2:]))


def undivided(place: Place, node: FileNode, out: Box) -> None:
    """A SPLIT into one part, which is the whole input along any axis."""
    same_settings(place.node, node)
    if len(node.outputs) != 1:
        raise Unproven("it divides its input")
    place.holds(0, node.inputs[0], whole(place.first.values[node.inputs[0]]))
    place.holds(1, node.inputs[1], out)


def joined(place: Place, out: Claim) -> None:
    """A concatenation of boxes that lie one behind the other."""
    node = place.node
    if fused(node) is not None:
        raise Unproven("something is fused to it")
    axis = number(node, "axis", 0)
    axis += len(out.box) if axis < 0 else 0
    start = out.box[axis][0]
    for position in range(len(node.inputs)):
        fitting = [
            box
            for box in place.boxes(position, out.of)
            if box[axis][0] == start and box[:axis] + box[axis + 1 :] == out.box[:axis] + out.box[axis + 1 :]
        ]
        if not fitting:
            raise Unproven(f"input {position} is not the part that follows at {start}")
        start = fitting[0][axis][1]
    if start != out.box[axis][1]:
        raise Unproven(f"its inputs end at {start}, not at {out.box[axis][1]}")


def sliced(place: Place, out: Claim) -> None:
    """A Slice in steps of one, of a box that its input holds."""
    starts, ends, axes, steps = bounds_of(place.node, place.second)
    if starts is None or ends is None or any(step != 1 for step in steps or ()):
        raise Unproven("it does not slice in steps of one")
    claim = place.claims.get(place.node.inputs[0])
    surrounded = claim is not None and claim.of == out.of and claim.terms is None and claim.valid is not None
    boxes = [claim.box] if claim is not None and surrounded and _inside(out.box, claim.valid or ()) else []
    for box in [*place.boxes(0, out.of), *boxes]:
        cut = list(box)
        for start, end, axis in zip(starts, ends, axes if axes is not None else range(len(starts)), strict=True):
            if not 0 <= axis < len(box):
                raise Unproven("it counts its axes from the last")
            low, high = box[axis]
            first, last = (min(max(one + (high if one < 0 else low), low), high) for one in (start, end))
            if first > last:
                raise Unproven("it takes nothing")
            cut[axis] = (first, last)
        if tuple(cut) == out.box:
            return
    raise Unproven(f"it does not cut {box_text(out.box)} out")


def _inside(inner: Box, outer: Box) -> bool:
    return all(low <= start and stop <= high for (start, stop), (low, high) in zip(inner, outer, strict=True))


def padded(place: Place, node: FileNode, out: Box) -> None:
    """Padding with a constant: the part is padded exactly where the original is."""
    same_settings(place.node, node, without=frozenset({"pads"}))
    if node.settings.get("mode", (3, b"constant")) != (3, b"constant") and node.kind != "PAD":
        raise Unproven("it does not pad with a constant")
    boxes = place.boxes(0, node.inputs[0])
    if not boxes:
        raise Unproven("its input holds no part of the original's input")
    ours, theirs = pads_of(place.node, place.second, len(out)), pads_of(node, place.first, len(out))
    for position in range(2, max(len(node.inputs), len(place.node.inputs))):
        place.holds(position, node.inputs[position], ())
    full = whole(place.first.values[node.inputs[0]])
    # A tensor that a concatenation reads twice holds two boxes of its result; one of them must fit.
    reasons = [_misplaced(out, box, full, ours, theirs) for box in boxes]
    if None not in reasons:
        raise Unproven(reasons[0] or "")


def _misplaced(out: Box, box: Box, full: Box, ours: Pads, theirs: Pads) -> str | None:
    """Why padding a box of the input by `ours` does not make the box `out` of the input padded by `theirs`."""
    for along, read, (_, extent), mine, its in zip(out, box, full, ours, theirs, strict=True):
        low, high = along[0] - its[0], along[1] - its[0]
        if read[0] - mine[0] != low or read[1] + mine[1] != high:
            return "its pads put the part at another place"
        if max(low, 0) < read[0] or min(high, extent) > read[1]:
            return "it pads where the original reads"
    return None


def pads_of(node: FileNode, network: FileNetwork, rank: int) -> Pads:
    if len(node.inputs) < 2:
        pads = node.settings.get("pads", (7, ()))
        values = np.asarray(pads[1] if isinstance(pads, tuple) else ())
    else:
        values = array_of(network.values[node.inputs[1]])
    if values.size != 2 * rank or len(node.inputs) > 3:
        raise Unproven("its pads are not understood")
    pairs = values if values.ndim == 2 else values.reshape(2, rank).T
    return [(int(begin), int(end)) for begin, end in pairs]


def bounds_of(node: FileNode, network: FileNetwork) -> list[list[int] | None]:
    """The begins, ends, axes and steps of a slice, as far as it states them: as constants, or as settings of ONNX's
    Slice before version 10. Raises Unproven where one is computed."""
    if len(node.inputs) == 1 and node.settings.keys() - {"starts", "ends", "axes"}:
        raise Unproven("has settings that are not a slice's")
    lists: list[list[int] | None] = []
    for position, name in enumerate(("starts", "ends", "axes", "steps"), start=1):
        operand = node.inputs[position] if position < len(node.inputs) else ABSENT
        stated = node.settings.get(name)
        if operand != ABSENT:
            if network.values[operand].content is None:
                raise Unproven("has an input that is not constant")
            lists.append(_integers(network.values[operand]))
        else:
            lists.append(list(stated[1]) if isinstance(stated, tuple) else None)
    return lists


def integers_of(place: Place, position: int) -> list[int] | None:
    value = place.value(position)
    return None if value is None else _integers(value)


def _integers(value: FileValue) -> list[int]:
    return [int(item) for item in array_of(value).reshape(-1).tolist()]


def same_settings(mine: FileNode, original: FileNode, *, without: frozenset[str] = frozenset()) -> None:
    if mine.kind != original.kind or others(mine, without=without) != others(original, without=without):
        raise Unproven(f"{mine.kind} has other settings than {original.kind} {original.label!r}")


def shape_is(value: FileValue, box: Box) -> None:
    """Prove that a shape, where the file states one, is that of the box."""
    sizes = tuple(stop - start for start, stop in box)
    if value.shape is not None and value.shape != sizes:
        raise Unproven(f"{value.label!r} has the shape {list(value.shape)}, not {list(sizes)}")


def same_type(value: FileValue, original: FileValue, box: Box) -> None:
    """Prove that a part has the element type and the scales of the tensor of which it is a part."""
    if value.dtype and original.dtype and value.dtype != original.dtype:
        raise Unproven(f"{value.label!r} has another element type")
    if scales_of(value, tuple((0, stop - start) for start, stop in box)) != scales_of(original, box):
        raise Unproven(f"{value.label!r} has another quantization")
