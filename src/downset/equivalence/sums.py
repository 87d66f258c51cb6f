"""The local identities of sums: sums of the products with some input channels, and the addition of such sums.

They hold only for floats, up to the sequence of additions. Integers are rounded after each part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from downset.equivalence.claims import Box, Claim, Unproven, array_of, whole
from downset.equivalence.file_network import ABSENT, FileNode, FileValue
from downset.equivalence.identities import Place
from downset.equivalence.meaning import base_kind, channels_axis, fused, number, others, real
from downset.equivalence.windows import check_window, hold_weights, same_window_kind

__all__ = ["FLOATS", "added", "partial_product", "partial_window"]

FLOATS = frozenset({"float16", "float32", "float64", "bfloat16"})
_ADDS = frozenset({"Add", "Sum", "ADD", "ADD_N"})


@dataclass(frozen=True, slots=True)
class _Sum:
    terms: tuple[int, int]
    biased: bool


def added(place: Place, node: FileNode, out: Claim) -> Claim:
    """An addition of sums of products with neighbouring channels. Returns the claim about its result."""
    mine = place.node
    if mine.kind not in _ADDS:
        raise Unproven(f"{mine.kind} computes no sum")
    if mine.settings.get("numbers", ((None, None), ())) != ((None, None), ()):
        raise Unproven("it scales what it adds")
    terms = sorted((_sum_at(place, position, out) for position in range(len(mine.inputs))), key=lambda one: one.terms)
    total = terms[0]
    for one in terms[1:]:
        total = _joined(total, one)
    return _finished(place, node, out, total)


def partial_window(place: Place, node: FileNode, out: Claim) -> Claim:
    """A convolution of some input channels; ONNX Runtime's FusedConv also adds the sum so far. Returns the claim about
    its result."""
    mine, first = place.node, place.first
    _floats(place, node)
    same_window_kind(mine, node)
    axis = channels_axis(node, len(out.box))
    source, weights = first.values[node.inputs[0]], first.values[node.inputs[1]]
    total = whole(source)[axis][1]
    if total != (weights.shape or ())[3 if node.kind == "CONV_2D" else 1] or number(mine, "group", 1) != 1:
        raise Unproven("it sums over groups")
    if len(node.inputs) > 3:
        raise Unproven("something is added to the original's sum")

    def tried(box: Box) -> _Sum:
        if box[0] != out.box[0]:
            raise Unproven("it reads another image")
        check_window(place, node, out.box, box, axis, weights)
        hold_weights(place, node, out.box[axis], box[axis])
        one = _Sum(box[axis], _biased(place, node, (out.box[axis],)))
        return _joined(_sum_at(place, 3, out), one) if len(mine.inputs) > 3 and mine.inputs[3] != ABSENT else one

    return _finished(place, node, out, _first_that_holds(place, node, out, axis, tried))


def partial_product(place: Place, node: FileNode, out: Claim) -> Claim:
    """A matrix product over some of the columns; ONNX's Gemm also adds the sum so far. Returns the claim about its
    result."""
    mine, first = place.node, place.first
    _floats(place, node)
    without = frozenset({"fusedActivationFunction", "beta"})
    if mine.kind != node.kind or others(mine, without=without) != others(node, without=without):
        raise Unproven("its settings differ")
    if number(node, "transA", 0) or out.box != whole(first.values[node.outputs[0]]):
        raise Unproven("it makes part of the rows")
    source, weights = first.values[node.inputs[0]], first.values[node.inputs[1]]
    full = whole(source)
    flipped = node.kind == "FULLY_CONNECTED" or number(node, "transB", 0) == 1

    def tried(box: Box) -> _Sum:
        if box[:-1] != full[:-1] or len(whole(weights)) != 2 or len(full) != 2:
            raise Unproven("it is not a product of two matrices")
        cut = list(whole(weights))
        cut[1 if flipped else 0] = box[-1]
        place.holds(1, node.inputs[1], tuple(cut))
        so_far = place.claims.get(mine.inputs[2]) if len(mine.inputs) > 2 and mine.kind == "Gemm" else None
        if so_far is not None and so_far.terms is not None:
            if real(mine, "beta", 1.0) != 1.0:
                raise Unproven("it scales the sum so far")
            return _joined(_sum_at(place, 2, out), _Sum(box[-1], False))
        if real(mine, "beta", 1.0) != real(node, "beta", 1.0):
            raise Unproven("it scales the bias differently")
        bias = whole(first.values[node.inputs[2]]) if len(node.inputs) > 2 and node.inputs[2] != ABSENT else ()
        return _Sum(box[-1], _biased(place, node, bias))

    return _finished(place, node, out, _first_that_holds(place, node, out, -1, tried))


def _first_that_holds(place: Place, node: FileNode, out: Claim, axis: int, tried: Callable[[Box], _Sum]) -> _Sum:
    """The sum proven for the first box of the input with which a proof succeeds, the stated box first. There are
    several where a part lies in a concatenation twice."""
    stated = out.terms[1] if out.terms is not None else -1
    reason = Unproven(f"its input holds no part of {place.first.values[node.inputs[0]].label!r}")
    for candidate in sorted(place.boxes(0, node.inputs[0]), key=lambda box: box[axis][1] != stated):
        try:
            return tried(candidate)
        except Unproven as found:
            reason = found
    raise reason


def _floats(place: Place, node: FileNode) -> None:
    for value in (*node.inputs[:2], *node.outputs):
        if place.first.values[value].dtype not in FLOATS:
            raise Unproven(f"{place.first.values[value].label!r} holds no floats: each part is rounded")


def _biased(place: Place, node: FileNode, box: Box) -> bool:
    """Whether the operator adds the original's bias. A missing bias and one of zeros add nothing; any other raises
    Unproven."""
    bias = place.value(2)
    if bias is None or _is_zero(bias):
        return False
    target = node.inputs[2] if len(node.inputs) > 2 else ABSENT
    if target != ABSENT:
        try:
            place.holds(2, target, box)
            return True
        except Unproven:
            pass
    raise Unproven("it adds a value that is neither the original's bias nor zero")


def _is_zero(value: FileValue) -> bool:
    return value.content is not None and not array_of(value).any()


def _sum_at(place: Place, position: int, out: Claim) -> _Sum:
    operand = place.node.inputs[position]
    claim = place.claims.get(operand)
    if claim is None or claim.terms is None or (claim.of, claim.box) != (out.of, out.box):
        raise Unproven(f"input {position} is not a sum of the same products")
    return _Sum(claim.terms, claim.biased)


def _joined(one: _Sum, other: _Sum) -> _Sum:
    if one.biased and other.biased:
        raise Unproven("the bias is added twice")
    low, high = sorted((one.terms, other.terms))
    if low[1] != high[0]:
        raise Unproven(f"channels {low[0]}:{low[1]} and {high[0]}:{high[1]} do not follow each other")
    return _Sum((low[0], high[1]), one.biased or other.biased)


def _finished(place: Place, node: FileNode, out: Claim, total: _Sum) -> Claim:
    """The claim about a sum. It is the finished value if all channels and the bias are in it and the original's fused
    activation is applied."""
    axis = channels_axis(node, len(out.box)) if base_kind(node) in ("Conv", "CONV_2D") else -1
    channels = whole(place.first.values[node.inputs[0]])[axis]
    bias = node.inputs[2] if len(node.inputs) > 2 else ABSENT
    needs_bias = bias != ABSENT and not _is_zero(place.first.values[bias])
    activated = fused(place.node)
    if total.terms == channels and total.biased == needs_bias and activated == fused(node):
        return Claim(out.of, out.box)
    if activated is not None:
        raise Unproven("it applies the activation to a sum that is not finished")
    return Claim(out.of, out.box, total.terms, total.biased)
