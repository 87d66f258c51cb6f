"""The identities of merged operators: an operator makes the results of several operators of the original, one after
another along the channels.

Nothing here knows how operators were merged. For each piece of a result the kernel is cut out of the merged kernel, its
taps are looked up by the positions that they read, every other tap must be zero, and the channels that the piece reads
must be those that its operator reads. Added zeros change nothing for finite values only, since zero times an infinite
value is NaN; `Stacks.finite` says whether there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.equivalence.claims import Claim, Unproven, array_of, whole
from downset.equivalence.file_network import ABSENT, FileNode, FileValue
from downset.equivalence.identities import Place
from downset.equivalence.meaning import ELEMENTWISE, Along, base_kind, fused, number, windows
from downset.equivalence.stacks import Channels, Stack, Stacks, append, cut
from downset.equivalence.windows import same_window_kind

__all__ = ["bias_added", "merged", "pooled"]

_FLOATS = frozenset({"float16", "float32", "float64", "bfloat16"})
Array = npt.NDArray[Any]


def merged(stacks: Stacks, place: Place, wanted: Sequence[Stack]) -> list[Stack]:
    """The pieces that the results are proven to hold, with `biased` as it is. `wanted`: those that they are said to
    hold."""
    kind = base_kind(place.node)
    if kind == "Split":
        return _split(stacks, place, wanted)
    if len(wanted) != 1:
        raise Unproven("it is new, and has several results")
    if kind == "Conv":
        return [_convolved(stacks, place, wanted[0])]
    if kind == "Concat":
        _concatenated(stacks, place, wanted[0])
    elif kind in ELEMENTWISE:
        _elementwise(stacks, place, wanted[0])
    else:
        raise Unproven(f"no identity is known for {kind} of several tensors at once")
    return list(wanted)


def _split(stacks: Stacks, place: Place, wanted: Sequence[Stack]) -> list[Stack]:
    node, held = place.node, stacks.held(place, 0)
    shape, stated = stacks.sizes(held), place.value(1)
    if number(node, "axis", 0) not in (1, 1 - len(shape)) or "num_outputs" in node.settings:
        raise Unproven("it does not split channels into stated sizes")
    sizes = _setting(node, "split")
    if stated is not None:
        sizes = tuple(int(size) for size in array_of(stated).reshape(-1).tolist())
    if len(sizes) != len(wanted) or sum(sizes) != shape[1] or min(sizes) < 1:
        raise Unproven("its sizes are not those of its input")
    start, results = 0, []
    for size, stack in zip(sizes, wanted, strict=True):
        results.append(cut(held, start, start + size))
        if _unflagged(results[-1]) != _unflagged(stack):
            raise Unproven(f"channels {start} to {start + size} are not what its result is said to hold")
        start += size
    return results


def _concatenated(stacks: Stacks, place: Place, wanted: Stack) -> None:
    node, pieces = place.node, list[Channels]()
    if fused(node) is not None or number(node, "axis", 0) not in (1, 1 - len(stacks.sizes(wanted))):
        raise Unproven("it does not join channels")
    for position in range(len(node.inputs)):
        for piece in stacks.held(place, position):
            append(pieces, piece)
    if tuple(pieces) != wanted:
        raise Unproven("its inputs are not what its result is said to hold, one after another")


def _elementwise(stacks: Stacks, place: Place, wanted: Stack) -> None:
    """One operator, whose further inputs are single constants, for each of several equal ones."""
    node, held, start = place.node, stacks.held(place, 0), 0
    for piece in wanted:
        original = stacks.maker.get(piece.of)
        alike = original is not None and (original.kind, original.settings) == (node.kind, node.settings)
        if original is None or not alike or piece.before_pool or len(original.inputs) != len(node.inputs):
            raise Unproven(f"{stacks.first.values[piece.of].label!r} is made by another operator")
        for position, target in enumerate(original.inputs[1:], start=1):
            if target != ABSENT and prod(stacks.first.values[target].shape or (2,)) != 1:
                raise Unproven(f"input {position} is not a single number")
            place.holds(position, target, () if target == ABSENT else whole(stacks.first.values[target]))
        if cut(held, start, start + piece.count) != stacks.expanded(original.inputs[0], piece.start, piece.stop):
            raise Unproven(f"its channels from {start} on are not those from which the original makes them")
        start += piece.count
    if start != stacks.sizes(held)[1]:
        raise Unproven("it has more channels")


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The kernels of one piece of a merged convolution's result. `start`: the first of their channels among all
    `channels` that the convolution makes."""

    piece: Channels
    kernels: Array
    start: int
    channels: int


def _convolved(stacks: Stacks, place: Place, wanted: Stack) -> Stack:
    weights = _constant(place.value(1))
    start, results = 0, []
    for piece in wanted:
        stop = start + piece.count
        results.append(_convolution(stacks, place, _Kernels(piece, weights[start:stop], start, len(weights))))
        start = stop
    if start != len(weights):
        raise Unproven(f"it makes {len(weights)} channels, not {start}")
    return tuple(results)


def _convolution(stacks: Stacks, place: Place, mine: _Kernels) -> Channels:
    """Prove one piece of a convolution's result."""
    node, piece, first = place.node, mine.piece, stacks.first
    original = _original(stacks, place, piece)
    read = stacks.pool(piece).inputs[0] if piece.before_pool else original.inputs[0]
    for value in (first.values[read], first.values[piece.of]):
        if value.dtype not in _FLOATS:
            raise Unproven(f"{value.label!r} holds no floats")
    kernels = _constant(first.values[original.inputs[1]])
    size = [stop for _, stop in whole(first.values[read])[2:]]
    ours = windows(node, size, mine.kernels.shape[2:])
    if piece.before_pool:
        _is_pointwise(stacks, original, kernels.shape[2:])
        theirs: tuple[Along, ...] = tuple(Along(1, 1, 1, 0, 0, extent) for extent in size)
    else:
        theirs = windows(original, size, kernels.shape[2:])
    taps = [_taps(one, other) for one, other in zip(ours, theirs, strict=True)]
    _same_kernels(mine.kernels, kernels[piece.start : piece.stop], taps)
    stacks.finite |= piece.before_pool or mine.kernels.shape[2:] != kernels.shape[2:]
    _same_channels(stacks, place, mine, (read, number(original, "group", 1), kernels.shape))
    return replace(piece, biased=_biased(stacks, place, original, mine))


def _original(stacks: Stacks, place: Place, piece: Channels) -> FileNode:
    """The original's convolution that makes a piece, with the settings of this one but for the window."""
    node, original = place.node, stacks.maker.get(piece.of)
    if original is None or base_kind(original) != "Conv":
        raise Unproven(f"{stacks.first.values[piece.of].label!r} is made by no convolution")
    same_window_kind(node, original)
    if fused(node) != fused(original) or (piece.before_pool and fused(node) is not None):
        raise Unproven("its activation differs")
    if max(len(node.inputs), len(original.inputs)) > 3:
        raise Unproven("something is added to the sum")
    return original


def _same_channels(stacks: Stacks, place: Place, mine: _Kernels, its: tuple[int, int, tuple[int, ...]]) -> None:
    """Prove that each channel of a piece is computed from the channels of which the original's is. `its`: the tensor
    that the original reads, its groups, and the shape of its weights."""
    (source, its_groups, shape), piece = its, mine.piece
    held, total = stacks.held(place, 0), whole(stacks.first.values[source])[1][1]
    groups, reads = number(place.node, "group", 1), mine.kernels.shape[1]
    if mine.channels % groups or shape[0] % its_groups or shape[1] * its_groups != total or reads != shape[1]:
        raise Unproven("its groups do not divide its channels as the original's do")
    if stacks.sizes(held)[1] != reads * groups:
        raise Unproven("its input has another number of channels")
    each, its_each = mine.channels // groups, shape[0] // its_groups
    channel = piece.start
    while channel < piece.stop:
        here = mine.start + channel - piece.start
        group, its_group = here // each, channel // its_each
        read = cut(held, group * reads, (group + 1) * reads)
        if read != stacks.expanded(source, its_group * reads, (its_group + 1) * reads):
            raise Unproven(f"its channel {here} is not made of the channels that the original reads")
        channel += min((its_group + 1) * its_each - channel, (group + 1) * each - here)


def _biased(stacks: Stacks, place: Place, original: FileNode, mine: _Kernels) -> bool:
    """Whether a piece holds the original's bias. Raises Unproven where it must and does not, or holds another."""
    piece, value = mine.piece, place.value(2)
    theirs = _bias(stacks, original, piece)
    ours = None if value is None else _constant(value)[mine.start : mine.start + piece.count]
    if ours is not None and theirs is not None and _same_bytes(ours, theirs):
        return True
    if ours is not None and ours.any():
        raise Unproven("it adds a value that is neither the original's bias nor zero")
    if theirs is None or not theirs.any():
        return True
    if not piece.before_pool:
        raise Unproven(f"it adds no bias to {stacks.first.values[piece.of].label!r}")
    return False


def _bias(stacks: Stacks, original: FileNode, piece: Channels) -> Array | None:
    target = original.inputs[2] if len(original.inputs) > 2 else ABSENT
    return None if target == ABSENT else _constant(stacks.first.values[target])[piece.start : piece.stop]


def _is_pointwise(stacks: Stacks, original: FileNode, kernel: Sequence[int]) -> None:
    size = [stop for _, stop in whole(stacks.first.values[original.inputs[0]])[2:]]
    along = windows(original, size, kernel)
    if any((one.size, one.stride, one.pad_begin, one.pad_end) != (1, 1, 0, 0) for one in along):
        raise Unproven("the original's convolution behind the pool is not pointwise")


def pooled(stacks: Stacks, place: Place, out: Claim) -> Claim:
    """The average of what a 1x1 convolution makes is what it makes of the average, since both are sums. The bias is
    only the same where the average of ones is one. Returns the claim about the result."""
    held = stacks.held(place, 0)
    if len(held) != 1 or not held[0].before_pool or out.of != held[0].of:
        raise Unproven("it averages something else")
    (piece,) = held
    if stacks.channels(replace(out, terms=None)) != (Channels(piece.of, piece.start, piece.stop),):
        raise Unproven("it averages other channels")
    pool = stacks.pool(piece)
    if pool.settings != place.node.settings or len(place.node.inputs) != 1:
        raise Unproven(f"its settings are not those of {pool.label!r}")
    stacks.finite = True
    bias = _bias(stacks, stacks.maker[piece.of], piece)
    is_zero = bias is None or not bias.any()
    if not piece.biased or (is_zero and out.terms is not None):
        return Claim(out.of, out.box, (0, whole(stacks.first.values[pool.inputs[0]])[1][1]))
    if is_zero:
        return Claim(out.of, out.box)
    padded = any(_setting(pool, "pads")) or pool.settings.get("auto_pad") not in _UNPADDED
    if number(pool, "count_include_pad", 0) and (padded or number(pool, "ceil_mode", 0)):
        raise Unproven("it averages the bias with pads")
    return Claim(out.of, out.box)


def bias_added(stacks: Stacks, place: Place, original: FileNode, out: Claim) -> Claim:
    """The addition of the bias to a sum of all products. Returns the claim about the result."""
    values = [place.value(position) for position in (0, 1)]
    positions = [position for position, value in enumerate(values) if value is not None and value.content is not None]
    if len(positions) != 1 or fused(original) is not None or len(out.box) < 3 or place.node.settings:
        raise Unproven("it adds no constant to a sum")
    added, (start, stop) = _constant(values[positions[0]]), out.box[1]
    claim = place.claims.get(place.node.inputs[1 - positions[0]])
    total = whole(stacks.first.values[original.inputs[0]])[1]
    if claim is None or (claim.of, claim.box, claim.terms, claim.biased) != (out.of, out.box, total, False):
        raise Unproven("it adds a constant to a sum that is not finished")
    bias = _bias(stacks, original, Channels(out.of, start, stop))
    column = (stop - start, *[1] * (len(out.box) - 2))
    if added.shape not in (column, (1, *column)) or bias is None or not _same_bytes(added.reshape(-1), bias):
        raise Unproven("it adds something other than the original's bias")
    return Claim(out.of, out.box)


_UNPADDED = (None, (3, b"NOTSET"), (3, b"VALID"))
"""The settings of `auto_pad` that add no pads: none, or a string."""


def _constant(value: FileValue | None) -> Array:
    if value is None or value.as_constant.content is None:
        raise Unproven("its weights are not constants")
    return array_of(value.as_constant)


def _setting(node: FileNode, name: str) -> tuple[int, ...]:
    """A setting of several integers; none where it is not stated."""
    value = node.settings.get(name)
    return tuple(value[1]) if isinstance(value, tuple) else ()


def _unflagged(stack: Stack) -> Stack:
    return tuple(replace(piece, biased=True) for piece in stack)


def _same_bytes(one: Array, other: Array) -> bool:
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


def _same_kernels(mine: Array, theirs: Array, taps: Sequence[slice]) -> None:
    """Prove that the kernels have the original's values at these taps, and zeros elsewhere."""
    inner = mine[(slice(None), slice(None), *taps)]
    if not _same_bytes(np.ascontiguousarray(inner), theirs):
        raise Unproven("its kernels are not the original's at the taps that read the same positions")
    if np.count_nonzero(mine) != np.count_nonzero(inner):
        raise Unproven("its kernels are not zero at a tap that the original does not have")
