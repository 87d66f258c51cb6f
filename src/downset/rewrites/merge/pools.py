"""A 1x1 convolution behind an average pool is moved before it, so that it can be merged with convolutions on the pool's
input.

Source: beyond "IOS", which does not merge the pool branch.
Names: as in `convolutions`.
Complexity: linear in the graph; weights are put together when they are read.
Deviations: an average combines positions and a 1x1 convolution combines channels, both linearly, so they commute,
    whatever the pool divides by. The bias does not commute where the pool counts pads: at a border its average is
    smaller. It is then added behind the pool; elsewhere it stays in the convolution. Activations stay behind the pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from downset.errors import UsageError
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.edit import Edit
from downset.graph.kinds import kind_of
from downset.graph.parts import ChannelPiece, summed
from downset.rewrites.merge.convolutions import merge_convs, mergeable, not_plain
from downset.rewrites.merge.outputs import CHANNELS, ordered_by_hand, private_reader
from downset.rewrites.merge.places import numbered, origins, without_numbers
from downset.rewrites.merge.window import ConvolutionAxis, common_window, windows

__all__ = ["macs_through_pools", "merge_through_pools", "mergeable_through_pools", "pool_swappable", "swap_pool"]


def pool_swappable(graph: Graph, index: int) -> str | None:
    """Why this operator cannot be moved before an AveragePool that it reads, or None where it can: it is then a 1x1
    convolution."""
    op = graph.ops[index]
    reason = not_plain(graph, index)
    if reason:
        return f"operator {op.name!r} {reason}"
    if any((w.taps, w.stride, w.before, w.after) != (1, 1, 0, 0) for w in windows(graph, index)):
        return f"operator {op.name!r} is not 1x1 with stride 1 and without pads"
    if op.attrs.get("activation") and kind_of(op.attrs["activation"]).fused != ():
        return f"operator {op.name!r} has a fused {op.attrs['activation']}"
    maker = graph.producers()[op.inputs[0]]
    pool = graph.ops[maker] if maker >= 0 else None
    if pool is None or pool.kind != "AveragePool":
        return f"operator {op.name!r} does not read an AveragePool"
    if private_reader(graph, op.inputs[0]) != index:
        return f"the pool {pool.name!r} has other readers"
    if pool.attrs.get("layout") == "NHWC" or pool.attrs.get("activation") or ordered_by_hand(graph, maker):
        return f"the pool {pool.name!r} is channels-last, has an activation or is ordered by side effects"
    return None


def swap_pool(graph: Graph, index: int) -> Graph:
    """The same network with the 1x1 convolution at `index` before the AveragePool that it reads: equal results up to
    rounding. Raises UsageError with the reason of `pool_swappable`."""
    reason = pool_swappable(graph, index)
    if reason:
        raise UsageError(f"{graph.name}: cannot swap: {reason}")
    conv = graph.ops[index]
    maker = graph.producers()[conv.inputs[0]]
    pool = graph.ops[maker]
    result, source = graph.tensors[conv.outputs[0]], graph.tensors[pool.inputs[0]]
    edit = Edit(graph)
    bias = conv.inputs[2] if len(conv.inputs) > 2 else ABSENT
    behind = bias != ABSENT and not _averages_ones_to_one(pool)
    # From the last operator to the first: each makes the input of the one behind it, and the last makes the old result.
    joined, late = conv.outputs[0], []
    if conv.attrs.get("activation"):
        before = edit.add_tensor(f"{result.name}/linear", result.shape, result)
        late.append(Op(f"{result.name}/activation", str(conv.attrs["activation"]), (before,), (joined,)))
        joined = before
    if behind:
        part = summed(result.name, 0, source.shape[CHANNELS])
        before = edit.add_tensor(f"{result.name}/pooled", result.shape, result, part=part)
        late.append(Op(f"{result.name}/bias", "Add", (before, _along_channels(edit, graph, bias, index)), (joined,)))
        joined = before
    shape = (source.shape[0], result.shape[CHANNELS], *source.shape[2:])
    piece = ChannelPiece(result.name, before_pool=True)
    mixed = edit.add_tensor(f"{result.name}/mixed", shape, result, part=(piece,))
    late.append(replace(pool, inputs=(mixed, *pool.inputs[1:]), outputs=(joined,)))
    attrs = {key: value for key, value in conv.attrs.items() if key not in ("activation", "activation_params")}
    inputs = (pool.inputs[0], conv.inputs[1], *([] if behind else conv.inputs[2:3]))
    late.append(Op(conv.name, "Conv", inputs, (mixed,), attrs))
    edit.replace(maker, [])
    edit.replace(index, late[::-1])
    return edit.finish()


def _averages_ones_to_one(pool: Op) -> bool:
    """Whether the pool divides by the number of values that it adds, so that the average of ones is one."""
    if not pool.attrs.get("count_include_pad", 0):
        return True
    padded = any(pool.attrs.get("pads") or ()) or pool.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return not padded and not pool.attrs.get("ceil_mode", 0)


def _along_channels(edit: Edit, graph: Graph, bias: int, index: int) -> int:
    rank = len(graph.tensors[graph.ops[index].outputs[0]].shape)
    shape = (-1, *[1] * (rank - 2))
    read = graph.constants[bias]

    def value() -> npt.NDArray[np.generic]:
        return np.asarray(read()).reshape(shape)

    like = graph.tensors[bias]
    return edit.add_tensor(f"{like.name}/column", (like.shape[0], *shape[1:]), like, role="constant", value=value)


def mergeable_through_pools(graph: Graph, ops: Sequence[int]) -> str | None:
    """Why `merge_through_pools` refuses these operators, or None where it takes them. It takes convolutions, at least
    one of them behind an average pool, that are mergeable once each of those is moved before its pool."""
    swapped = _swapped(graph, ops)
    return swapped if isinstance(swapped, str) else mergeable(*swapped)


def merge_through_pools(graph: Graph, ops: Sequence[int]) -> Graph:
    """The same network with these convolutions merged into one, after those behind an average pool are moved before it.
    Raises UsageError with the reason of `mergeable_through_pools`."""
    swapped = _swapped(graph, ops)
    if isinstance(swapped, str):
        raise UsageError(f"{graph.name}: cannot merge: {swapped}")
    return merge_convs(*swapped)


def macs_through_pools(graph: Graph, ops: Sequence[int]) -> tuple[int, int]:
    """MACs of these operators, which `merge_through_pools` accepts, and of the merged one."""
    root = _root(graph, ops)
    if root is None:
        raise UsageError(f"{graph.name}: operators {list(ops)} read different inputs")
    size = graph.tensors[root].shape
    before = channels = 0
    each = []
    for index in ops:
        op = graph.ops[index]
        result, weights = graph.tensors[op.outputs[0]].shape, graph.tensors[op.inputs[1]].shape
        before += math.prod(result) * math.prod(weights[1:])
        channels += weights[0]
        point = tuple(ConvolutionAxis(extent, 1, 1, 1, 0, 0, extent) for extent in size[2:])
        each.append(windows(graph, index) if op.inputs[0] == root else point)
    taps = math.prod(window.taps for window in common_window(each))
    return before, size[0] * math.prod(size[2:]) * channels * size[CHANNELS] * taps


def _root(graph: Graph, ops: Sequence[int]) -> int | None:
    """The tensor that all of these operators read, directly or through an average pool; None where there is none."""
    made_by = graph.producers()
    ahead = {}
    for index in ops:
        maker = made_by[graph.ops[index].inputs[0]]
        pooled = maker >= 0 and graph.ops[maker].kind == "AveragePool"
        ahead[index] = {graph.ops[index].inputs[0], *(graph.ops[maker].inputs[:1] if pooled else ())}
    common = set.intersection(*ahead.values())
    direct = {graph.ops[index].inputs[0] for index in ops}
    return min(common, key=lambda tensor: (tensor not in direct, tensor), default=None)


def _swapped(graph: Graph, ops: Sequence[int]) -> str | tuple[Graph, tuple[int, ...]]:
    """(the graph with the convolutions moved before their pools, the indices of the operators in it), or the reason why
    they cannot be moved."""
    if any(not 0 <= index < len(graph.ops) for index in ops) or len(set(ops)) != len(ops) or len(ops) < 2:
        return f"a merge takes at least two different operators, not {list(ops)}"
    root = _root(graph, ops)
    if root is None:
        return "they read different inputs"
    swapped = [index for index in ops if graph.ops[index].inputs[0] != root]
    for index in swapped:
        reason = pool_swappable(graph, index)
        if reason:
            return reason
    if not swapped:
        return "none of them is behind an average pool"
    graph = numbered(graph)
    for index in swapped:
        graph = swap_pool(graph, origins(graph).index(index))
    place = origins(graph)
    return without_numbers(graph), tuple(place.index(index) for index in ops)
