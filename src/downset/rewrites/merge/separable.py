"""Separable convolutions of one shape, on different inputs, become one depthwise and one grouped convolution.

Source: beyond "IOS" (section 6.1: "we can not merge Relu-SepConv operators in RandWire and NasNet").
Names: k chains of [activation,] depthwise, pointwise; C channels each.
Complexity: linear in the graph, plus its ancestors' masks; weights are put together when they are read.
Deviations: the paper has no such merge. The inputs are concatenated along the channels. One depthwise convolution over
    k·C channels and one pointwise convolution of k groups replace all chains; where the kernels are equal this adds no
    multiplication. Smaller depthwise kernels are padded with zeros (see `convolutions`). An activation with which all
    chains begin, and which only they read, is merged too. If the inputs are all parts of one Split, in its sequence,
    its input is read instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from downset.errors import UsageError
from downset.graph.core import Graph, Op
from downset.graph.edit import Edit
from downset.graph.kinds import kind_of
from downset.lattice import ancestors, masks
from downset.rewrites.merge.convolutions import not_plain, unlike
from downset.rewrites.merge.outputs import CHANNELS, arranged, deliver, joined_tensor, ordered_by_hand, private_reader
from downset.rewrites.merge.window import common_window, joined_conv, windows

__all__ = ["depthwise_of", "merge_separables", "mergeable_separables", "separable_macs"]


@dataclass(frozen=True, slots=True)
class _SeparableConvolution:
    depthwise: int
    pointwise: int


def mergeable_separables(graph: Graph, ops: Sequence[int]) -> str | None:
    """Why `merge_separables` refuses these operators, or None where it takes them.

    It takes at least two pointwise convolutions, each behind a depthwise one that only it reads. None of these chains
    waits for another. Their inputs have equal shapes, and so have their results; strides and fused activations are
    equal.
    """
    if len(ops) < 2 or len(set(ops)) != len(ops):
        return f"a merge takes at least two different operators, not {list(ops)}"
    chains = []
    for index in ops:
        separable = _chain(graph, index)
        if isinstance(separable, str):
            return f"operator {graph.ops[index].name!r} {separable}"
        chains.append(separable)
    depthwise = [chain.depthwise for chain in chains]
    for what, members in (("inputs", depthwise), ("inputs", ops)):
        if len({graph.tensors[graph.ops[index].inputs[0]].shape for index in members}) > 1:
            return f"their {what} have different shapes"
    if len({graph.tensors[graph.ops[index].outputs[0]].shape for index in ops}) > 1:
        return "their results have different shapes"
    reason = unlike(graph, depthwise) or unlike(graph, ops)
    if reason:
        return reason
    above = ancestors(masks(graph.predecessors()))
    inside = sum(1 << index for index in (*depthwise, *ops))
    for chain in chains:
        if above[chain.depthwise] & inside:
            return f"{graph.ops[chain.depthwise].name!r} waits for another of them"
    return None


def _chain(graph: Graph, index: int) -> _SeparableConvolution | str:
    """The pointwise convolution at `index` with the depthwise one before it, or the reason why it is not separable."""
    reason = not_plain(graph, index)
    if reason:
        return reason
    pointwise = graph.ops[index]
    if int(pointwise.attrs.get("group", 1)) != 1 or any(
        (w.taps, w.stride, w.before, w.after) != (1, 1, 0, 0) for w in windows(graph, index)
    ):
        return "is not pointwise"
    maker = graph.producers()[pointwise.inputs[0]]
    reason = "reads no convolution" if maker < 0 else not_plain(graph, maker)
    if reason:
        return f"is not behind a depthwise convolution: what it reads {reason}"
    group = int(graph.ops[maker].attrs.get("group", 1))
    if group != graph.tensors[graph.ops[maker].inputs[0]].shape[CHANNELS]:
        return "is not behind a depthwise convolution"
    if private_reader(graph, pointwise.inputs[0]) != index:
        return "shares its depthwise convolution with other readers"
    return _SeparableConvolution(maker, index)


def depthwise_of(graph: Graph, index: int) -> int | None:
    """The depthwise convolution that belongs to the pointwise one at `index`; None where there is none."""
    chain = _chain(graph, index)
    return chain.depthwise if isinstance(chain, _SeparableConvolution) else None


def separable_macs(graph: Graph, ops: Sequence[int]) -> tuple[int, int]:
    """MACs of these mergeable separable convolutions, and of the two convolutions that replace them."""
    before = after = 0
    chains = [chain for chain in (_chain(graph, index) for index in ops) if isinstance(chain, _SeparableConvolution)]
    joined = common_window([windows(graph, chain.depthwise) for chain in chains])
    for chain in chains:
        results = math.prod(graph.tensors[graph.ops[chain.depthwise].outputs[0]].shape)
        mixed = math.prod(graph.tensors[graph.ops[chain.pointwise].outputs[0]].shape)
        mixed *= graph.tensors[graph.ops[chain.pointwise].inputs[0]].shape[CHANNELS]
        before += results * math.prod(window.taps for window in windows(graph, chain.depthwise)) + mixed
        after += results * math.prod(window.taps for window in joined) + mixed
    return before, after


def merge_separables(graph: Graph, ops: Sequence[int]) -> Graph:
    """The same network with these separable convolutions, given by their pointwise ones, merged into one. Raises
    UsageError with the reason of `mergeable_separables`."""
    reason = mergeable_separables(graph, ops)
    if reason:
        raise UsageError(f"{graph.name}: cannot merge: {reason}")
    ops = arranged(graph, ops)
    depthwise = [
        chain.depthwise for chain in (_chain(graph, index) for index in ops) if isinstance(chain, _SeparableConvolution)
    ]
    edit = Edit(graph)
    ahead, source = _joined_input(edit, graph, depthwise)
    group = len(ops) * graph.tensors[graph.ops[depthwise[0]].inputs[0]].shape[CHANNELS]
    filtered = joined_tensor(edit, graph, [graph.ops[index].outputs[0] for index in depthwise], "/merged")

    def merged(output: int) -> list[Op]:
        return [
            *ahead,
            joined_conv(edit, graph, depthwise, source, filtered, group=group),
            joined_conv(edit, graph, ops, filtered, output, group=len(ops)),
        ]

    for index in (*ops, *depthwise):
        edit.replace(index, [])
    edit.replace(ops[0], deliver(edit, graph, ops, merged))
    return edit.finish()


def _joined_input(edit: Edit, graph: Graph, depthwise: Sequence[int]) -> tuple[list[Op], int]:
    """(operators that make the input of the merged depthwise convolution, that input)."""
    made_by = graph.producers()
    sources = [graph.ops[index].inputs[0] for index in depthwise]
    makers = [made_by[source] for source in sources]
    first = graph.ops[makers[0]] if makers[0] >= 0 else None
    shared = first is not None and all(_begins(graph, maker, first, depthwise) for maker in makers)
    if not shared or first is None:
        return _concatenated(edit, graph, sources)
    ops, source = _concatenated(edit, graph, [graph.ops[maker].inputs[0] for maker in makers])
    merged_input = joined_tensor(edit, graph, sources, "/merged")
    return [*ops, replace(first, name=f"{first.name}/merged", inputs=(source,), outputs=(merged_input,))], merged_input


def _begins(graph: Graph, maker: int, like: Op, depthwise: Sequence[int]) -> bool:
    """Whether the operator `maker` is an activation equal to `like`, and only these convolutions read it."""
    if maker < 0 or ordered_by_hand(graph, maker):
        return False
    op = graph.ops[maker]
    alike = op.kind == like.kind and op.attrs == like.attrs and len(op.inputs) == len(op.outputs) == 1
    readers = {index for index, other in enumerate(graph.ops) if op.outputs[0] in other.inputs}
    return (
        alike
        and kind_of(op.kind).unary
        and op.outputs[0] not in graph.outputs
        and op.attrs.get("layout") != "NHWC"
        and readers <= set(depthwise)
    )


def _concatenated(edit: Edit, graph: Graph, parts: Sequence[int]) -> tuple[list[Op], int]:
    made_by = graph.producers()
    maker = graph.ops[made_by[parts[0]]] if made_by[parts[0]] >= 0 else None
    rank = len(graph.tensors[parts[0]].shape)
    axis = int(maker.attrs.get("axis", 0)) if maker is not None else 0
    whole = maker is not None and maker.kind == "Split" and maker.outputs == tuple(parts)
    if maker is not None and whole and axis in (CHANNELS, CHANNELS - rank):
        return [], maker.inputs[0]
    joined = joined_tensor(edit, graph, parts, "/side_by_side")
    name = f"{graph.tensors[parts[0]].name}/side_by_side"
    return [Op(name, "Concat", tuple(parts), (joined,), {"axis": CHANNELS})], joined
