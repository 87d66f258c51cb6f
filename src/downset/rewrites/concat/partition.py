"""SERENITY's identity graph rewriting: operators that read a concatenation are computed for each of its parts.

Source: "Ordering Chaos", section 3.3, equations 3-8, figure 9.
Names: channel-wise partitioning is `channel-wise` at a convolution (partial conv + add); kernel-wise partitioning is
    `kernel-wise` at a depthwise convolution (the concatenation moves behind it); x_i are the concatenation's inputs, y
    the result, w_*i the slice of the weights that reads x_i.
Complexity: linear in the graph for each reader that is split; weights are cut when they are read.
Deviations: the paper shows only the two patterns, for a concatenation with one reader. Here the concatenation also
    moves behind element-wise operators, pools and batch normalisation, which treat each channel separately, and into
    other concatenations. So chains such as concat, ReLU, depthwise, pointwise are split as a whole. A concatenation
    with several readers is taken apart if each of them can be split. Grouped convolutions are split where parts are
    whole groups; matrix products are split like convolutions. The first part adds the bias. `accumulate` says how
    partial results are added: "sum": an n-ary Sum, which the paper's accounting assumes, with one result written part
    by part; "chain": a chain of Adds, which most runtimes execute; "fused": convolutions that add to the sum so far
    (ONNX Runtime's FusedConv, which does it in place).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from downset.graph.core import ABSENT, Graph
from downset.graph.edit import Edit
from downset.rewrites.concat.edits import Accumulate
from downset.rewrites.concat.operands import concat_axis
from downset.rewrites.concat.rules import Kind, rule_for

__all__ = ["Accumulate", "Partitioned", "PartitionedReader", "concat_partition", "partition", "partition_sites"]


@dataclass(frozen=True, slots=True)
class PartitionedReader:
    """A reader that was split. `site`: the name of the concatenation in the original graph; `reader`: the name of the
    operator; `result`: the name of the tensor that it makes."""

    site: str
    reader: str
    result: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A rewritten graph, and the readers that were split."""

    graph: Graph
    splits: tuple[PartitionedReader, ...]


def partition_sites(graph: Graph, *, inexact: bool = False) -> tuple[int, ...]:
    """The concatenations that can be taken apart: operator indices, ascending.

    A site is a Concat of activations with known shapes. Its result is not a graph output, and each of its readers can
    be split over its parts. Quantised convolutions are summed part by part only if `inexact`, since rounding each part
    changes the result.
    """
    readers, waited_for = graph.consumers(), _waited_for(graph)
    return tuple(index for index in range(len(graph.ops)) if _is_site(graph, readers, waited_for, index, inexact))


def _waited_for(graph: Graph) -> frozenset[int]:
    """Operators that others wait for because of side effects."""
    return frozenset(earlier for op in graph.ops for earlier in op.after)


def _is_site(
    graph: Graph, readers: Sequence[Sequence[int]], waited_for: frozenset[int], index: int, inexact: bool
) -> bool:
    op = graph.ops[index]
    if op.kind != "Concat" or len(op.inputs) < 2 or len(op.outputs) != 1 or op.outputs[0] == ABSENT:
        return False
    joined = op.outputs[0]
    if joined in graph.outputs or not readers[joined] or op.attrs.get("activation") or op.after:
        return False
    if waited_for & {index, *readers[joined]}:
        return False
    whole = graph.tensors[joined]
    parts = [graph.tensors[tensor] for tensor in op.inputs if tensor != ABSENT]
    if len(parts) < len(op.inputs) or any(part.role != "activation" or part.nbytes <= 0 for part in parts):
        return False
    if any(part.quantization != whole.quantization for part in parts):
        return False  # the concatenation itself rescales some of its parts
    if not _adds_up(whole.shape, [part.shape for part in parts], concat_axis(graph, op)):
        return False  # also where only sizes are known, as in plain graphs
    return all(rule_for(graph, index, reader, inexact) is not None for reader in readers[joined])


def _adds_up(whole: tuple[int, ...], parts: Sequence[tuple[int, ...]], axis: int) -> bool:
    """Whether these shapes, put one behind the other along the axis, have the shape of the whole."""
    if not 0 <= axis < len(whole) or any(len(part) != len(whole) for part in parts):
        return False
    across = {part[:axis] + part[axis + 1 :] for part in parts}
    return across == {whole[:axis] + whole[axis + 1 :]} and sum(part[axis] for part in parts) == whole[axis]


def partition(
    graph: Graph, sites: Iterable[int], *, accumulate: Accumulate = "chain", inexact: bool = False
) -> Partitioned:
    """The same network with the concatenations at `sites` (see `partition_sites`) taken apart, and the readers that
    were split.

    A concatenation moves behind its readers until it is replaced by sums or reaches a reader that cannot be split.
    Float results are equal up to the sequence of additions. Where all splits are kernel-wise, every element is computed
    as before.
    """
    origin = {graph.tensors[graph.ops[site].outputs[0]].name: graph.ops[site].name for site in sites}
    splits: list[PartitionedReader] = []
    while True:
        edited, origins = _pass(graph, origin, accumulate, inexact)
        if not origins:
            return Partitioned(graph, tuple(splits))
        splits += origins
        graph = edited


def _pass(
    graph: Graph, origin: dict[str, str], accumulate: Accumulate, inexact: bool
) -> tuple[Graph, list[PartitionedReader]]:
    """Split the readers of every site that `origin` names, except where one split would change an operator that another
    split changed. The names of concatenations that moved are added to `origin`."""
    edit, readers, waited_for = Edit(graph), graph.consumers(), _waited_for(graph)
    touched: set[int] = set()
    splits: list[PartitionedReader] = []
    sites = [index for index in _named(graph, origin) if _is_site(graph, readers, waited_for, index, inexact)]
    inner = {graph.ops[site].outputs[0] for site in sites}
    for site in sites:
        # A concatenation inside another is merged into it first; readers are then split over all parts at once.
        if site in touched or inner & set(graph.ops[site].inputs):
            continue
        joined = graph.tensors[graph.ops[site].outputs[0]].name
        for reader in readers[graph.ops[site].outputs[0]]:
            rule = rule_for(graph, site, reader, inexact)
            if rule is None or reader in touched:
                continue
            touched |= {site, reader}
            reader_name = graph.tensors[graph.ops[reader].outputs[0]].name
            splits.append(PartitionedReader(origin[joined], graph.ops[reader].name, reader_name, rule.kind))
            # A concatenation that moved behind its reader makes the reader's result, and is taken apart next. Another
            # concatenation into which it was merged is taken apart only if it is a site too.
            if rule.kind == "kernel-wise" and graph.ops[reader].kind != "Concat":
                origin.setdefault(reader_name, origin[joined])
            rule.apply(edit, site, reader, accumulate)
    return (edit.finish() if splits else graph), splits


def _named(graph: Graph, names: Iterable[str]) -> list[int]:
    wanted = set(names)
    return [
        index
        for index, op in enumerate(graph.ops)
        if op.kind == "Concat" and op.outputs[0] != ABSENT and graph.tensors[op.outputs[0]].name in wanted
    ]


def concat_partition(
    graph: Graph, sites: Iterable[int], *, accumulate: Accumulate = "chain", inexact: bool = False
) -> Graph:
    """The graph of `partition`."""
    return partition(graph, sites, accumulate=accumulate, inexact=inexact).graph
