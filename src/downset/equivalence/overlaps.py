"""Overlaps of results and inputs that are allowed by the kernels that a file names."""

from __future__ import annotations

import os

from downset.arenas.check_overlaps import reads_before_it_writes
from downset.equivalence.offline import Offline
from downset.equivalence.placement import May, nothing
from downset.formats.tflite.read import load_tflite
from downset.graph.core import ABSENT
from downset.memory.overlaps import ELEMENTWISE, TABLE

__all__ = ["allowed_overlaps"]


def allowed_overlaps(path: str | os.PathLike[str], offline: Offline) -> May:
    """A function of (result, its offset, input, its offset), tensors by their index in the file: whether the kernels
    that the file names let an operator's result overlap its input there."""
    if offline.kernels not in TABLE:
        return nothing
    graph = load_tflite(path)
    number = {place: tensor for tensor, place in enumerate(graph.source.tensor_index)}
    makes = {op.outputs[0]: op for op in graph.ops if len(op.outputs) == 1 and op.outputs[0] != ABSENT}

    def may(output: int, offset: int, read: int, read_offset: int) -> bool:
        op = makes.get(number.get(output, ABSENT))
        if op is None or number.get(read) not in op.inputs:
            return False
        if op.kind in ELEMENTWISE:
            return offset == read_offset and offline.nbytes[output] == offline.nbytes[read]
        return number[read] == op.inputs[0] and reads_before_it_writes(graph, op, offline.kernels, read_offset, offset)

    return may
