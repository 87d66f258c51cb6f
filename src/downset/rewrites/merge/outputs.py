"""Readers of the results of merged operators: equal activations are merged too, concatenations read the merged result,
and Splits make the parts for other readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.edit import Edit
from downset.graph.kinds import kind_of

__all__ = [
    "CHANNELS",
    "arranged",
    "deliver",
    "joined_tensor",
    "ordered_by_hand",
    "private_reader",
]

CHANNELS = 1
"""The axis of the channels; channels-last graphs are not merged."""


def ordered_by_hand(graph: Graph, index: int) -> bool:
    """Whether side effects order the operator before or after another (`Op.after`)."""
    return bool(graph.ops[index].after) or any(index in other.after for other in graph.ops)


def private_reader(graph: Graph, tensor: int) -> int | None:
    """The only reader of a tensor, if it reads the tensor as its first input only and the tensor is not an output."""
    readers = [index for index, op in enumerate(graph.ops) if tensor in op.inputs]
    alone = len(readers) == 1 and tensor not in graph.outputs
    if not alone or graph.ops[readers[0]].inputs[0] != tensor or graph.ops[readers[0]].inputs.count(tensor) != 1:
        return None
    return readers[0]


def _activation_behind(graph: Graph, index: int) -> int | None:
    """The activation that is the only reader of an operator's result and has only constants as further inputs."""
    reader = private_reader(graph, graph.ops[index].outputs[0])
    if reader is None:
        return None
    op = graph.ops[reader]
    fixed = all(tensor == ABSENT or graph.tensors[tensor].role == "constant" for tensor in op.inputs[1:])
    plain = kind_of(op.kind).unary and len(op.outputs) == 1 and op.attrs.get("layout") != "NHWC"
    return reader if plain and fixed and not ordered_by_hand(graph, reader) else None


def _activation_key(graph: Graph, index: int) -> tuple[Any, ...] | None:
    reader = _activation_behind(graph, index)
    if reader is None:
        return None
    op = graph.ops[reader]
    return op.kind, op.inputs[1:], tuple(sorted((key, repr(value)) for key, value in op.attrs.items()))


def _final(graph: Graph, index: int) -> int:
    """The tensor that the rest of the network reads: the result of the activation behind the operator if there is one,
    else the operator's result."""
    reader = _activation_behind(graph, index)
    return graph.ops[index if reader is None else reader].outputs[0]


def arranged(graph: Graph, ops: Sequence[int]) -> tuple[int, ...]:
    """The operators in the sequence in which they are merged: those with equal activations next to each other, within
    these as a concatenation of their results lists them, then as given."""
    keys = [_activation_key(graph, index) for index in ops]
    finals = [_final(graph, index) for index in ops]
    positions: dict[int, int] = {}
    for op in graph.ops:
        if op.kind == "Concat" and sum(tensor in op.inputs for tensor in finals) > 1:
            positions = {tensor: op.inputs.index(tensor) for tensor in finals if tensor in op.inputs}
            break
    sequence = sorted(
        range(len(ops)),
        key=lambda index: (keys.index(keys[index]), positions.get(finals[index], len(graph.tensors)), index),
    )
    return tuple(ops[index] for index in sequence)


def deliver(edit: Edit, graph: Graph, ops: Sequence[int], merged: Callable[[int], list[Op]]) -> list[Op]:
    """The operators that replace `ops`: those of `merged(t)`, which make a tensor t of all results one after another,
    then merged activations and Splits. Activations and concatenations that these replace are removed or changed in
    `edit`."""
    runs = [list(run) for _, run in groupby(ops, lambda index: _activation_key(graph, index))]
    behind: list[Op] = []
    pieces: list[int] = []  # the parts of the merged result, one for each run of equal activations
    for run in runs:
        activation = _activation_behind(graph, run[0])
        if len(run) == 1 and len(runs) > 1:
            pieces.append(graph.ops[run[0]].outputs[0])  # its activation stays where it is
            continue
        finals = [_final(graph, index) for index in run]
        joined, split = _hand_out(edit, graph, finals)
        if activation is None:
            pieces.append(joined)
        else:
            pieces.append(joined_tensor(edit, graph, [graph.ops[index].outputs[0] for index in run], "/merged"))
            op = graph.ops[activation]
            new = replace(op, name=f"{op.name}/merged", inputs=(pieces[-1], *op.inputs[1:]), outputs=(joined,))
            behind.append(new)
            for index in run:
                reader = _activation_behind(graph, index)
                assert reader is not None  # the keys are equal
                edit.replace(reader, [])
        behind += split
    if len(pieces) == 1:
        return [*merged(pieces[0]), *behind]
    whole = joined_tensor(edit, graph, [graph.ops[index].outputs[0] for index in ops], "/all_merged")
    return [*merged(whole), split_channels(edit, whole, pieces), *behind]


def joined_tensor(edit: Edit, graph: Graph, parts: Sequence[int], suffix: str) -> int:
    """Add a tensor for these parts, one after another along the channels."""
    first = graph.tensors[parts[0]]
    channels = sum(graph.tensors[part].shape[CHANNELS] for part in parts)
    pieces = [piece for part in parts for piece in edit.pieces(part)]
    return edit.add_tensor(f"{first.name}{suffix}", (first.shape[0], channels, *first.shape[2:]), first, part=pieces)


def split_channels(edit: Edit, whole: int, parts: Sequence[int]) -> Op:
    """A Split of the channels of `whole` into the parts."""
    sizes = [edit.tensors[part].shape[CHANNELS] for part in parts]
    name = edit.tensors[whole].name
    like = Tensor(f"{name}/sizes", (len(sizes),), "int64", 0)
    lengths = edit.add_tensor(
        f"{name}/sizes", (len(sizes),), like, role="constant", value=lambda: np.asarray(sizes, np.int64)
    )
    return Op(f"{name}/split", "Split", (whole, lengths), tuple(parts), {"axis": CHANNELS})


def _hand_out(edit: Edit, graph: Graph, parts: Sequence[int]) -> tuple[int, list[Op]]:
    """(the tensor that holds these parts one after another, the Split that makes the parts if some reader needs one).

    Concatenations that read all parts in this sequence read that tensor instead. One that reads nothing else is
    removed.
    """
    joining = [
        index for index, op in enumerate(graph.ops) if op.kind == "Concat" and _joins(graph, op, parts) is not None
    ]
    joined = None
    for index in joining:
        op = edit.op(index)
        free = not op.attrs.get("activation") and not ordered_by_hand(graph, index)
        if op.inputs == tuple(parts) and joined is None and free:
            joined = op.outputs[0]
            edit.stays(joined)
            edit.replace(index, [])
    gone = {index for index in joining if graph.ops[index].outputs[0] == joined}
    if joined is None:
        joined = joined_tensor(edit, graph, parts, "/merged")
    for index in joining:
        if index not in gone:
            op = edit.op(index)
            start = _joins(graph, op, parts)
            assert start is not None
            edit.replace(index, [replace(op, inputs=(*op.inputs[:start], joined, *op.inputs[start + len(parts) :]))])
    left = any(part in graph.outputs for part in parts) or any(
        part in (edit.op(index) if index in joining else op).inputs
        for index, op in enumerate(graph.ops)
        if index not in gone
        for part in parts
    )
    return joined, [split_channels(edit, joined, parts)] if left else []


def _joins(graph: Graph, op: Op, parts: Sequence[int]) -> int | None:
    """The position at which a concatenation along the channels reads these parts one after another, or None."""
    axis = int(op.attrs.get("axis", 0))
    if op.attrs.get("layout") == "NHWC" or axis not in (CHANNELS, CHANNELS - len(graph.tensors[parts[0]].shape)):
        return None
    starts = range(len(op.inputs) - len(parts) + 1)
    return next((start for start in starts if op.inputs[start : start + len(parts)] == tuple(parts)), None)
