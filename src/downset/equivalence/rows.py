"""The identities of strips in TFLite's operators: rows cut out, the padding of a window as a PAD, and resizes."""

from __future__ import annotations

import numpy as np

from downset.equivalence.claims import Box, Claim, Padding, Unproven, array_of, whole
from downset.equivalence.file_network import FileNode
from downset.equivalence.identities import Place, box_text, integers_of, pads_of
from downset.equivalence.meaning import others

__all__ = ["cut_out", "resized", "surrounded"]


def cut_out(place: Place, out: Claim) -> Claim:
    """A TFLite SLICE of a box that its input holds. Returns the claim about its result."""
    begins, sizes = integers_of(place, 1), integers_of(place, 2)
    claim = place.claims.get(place.node.inputs[0])
    if begins is None or sizes is None or claim is None or len(begins) != len(sizes):
        raise Unproven("its box is not stated, or nothing is known of its input")
    boxes: list[tuple[Box, Padding]] = [(box, "") for box in place.boxes(0, out.of)]
    if claim.of == out.of and claim.terms is None:
        boxes.append((claim.box, claim.padding))
    for box, padding in boxes:
        if len(box) != len(begins) or any(begin < 0 or size < 0 for begin, size in zip(begins, sizes, strict=True)):
            raise Unproven("it counts from the end")
        box_cut = tuple(
            (low + begin, low + begin + size) for (low, _), begin, size in zip(box, begins, sizes, strict=True)
        )
        if box_cut == out.box and _within(box_cut, box) and (claim.valid is None or _within(box_cut, claim.valid)):
            return Claim(
                out.of, out.box, padding="" if _within(box_cut, whole(place.first.values[out.of])) else padding
            )
    raise Unproven(f"it does not cut {box_text(out.box)} out of the parts that are known")


def _within(inner: Box, outer: Box) -> bool:
    return all(low <= start and stop <= high for (start, stop), (low, high) in zip(inner, outer, strict=True))


def surrounded(place: Place, out: Claim) -> Claim:
    """A PAD around a part of a tensor of the original. Beyond the tensor it adds the value that a window's kernel uses
    for padding; inside the tensor the values that it adds are wrong (`Claim.valid`)."""
    full = whole(place.first.values[out.of])
    pads = pads_of(place.node, place.second, len(out.box))
    inner = tuple((low + begin, high - end) for (low, high), (begin, end) in zip(out.box, pads, strict=True))
    if inner not in place.boxes(0, out.of):
        raise Unproven("its pads put the part at another place")
    box_around = tuple(
        (low if start <= 0 else start, high if stop >= extent else stop)
        for (low, high), (start, stop), (_, extent) in zip(out.box, inner, full, strict=True)
    )
    return Claim(out.of, out.box, padding=_padding(place), valid=None if box_around == out.box else box_around)


def _padding(place: Place) -> Padding:
    if place.node.kind == "PAD":
        return "zero"
    value = place.value(2)
    filled = None if value is None else array_of(value)
    if value is None or filled is None or filled.size != 1 or filled.dtype.kind not in "fi":
        raise Unproven("the value that it pads with is not known")
    lowest = np.finfo(value.dtype).min if filled.dtype.kind == "f" else np.iinfo(value.dtype).min
    if filled.reshape(-1)[0] != lowest:
        raise Unproven("it pads with a value other than the lowest")
    return "lowest"


def resized(place: Place, node: FileNode, out: Box) -> Box:
    """A resize of rows by a power of two, for which the fixed-point scale is exact. Returns the box of rows that are
    right: a row next to a cut may need the row beyond it."""
    source, full = (whole(place.first.values[value]) for value in (node.inputs[0], node.outputs[0]))
    factor, rest = divmod(full[1][1], source[1][1])
    if others(place.node, without=frozenset()) != others(node, without=frozenset()) or len(out) != 4:
        raise Unproven("it has other settings")
    if rest or factor & (factor - 1) or node.settings.get("alignCorners"):
        raise Unproven("its factor is not a power of two")
    sizes = integers_of(place, 1)
    reasons = "its input holds no part of what the original reads"
    for box in place.boxes(0, node.inputs[0]):
        rows = (box[1][0] * factor, box[1][1] * factor)
        if (out[0], out[1], out[2], out[3]) != (box[0], rows, full[2], box[3]) or box[2] != source[2]:
            reasons = "it makes other rows"
        elif sizes != [rows[1] - rows[0], full[2][1]]:
            reasons = "it makes another size"
        else:
            low, high = rows
            near = node.kind == "RESIZE_NEAREST_NEIGHBOR"
            shift = factor - 1 if node.settings.get("halfPixelCenters") and not near else 0
            while low < high and max((2 * low - shift) // (2 * factor), 0) < box[1][0]:
                low += 1
            last = source[1][1] - 1
            while low < high and min((2 * (high - 1) - shift) // (2 * factor) + (not near), last) >= box[1][1]:
                high -= 1
            if low < high:
                return out[0], (low, high), out[2], out[3]
            reasons = "it needs rows that it does not read"
    raise Unproven(reasons)
