"""The identities of merged operators: an operator makes the results of several operators of the original, one after
another along the channels.

Nothing here knows how operators were merged. For each piece of a result the kernel is cut out of the merged kernel, its
taps are looked up by the positions that they read, every other tap must be zero, and the channels that the piece reads
must be those that its operator reads. Convolutions on zeros are equal only for finite values, since zero times an
infinite value is NaN; `Stacks.finite` says whether that was used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.equivalence.claims import Claim, Unproven, array_of, whole
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode, FileValue
from downset.equivalence.identities import Place
from downset.equivalence.meaning import ELEMENTWISE, Along, base_kind, fused, number, windows
from downset.equivalence.windows import same_window_kind

__all__ = ["Channels", "Stack", "Stacks"]

_FLOATS = frozenset({"float16", "float32", "float64", "bfloat16"})
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


Stack = tuple[Channels, ...]
"""Channels one after another; no piece is made by a concatenation along the channels."""


class Stacks:
    """The pieces that the tensors of a rewritten network are proven to hold. `of`: by value, for those that are no part
    of a single tensor. `finite`: whether something proven holds for finite values only."""

    def __init__(self, first: FileNetwork, maker: Mapping[int, FileNode]) -> None:
        self.first, self.maker = first, maker
        self.of: dict[int, Stack] = {}
        self.finite = False

    def expanded(self, of: int, start: int, stop: int) -> Stack:
        """The channels of a tensor of the original, as pieces."""
        left, found = [(of, start, stop)], list[Channels]()
        while left:
            value, low, high = left.pop()
            node, at = self.maker.get(value), 0
            if node is None or not self._joins_channels(node):
                last = found[-1] if found else None
                if last is not None and (last.of, last.stop) == (value, low):
                    found[-1] = replace(last, stop=high)
                else:
                    found.append(Channels(value, low, high))
                continue
            parts = []
            for read in node.inputs:
                extent = whole(self.first.values[read])[1][1]
                if low < at + extent and at < high:
                    parts.append((read, max(low - at, 0), min(high - at, extent)))
                at += extent
            left += parts[::-1]
            if len(found) + len(left) > _MOST:
                raise Unproven("a concatenation has too many parts")
        return tuple(found)

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
            shape = whole(self.first.values[self._pool(piece).inputs[0] if piece.before_pool else piece.of])
            shapes.add(tuple(stop for _, stop in (*shape[:1], *shape[2:])))
        if len(shapes) != 1:
            raise Unproven("its pieces have different sizes")
        (first, *others) = shapes.pop()
        return (first, sum(piece.stop - piece.start for piece in stack), *others)

    def keep(self, index: int, value: FileValue, stack: Stack) -> None:
        """Keep what is proven of a result, where the file states nothing else of it."""
        if (value.shape is not None and value.shape != self.sizes(stack)) or (value.form and value.shape is None):
            raise Unproven(f"{value.label!r} is stated to have another shape, or an open one")
        if value.dtype and any(value.dtype != self.first.values[piece.of].dtype for piece in stack):
            raise Unproven(f"{value.label!r} has another element type")
        self.of[index] = stack

    def proven(self, place: Place, wanted: Sequence[Stack]) -> list[Stack]:
        """What the results are proven to hold, with `biased` as it is. `wanted`: what they are said to hold."""
        kind = base_kind(place.node)
        if kind == "Split":
            return self._split(place, wanted)
        if len(wanted) != 1:
            raise Unproven("it is new, and has several results")
        if kind == "Conv":
            return [self._convolved(place, wanted[0])]
        if kind == "Concat":
            self._concatenated(place, wanted[0])
        elif kind in ELEMENTWISE:
            self._elementwise(place, wanted[0])
        else:
            raise Unproven(f"no identity is known for {kind} of several tensors at once")
        return list(wanted)

    def _split(self, place: Place, wanted: Sequence[Stack]) -> list[Stack]:
        held, node = self.held(place, 0), place.node
        shape = self.sizes(held)
        if number(node, "axis", 0) not in (1, 1 - len(shape)) or "num_outputs" in node.settings:
            raise Unproven("it does not split channels into stated sizes")
        stated = place.value(1)
        setting = node.settings.get("split")
        if stated is not None:
            sizes = [int(size) for size in array_of(stated).reshape(-1).tolist()]
        else:
            sizes = list(setting[1]) if isinstance(setting, tuple) else []
        if len(sizes) != len(wanted) or sum(sizes) != shape[1] or min(sizes) < 1:
            raise Unproven("its sizes are not those of its input")
        at, results = 0, []
        for size, stack in zip(sizes, wanted, strict=True):
            results.append(_cut(held, at, at + size))
            if _unflagged(results[-1]) != _unflagged(stack):
                raise Unproven(f"channels {at} to {at + size} of its input are not what its result is said to hold")
            at += size
        return results

    def _concatenated(self, place: Place, wanted: Stack) -> None:
        node, found = place.node, list[Channels]()
        if fused(node) is not None or number(node, "axis", 0) not in (1, 1 - len(self.sizes(wanted))):
            raise Unproven("it does not join channels")
        for position in range(len(node.inputs)):
            for piece in self.held(place, position):
                if found and (found[-1].of, found[-1].stop) == (piece.of, piece.start) and not piece.before_pool:
                    found[-1] = replace(found[-1], stop=piece.stop)
                else:
                    found.append(piece)
        if tuple(found) != wanted:
            raise Unproven("its inputs are not what its result is said to hold, one after another")

    def _elementwise(self, place: Place, wanted: Stack) -> None:
        """One operator, whose further inputs are single constants, for each of several equal ones."""
        node, held, at = place.node, self.held(place, 0), 0
        for piece in wanted:
            original = self.maker.get(piece.of)
            alike = original is not None and (original.kind, original.settings) == (node.kind, node.settings)
            if original is None or not alike or piece.before_pool or len(original.inputs) != len(node.inputs):
                raise Unproven(f"{self.first.values[piece.of].label!r} is made by another operator")
            for position, target in enumerate(original.inputs[1:], start=1):
                if target != ABSENT and prod(self.first.values[target].shape or (2,)) != 1:
                    raise Unproven(f"input {position} is not a single number")
                place.holds(position, target, () if target == ABSENT else whole(self.first.values[target]))
            end = at + piece.stop - piece.start
            if _cut(held, at, end) != self.expanded(original.inputs[0], piece.start, piece.stop):
                raise Unproven(f"its channels {at} to {end} are not those from which the original makes them")
            at = end
        if at != self.sizes(held)[1]:
            raise Unproven("it has more channels")

    def _convolved(self, place: Place, wanted: Stack) -> Stack:
        weights = self._constant(place.value(1))
        at, results = 0, []
        for piece in wanted:
            end = at + piece.stop - piece.start
            results.append(self._convolution(place, piece, weights[at:end], at, len(weights)))
            at = end
        if at != len(weights):
            raise Unproven(f"it makes {len(weights)} channels, not {at}")
        return tuple(results)

    def _convolution(self, place: Place, piece: Channels, mine: npt.NDArray[Any], at: int, channels: int) -> Channels:
        """Prove one piece of a convolution's result. `mine`: the kernels of its channels, which begin at `at` among so
        many `channels`."""
        node, original = place.node, self.maker.get(piece.of)
        if original is None or base_kind(original) != "Conv":
            raise Unproven(f"{self.first.values[piece.of].label!r} is made by no convolution")
        same_window_kind(node, original)
        if fused(node) != fused(original) or (piece.before_pool and fused(node) is not None):
            raise Unproven("its activation differs")
        if max(len(node.inputs), len(original.inputs)) > 3:
            raise Unproven("something is added to the sum")
        read = self._pool(piece).inputs[0] if piece.before_pool else original.inputs[0]
        source, kernel = self.first.values[read], self.first.values[original.inputs[1]]
        for value in (source, self.first.values[piece.of]):
            if value.dtype not in _FLOATS:
                raise Unproven(f"{value.label!r} holds no floats")
        theirs = self._constant(kernel)
        size = [stop for _, stop in whole(source)[2:]]
        ours = windows(node, size, mine.shape[2:])
        if piece.before_pool:
            self._is_pointwise(original, theirs.shape[2:])
            its: tuple[Along, ...] = tuple(Along(1, 1, 1, 0, 0, extent) for extent in size)
        else:
            its = windows(original, size, theirs.shape[2:])
        _same_kernels(
            mine, theirs[piece.start : piece.stop], [_taps(one, other) for one, other in zip(ours, its, strict=True)]
        )
        self.finite |= piece.before_pool or mine.shape[2:] != theirs.shape[2:]
        self._same_channels(place, piece, at, (channels, mine.shape[1]), (read, original, theirs.shape))
        return replace(piece, biased=self._biased(place, original, piece, at))

    def _same_channels(
        self, place: Place, piece: Channels, at: int, mine: tuple[int, int], its: tuple[int, FileNode, tuple[int, ...]]
    ) -> None:
        """Prove that each channel of the piece is computed from the channels of which the original's is. `mine`: the
        channels that are made, and those that each group reads. `its`: what the original reads, the operator, and the
        shape of its weights."""
        (made, reads), (source, original, shape) = mine, its
        held, total = self.held(place, 0), whole(self.first.values[source])[1][1]
        groups, its_groups = number(place.node, "group", 1), number(original, "group", 1)
        if made % groups or shape[0] % its_groups or shape[1] * its_groups != total or reads != shape[1]:
            raise Unproven("its groups do not divide its channels as the original's do")
        if self.sizes(held)[1] != reads * groups:
            raise Unproven("its input has another number of channels")
        each, its_each = made // groups, shape[0] // its_groups
        channel = piece.start
        while channel < piece.stop:
            here = at + channel - piece.start
            group, its_group = here // each, channel // its_each
            read = _cut(held, group * reads, (group + 1) * reads)
            if read != self.expanded(source, its_group * reads, (its_group + 1) * reads):
                raise Unproven(f"its channel {here} is not made of the channels that the original reads")
            channel += min((its_group + 1) * its_each - channel, (group + 1) * each - here)

    def _biased(self, place: Place, original: FileNode, piece: Channels, at: int) -> bool:
        """Whether the piece holds the original's bias. Raises Unproven where it must and does not, or holds another."""
        value, theirs = place.value(2), self._bias(original, piece)
        mine = None if value is None else self._constant(value)[at : at + piece.stop - piece.start]
        if mine is not None and theirs is not None and _same_bytes(mine, theirs):
            return True
        if mine is not None and mine.any():
            raise Unproven("it adds a value that is neither the original's bias nor zero")
        if theirs is None or not theirs.any():
            return True
        if not piece.before_pool:
            raise Unproven(f"it adds no bias to {self.first.values[piece.of].label!r}")
        return False

    def _bias(self, original: FileNode, piece: Channels) -> npt.NDArray[Any] | None:
        target = original.inputs[2] if len(original.inputs) > 2 else ABSENT
        return None if target == ABSENT else self._constant(self.first.values[target])[piece.start : piece.stop]

    def _constant(self, value: FileValue | None) -> npt.NDArray[Any]:
        if value is None or (value.content is None and value.computed is None):
            raise Unproven("its weights are not constants")
        return array_of(value if value.content is not None else replace(value, content=value.computed))

    def _pool(self, piece: Channels) -> FileNode:
        """The average pool before the convolution that makes a piece."""
        convolution = self.maker.get(piece.of)
        pool = None if convolution is None else self.maker.get(convolution.inputs[0])
        if pool is None or pool.kind != "AveragePool":
            raise Unproven(f"{self.first.values[piece.of].label!r} is not made from an average pool")
        return pool

    def _is_pointwise(self, original: FileNode, kernel: Sequence[int]) -> None:
        size = [stop for _, stop in whole(self.first.values[original.inputs[0]])[2:]]
        along = windows(original, size, kernel)
        if any((one.size, one.stride, one.pad_begin, one.pad_end) != (1, 1, 0, 0) for one in along):
            raise Unproven("the original's convolution behind the pool is not pointwise")

    def pooled(self, place: Place, out: Claim) -> Claim:
        """The average of what a 1x1 convolution makes is what it makes of the average, since both are sums. The bias
        is only the same where the average of ones is one."""
        held = self.held(place, 0)
        if len(held) != 1 or not held[0].before_pool or out.of != held[0].of:
            raise Unproven("it averages something else")
        (piece,) = held
        if self.channels(replace(out, terms=None)) != (Channels(piece.of, piece.start, piece.stop),):
            raise Unproven("it averages other channels")
        pool = self._pool(piece)
        if pool.settings != place.node.settings or len(place.node.inputs) != 1:
            raise Unproven(f"its settings are not those of {pool.label!r}")
        self.finite = True
        bias = self._bias(self.maker[piece.of], piece)
        if bias is None or not bias.any():
            return Claim(out.of, out.box)
        if not piece.biased:
            return Claim(out.of, out.box, (0, whole(self.first.values[pool.inputs[0]])[1][1]))
        padded = any(_values(pool, "pads")) or pool.settings.get("auto_pad") not in _UNPADDED
        if number(pool, "count_include_pad", 0) and (padded or number(pool, "ceil_mode", 0)):
            raise Unproven("it averages the bias with pads")
        return Claim(out.of, out.box)

    def bias_added(self, place: Place, original: FileNode, out: Claim) -> Claim:
        """The addition of the bias to a sum of all products."""
        positions = [position for position in (0, 1) if self._is_constant(place.value(position))]
        if len(positions) != 1 or fused(original) is not None or len(out.box) < 3:
            raise Unproven("it adds no constant to a sum")
        added, (start, stop) = self._constant(place.value(positions[0])), out.box[1]
        if place.node.settings:
            raise Unproven("it broadcasts in its own way")
        claim = place.claims.get(place.node.inputs[1 - positions[0]])
        total = whole(self.first.values[original.inputs[0]])[1]
        if claim is None or (claim.of, claim.box, claim.terms, claim.biased) != (out.of, out.box, total, False):
            raise Unproven("it adds a constant to a sum that is not finished")
        bias = self._bias(original, Channels(out.of, start, stop))
        column = (stop - start, *[1] * (len(out.box) - 2))
        if added.shape not in (column, (1, *column)) or bias is None or not _same_bytes(added.reshape(-1), bias):
            raise Unproven("it adds something other than the original's bias")
        return Claim(out.of, out.box)

    def _is_constant(self, value: FileValue | None) -> bool:
        return value is not None and value.content is not None


_UNPADDED = (None, (3, b"NOTSET"), (3, b"VALID"))
"""What an operator may state of `auto_pad` without pads of its own: nothing, or a string."""


def _values(node: FileNode, name: str) -> tuple[int, ...]:
    value = node.settings.get(name)
    return tuple(value[1]) if isinstance(value, tuple) else ()


def _cut(stack: Stack, start: int, stop: int) -> Stack:
    """Some channels of a stack."""
    at, found = 0, []
    for piece in stack:
        end = at + piece.stop - piece.start
        if start < end and at < stop:
            low, high = max(start - at, 0), min(stop - at, end - at)
            found.append(replace(piece, start=piece.start + low, stop=piece.start + high))
        at = end
    return tuple(found)


def _unflagged(stack: Stack) -> Stack:
    return tuple(replace(piece, biased=True) for piece in stack)


def _same_bytes(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _taps(mine: Along, its: Along) -> slice:
    """The taps of a window, along one axis, that read the positions which the original's window reads."""
    if (mine.stride, mine.made) != (its.stride, its.made):
        raise Unproven("its windows are at other positions")
    first, rest = divmod(mine.pad_begin - its.pad_begin, mine.dilation)
    step, between = divmod(its.dilation, mine.dilation) if its.size > 1 else (1, 0)
    last = first + (its.size - 1) * step
    if first < 0 or rest or between or last >= mine.size:
        raise Unproven("its windows do not have the original's taps")
    return slice(first, last + 1, step)


def _same_kernels(mine: npt.NDArray[Any], theirs: npt.NDArray[Any], taps: Sequence[slice]) -> None:
    """Prove that the kernels have the original's values at these taps, and zeros elsewhere."""
    inner = mine[(slice(None), slice(None), *taps)]
    if not _same_bytes(np.ascontiguousarray(inner), theirs):
        raise Unproven("its kernels are not the original's at the taps that read the same positions")
    if np.count_nonzero(mine) != np.count_nonzero(inner):
        raise Unproven("its kernels are not zero at a tap that the original does not have")
