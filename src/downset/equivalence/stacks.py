"""Stacks: what tensors hold that merged operators make, as channels of several tensors of the original."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from downset.equivalence.claims import Claim, Unproven, whole
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode, FileValue
from downset.equivalence.identities import Place
from downset.equivalence.meaning import fused, number

__all__ = ["Channels", "Stack", "Stacks", "append", "cut"]

_MOST = 1 << 14
"""The most pieces of a tensor: concatenations of concatenations may have any number."""


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels [start, stop) of the tensor `of` of the original, all along the other axes. With `before_pool` they
    are what the 1x1 convolution that makes `of` makes of its pool's input, with its bias if `biased`."""

    of: int
    start: int
    stop: int
    before_pool: bool = False
    biased: bool = True

    @property
    def count(self) -> int:
        return self.stop - self.start


Stack = tuple[Channels, ...]
"""Channels one after another; no piece is made by a concatenation along the channels."""


class Stacks:
    """The pieces that the tensors of a rewritten network are proven to hold. `of`: by value, for those that hold more
    than a part of one tensor. `finite`: whether something proven holds for finite values only."""

    def __init__(self, first: FileNetwork, maker: Mapping[int, FileNode]) -> None:
        self.first, self.maker = first, maker
        self.of: dict[int, Stack] = {}
        self.finite = False

    def expanded(self, of: int, start: int, stop: int) -> Stack:
        """The channels of a tensor of the original, as pieces."""
        left, pieces = [(of, start, stop)], list[Channels]()
        while left:
            value, low, high = left.pop()
            node = self.maker.get(value)
            if node is not None and self._joins_channels(node):
                left += self._parts(node, low, high)[::-1]
            else:
                append(pieces, Channels(value, low, high))
            if len(pieces) + len(left) > _MOST:
                raise Unproven("a concatenation has too many parts")
        return tuple(pieces)

    def _parts(self, node: FileNode, low: int, high: int) -> list[tuple[int, int, int]]:
        """The inputs of a concatenation that hold these channels of its result, each with its own channels of them."""
        begin, parts = 0, []
        for read in node.inputs:
            end = begin + whole(self.first.values[read])[1][1]
            if low < end and begin < high:
                parts.append((read, max(low, begin) - begin, min(high, end) - begin))
            begin = end
        return parts

    def _joins_channels(self, node: FileNode) -> bool:
        if node.kind != "Concat" or fused(node) is not None or ABSENT in node.inputs:
            return False
        rank = len(self.first.values[node.outputs[0]].shape or ())
        return rank > 1 and number(node, "axis", 0) in (1, 1 - rank)

    def held(self, place: Place, position: int) -> Stack:
        """The pieces that an input is proven to hold."""
        operand = place.node.inputs[position]
        if operand in self.of:
            return self.of[operand]
        claim = place.claims.get(operand)
        if claim is None or claim.terms is not None or claim.padding or claim.valid is not None:
            raise Unproven(f"nothing is known of input {position}, or no whole channels")
        return self.channels(claim)

    def channels(self, claim: Claim) -> Stack:
        """The pieces of a claim. Raises Unproven where it is about part of an image."""
        full = whole(self.first.values[claim.of])
        if len(full) < 2 or (claim.box[:1], claim.box[2:]) != (full[:1], full[2:]):
            raise Unproven(f"it holds no whole channels of {self.first.values[claim.of].label!r}")
        return self.expanded(claim.of, *claim.box[1])

    def sizes(self, stack: Stack) -> tuple[int, ...]:
        """The shape of a tensor that holds these pieces. Raises Unproven where they have different sizes."""
        shapes = set()
        for piece in stack:
            shape = whole(self.first.values[self.pool(piece).inputs[0] if piece.before_pool else piece.of])
            shapes.add(tuple(stop for _, stop in (*shape[:1], *shape[2:])))
        if len(shapes) != 1:
            raise Unproven("its pieces have different sizes")
        (first, *others) = shapes.pop()
        return (first, sum(piece.count for piece in stack), *others)

    def pool(self, piece: Channels) -> FileNode:
        """The average pool before the convolution that makes a piece."""
        convolution = self.maker.get(piece.of)
        pool = None if convolution is None else self.maker.get(convolution.inputs[0])
        if pool is None or pool.kind != "AveragePool":
            raise Unproven(f"{self.first.values[piece.of].label!r} is not made from an average pool")
        return pool

    def keep(self, index: int, value: FileValue, stack: Stack) -> None:
        """Keep what is proven of a result, where the file states nothing else of it."""
        if (value.shape is not None and value.shape != self.sizes(stack)) or (value.form and value.shape is None):
            raise Unproven(f"{value.label!r} is stated to have another shape, or an open one")
        if value.dtype and any(value.dtype != self.first.values[piece.of].dtype for piece in stack):
            raise Unproven(f"{value.label!r} has another element type")
        self.of[index] = stack


def append(pieces: list[Channels], piece: Channels) -> None:
    """Add a piece, or let the last one grow where this continues it."""
    last = pieces[-1] if pieces else None
    if last is not None and replace(last, start=last.stop, stop=piece.stop) == piece:
        pieces[-1] = replace(last, stop=piece.stop)
    else:
        pieces.append(piece)


def cut(stack: Stack, start: int, stop: int) -> Stack:
    """Some channels of a stack."""
    begin, pieces = 0, []
    for piece in stack:
        end = begin + piece.count
        if start < end and begin < stop:
            low, high = max(start, begin) - begin, min(stop, end) - begin
            pieces.append(replace(piece, start=piece.start + low, stop=piece.start + high))
        begin = end
    return tuple(pieces)
