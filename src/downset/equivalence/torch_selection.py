"""The meaning of PyTorch's operators that take parts out of a tensor: slices, single positions, rows of a table."""

from __future__ import annotations

import numpy as np

from downset.equivalence.torch_arguments import Arguments, Meaning, axis_of, integer, integers_in, rank_of

__all__ = ["divided", "looked_up", "selected", "sliced", "unbound"]


def sliced(read: Arguments) -> Meaning:
    source, step = read(0, "self"), integer(read(4, "step", 1))
    axis = axis_of(read(1, "dim", 0), rank_of(source))
    start, end = read(2, "start"), read(3, "end")
    if step < 1:
        raise ValueError(step)
    start = 0 if start is None else integer(start)
    end = (1 << 63) - 1 if end is None else integer(end)
    bounds = [np.array([value], np.int64) for value in (start, end, axis, step)]
    return Meaning("Slice", {}, (source, *bounds))


def selected(read: Arguments) -> Meaning:
    """One position of a dimension, which the result lacks: TFLite has such a slice."""
    source, axis, index = read(0, "self"), axis_of(read(1, "dim"), rank_of(read(0, "self"))), integer(read(2, "index"))
    masks = {"beginMask": (2, ~(1 << axis)), "endMask": (2, ~(1 << axis)), "shrinkAxisMask": (2, 1 << axis)}
    begin = np.where(np.arange(rank_of(source)) == axis, index, 0)
    return Meaning("STRIDED_SLICE", masks, (source, begin, begin + 1, np.ones_like(begin)))


def unbound(read: Arguments) -> Meaning:
    source = read(0, "self")
    return Meaning("Unbind", {"axis": (2, axis_of(read(1, "dim", 0), rank_of(source)))}, (source,))


def divided(read: Arguments) -> Meaning:
    source, axis = read(0, "self"), axis_of(read(2, "dim", 0), rank_of(read(0, "self")))
    names = {"chunk": "chunks", "split_with_sizes": "split_sizes"}
    extent, stated = (source.shape or ())[axis], read(1, names.get(read.call.target.split(".")[1], "split_size"))
    if isinstance(stated, int):
        size = -(-extent // stated) if ".chunk." in read.call.target else stated
        sizes = [min(size, extent - start) for start in range(0, extent, size)]
    else:
        sizes = integers_in(stated)
    if len(sizes) != len(read.call.results):
        raise ValueError("sizes")
    return Meaning("Split", {"axis": (2, axis)}, (source, np.array(sizes, np.int64)))


def looked_up(read: Arguments) -> Meaning:
    """Rows of a table. What else the call states changes gradients alone. The operator is a setting, because PyTorch
    takes no negative row where ONNX's Gather does."""
    for place, name in enumerate(("padding_idx", "scale_grad_by_freq", "sparse"), 2):
        read(place, name)
    return Meaning("Gather", {"axis": (2, 0), "operator": "embedding"}, (read(0, "weight"), read(1, "indices")))
