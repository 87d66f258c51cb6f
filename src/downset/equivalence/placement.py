"""Whether the offsets in a `.tflite` file keep apart the tensors that are live at the same time.

TFLite Micro puts tensors at these offsets without a check: if two overlap, one is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode
from downset.equivalence.meaning import fused, number
from downset.equivalence.offline import Offline

__all__ = ["May", "check_placement", "nothing"]

_ALIGNMENT = 16
_SAME_BYTES = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})


May = Callable[[int, int, int, int], bool]
"""Given (result of an operator, its offset, input that the operator is the last to read, its offset): whether the
operator's kernel lets them overlap."""


def nothing(output: int, offset: int, read: int, read_offset: int) -> bool:
    """The `May` where no kernels are known: a result may never overlap an input."""
    del output, offset, read, read_offset
    return False


def check_placement(network: FileNetwork, offline: Offline, may: May = nothing) -> str | None:
    """A message about the first fault of the offsets, or None. Inputs are live from the start, outputs to the end, and
    all other tensors from the operator that makes them to the last that reads them."""
    if offline.fault:
        return offline.fault
    main = network.bodies[0]
    first = dict.fromkeys(main.inputs, -1)
    last = dict.fromkeys(main.inputs, -1)
    same: dict[int, int] = {}
    for step, index in enumerate(main.nodes):
        node = network.nodes[index]
        for value in node.inputs:
            last[value] = step
        for value in node.outputs:
            first[value] = step
            last.setdefault(value, step)
        if node.kind in _SAME_BYTES:
            same[node.outputs[0]] = node.inputs[0]
    for value in main.outputs:
        last[value] = len(main.nodes)
    holders = _holders(network, offline)
    live: list[tuple[int, int, int]] = []
    for value in sorted((v for v in first if v != ABSENT), key=lambda v: first[v]):
        offset, nbytes = offline.offsets[value], offline.nbytes[value]
        if offset < 0:
            continue
        label = network.values[value].label
        unit = _ALIGNMENT if len(holders[value]) < 2 else _element_bytes(network, value)
        if offset % unit:
            return f"{label!r} lies at {offset}, which is not a multiple of {unit}"
        if nbytes < 0:
            return f"the bytes of {label!r} are not known"
        live = [item for item in live if last[item[0]] >= first[value]]
        for other, low, high in live:
            if offset >= high or low >= offset + nbytes:
                continue
            shared = same.get(value) == other and offset == low
            last_read = last[other] == first[value] and other in network.nodes[main.nodes[first[value]]].inputs
            if last_read and may(value, offset, other, low):
                continue
            if not shared and not _same_rows(holders[value], offset, holders[other], low):
                return f"{label!r} at {offset} overlaps {network.values[other].label!r} at {low}, which is still needed"
        live.append((value, offset, offset + nbytes))
    return None


def _element_bytes(network: FileNetwork, value: int) -> int:
    try:
        return int(np.dtype(network.values[value].dtype).itemsize)
    except TypeError:
        return _ALIGNMENT


def _same_rows(one: dict[int, int], offset: int, other: dict[int, int], other_offset: int) -> bool:
    """Whether two tensors at these offsets are the same bytes of a third tensor that holds both."""
    return any(tensor in other and offset - begin == other_offset - other[tensor] for tensor, begin in one.items())


def _holders(network: FileNetwork, offline: Offline) -> dict[int, dict[int, int]]:
    """By tensor of the main graph: the tensors that contain its bytes, itself included, and where it begins in each."""
    main = network.bodies[0]
    direct: dict[int, list[tuple[int, int]]] = {}
    for node in main.nodes:
        for value, holder, begin in _stretches(network, network.nodes[node], offline):
            direct.setdefault(value, []).append((holder, begin))
    holders: dict[int, dict[int, int]] = {}
    values = {*main.inputs, *(value for node in main.nodes for value in network.nodes[node].outputs)}
    for value in values:
        holds = {value: 0}
        stack = [value]
        while stack:
            inner = stack.pop()
            for holder, begin in direct.get(inner, ()):
                if holder not in holds:
                    holds[holder] = holds[inner] + begin
                    stack.append(holder)
        holders[value] = holds
    return holders


def _stretches(network: FileNetwork, node: FileNode, offline: Offline) -> Iterator[tuple[int, int, int]]:
    """(value, holder, begin) for each contiguous range of bytes that the node copies unchanged: `value` is the range of
    `holder` from byte `begin` on."""
    if node.kind == "SLICE":
        source, result = network.values[node.inputs[0]], network.values[node.outputs[0]]
        content = network.values[node.inputs[1]].content
        if source.shape is None or result.shape is None or content is None or len(content()) != 4 * len(result.shape):
            return
        begins = np.frombuffer(content(), np.int32).tolist()
        cut = [axis for axis, (size, whole) in enumerate(zip(result.shape, source.shape, strict=True)) if size != whole]
        axis = cut[-1] if cut else 0
        if all(extent == 1 for extent in result.shape[:axis]) and source.shape[axis]:
            inner = int(np.prod(source.shape[axis + 1 :], dtype=np.int64)) * _element_bytes(network, node.inputs[0])
            strides = [
                inner * int(np.prod(source.shape[axis_before + 1 : axis + 1], dtype=np.int64))
                for axis_before in range(axis + 1)
            ]
            yield node.outputs[0], node.inputs[0], sum(b * s for b, s in zip(begins, strides, strict=False))
    elif node.kind == "CONCATENATION" and fused(node) is None:
        shape = network.values[node.outputs[0]].shape or ()
        axis = number(node, "axis", 0)
        if all(extent == 1 for extent in shape[: axis if axis >= 0 else axis + len(shape)]):
            begin = 0
            for value in node.inputs:
                if node.inputs.count(value) == 1:
                    yield value, node.outputs[0], begin
                begin += offline.nbytes[value]
