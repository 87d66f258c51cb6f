"""The identities of layers on tokens: products of matrices, normalisations, and operators that only change the form.

A product, softmax or normalisation makes rows of the original's result from the same rows of one input and all of the
others. A reshape is followed through the smallest runs of dimensions with equal numbers of elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from downset.equivalence.claims import Box, Unproven, array_of, whole
from downset.equivalence.file_network import ABSENT, FileNode
from downset.equivalence.identities import Place, aligned, broadcast, integers_of, same_settings
from downset.equivalence.meaning import integers, listed_integers, number, split_inputs

__all__ = [
    "attention",
    "connected",
    "divided",
    "gathered",
    "layer_norm",
    "product",
    "quantised",
    "reduced",
    "reshaped",
    "softmax",
    "transposed",
    "unbound",
]

Sizes = Sequence[int]


def product(place: Place, node: FileNode, out: Box) -> None:
    """A product of matrices: rows of the first operand, columns of the second, and batches of both."""
    same_settings(place.node, node)
    if number(node, "transBatchA", 0) or number(node, "transBatchB", 0) or len(place.node.inputs) != len(node.inputs):
        raise Unproven("its batches are transposed, or it has another number of inputs")
    flips = ("adjX", "adjY") if node.kind == "BATCH_MATMUL" else ("transA", "transB")
    for position, name in enumerate(flips):
        full = whole(place.first.values[node.inputs[position]])
        if min(len(full), len(out)) < 2:
            raise Unproven("it is not a product of matrices")
        box = [*aligned(full[:-2], out[:-2]), *full[-2:]]
        free = position ^ bool(number(node, name, 0))  # of the last two dimensions, the one that is not summed over
        box[len(full) - 2 + free] = out[len(out) - 2 + position]
        place.holds(position, node.inputs[position], tuple(box))
    for position in range(2, len(node.inputs)):
        target = node.inputs[position]
        place.holds(position, target, () if target == ABSENT else aligned(whole(place.first.values[target]), out))


def attention(place: Place, node: FileNode, out: Box) -> None:
    """Rows of queries against all keys and values of the same batch, with those rows of a mask. A causal attention may
    have that mask as a constant."""
    causal = frozenset({"is_causal"})
    same_settings(place.node, node, without=causal)
    query, keys, values = (whole(place.first.values[tensor]) for tensor in node.inputs[:3])
    if not len(query) == len(keys) == len(values) == len(out) or out[-1] != values[-1]:
        raise Unproven("its dimensions are not understood")
    if number(node, "is_causal", 0):
        _sees_earlier(place, out[-2], keys[-2][1])
    elif number(place.node, "is_causal", 0) or len(place.node.inputs) != len(node.inputs):
        raise Unproven("it sees other keys")
    place.holds(0, node.inputs[0], (*out[:-1], query[-1]))
    shares, batches = number(node, "enable_gqa", 0), whole(place.first.values[node.outputs[0]])[:-2]
    if shares and out[:-2] != batches:
        raise Unproven("it makes some of the heads that share keys")
    for position, full in ((1, keys), (2, values)):
        heads = full[:-2] if shares else aligned(full[:-2], out[:-2])
        place.holds(position, node.inputs[position], (*heads, *full[-2:]))
    for target in node.inputs[3:]:
        full = whole(place.first.values[target])
        place.holds(3, target, (*aligned(full[:-1], out[:-1]), full[-1]))


def _sees_earlier(place: Place, rows: tuple[int, int], keys: int) -> None:
    """Prove that these rows of queries, and no others, see the keys up to their own places."""
    if number(place.node, "is_causal", 0):
        if len(place.node.inputs) != 3 or rows[0]:  # places are counted from the first row that is there
            raise Unproven("its rows are at other places")
        return
    seen = place.value(3)
    mask = np.tri(rows[1], keys, dtype=bool)[slice(*rows)]
    if seen is None or seen.content is None or not np.array_equal(array_of(seen), mask) or seen.dtype != "bool":
        raise Unproven("its mask does not say which keys its rows see")


def connected(place: Place, node: FileNode, out: Box) -> None:
    """TFLite's FULLY_CONNECTED: all of the last dimension, and rows of what is before it where dimensions are kept."""
    same_settings(place.node, node)
    full, weights = (whole(place.first.values[value]) for value in node.inputs[:2])
    if len(full) != len(out) or len(place.node.inputs) != len(node.inputs):
        raise Unproven("it joins dimensions, or has another number of inputs")
    place.holds(0, node.inputs[0], (*out[:-1], full[-1]))
    place.holds(1, node.inputs[1], (out[-1], *weights[1:]))
    for position in range(2, len(node.inputs)):
        place.holds(position, node.inputs[position], (out[-1],) if node.inputs[position] != ABSENT else ())


def softmax(place: Place, node: FileNode, out: Box) -> None:
    """A softmax of which every position along its axis is there; older versions join all dimensions from it on."""
    same_settings(place.node, node)
    full = whole(place.first.values[node.outputs[0]])
    version = place.first.settings.get(("version of operator set", ""), (0,))
    recent = isinstance(version, tuple) and isinstance(version[0], int) and version[0] >= 13
    axis = len(out) - 1 if node.kind == "SOFTMAX" else number(node, "axis", -1 if recent else 1) % len(out)
    stop = axis + 1 if recent else len(out)
    _holds_all(out[axis:stop], full[axis:stop])
    place.holds(0, node.inputs[0], out)


def layer_norm(place: Place, node: FileNode, out: Box) -> None:
    """A normalisation over the dimensions from its axis on, whose other inputs are broadcast."""
    same_settings(place.node, node)
    full = whole(place.first.values[node.outputs[0]])
    axis = number(node, "axis", -1) % len(out)
    _holds_all(out[axis:], full[axis:])
    if whole(place.first.values[node.inputs[0]]) != full:
        raise Unproven("it makes statistics")
    broadcast(place, node, out, [extent for _, extent in full])


def _holds_all(box: Box, full: Box) -> None:
    if box != full:
        raise Unproven("it normalises part of a row")


def transposed(place: Place, node: FileNode, out: Box) -> None:
    """A transposition of a box."""
    same_settings(place.node, node)
    order = list(integers(node, "perm", range(len(out))[::-1]))
    if len(node.inputs) > 1:
        place.holds(1, node.inputs[1], whole(place.first.values[node.inputs[1]]))
        order = integers_of(place, 1) or []
    if sorted(order) != list(range(len(out))):
        raise Unproven("its order is not understood")
    box = [(0, 0)] * len(out)
    for stretch, dimension in zip(out, order, strict=True):
        box[dimension] = stretch
    place.holds(0, node.inputs[0], tuple(box))


def gathered(place: Place, node: FileNode, out: Box) -> None:
    """A Gather: a box of the indices, and all of the data along its axis; or a single position of the data, which the
    input of the part has at another place."""
    same_settings(place.node, node)
    data, indices = (whole(place.first.values[value]) for value in node.inputs)
    axis = number(node, "axis", 0) % len(data)
    if _takes_one(place, node, axis, out):
        return
    behind = axis + len(indices)
    if node.kind != "Gather" or len(out) != len(data) - 1 + len(indices):
        raise Unproven("its dimensions are not understood")
    place.holds(0, node.inputs[0], (*out[:axis], data[axis], *out[behind:]))
    place.holds(1, node.inputs[1], out[axis:behind])


def _takes_one(place: Place, node: FileNode, axis: int, out: Box) -> bool:
    """Whether both take the same single position of the data along the axis, each by a constant."""
    indices = place.first.values[node.inputs[1]], place.second.values[place.node.inputs[1]]
    theirs, ours = (one.as_constant for one in indices)
    if theirs.content is None or ours.content is None or theirs.shape != ours.shape or math.prod(ours.shape or ()) != 1:
        return False
    if not {theirs.dtype, ours.dtype} <= {"int32", "int64"}:
        return False
    wanted, index = (int(array_of(one).reshape(-1)[0]) for one in (theirs, ours))
    if node.settings.get("operator") == "embedding" and min(wanted, index) < 0:
        return False  # which PyTorch refuses
    extent, rank = whole(place.first.values[node.inputs[0]])[axis][1], len(theirs.shape or ())
    for box in place.boxes(0, node.inputs[0]):
        low, high = box[axis]
        taken = low + index + (high - low if index < 0 else 0)
        same = taken == wanted + (extent if wanted < 0 else 0) and low <= taken < high
        if same and (*box[:axis], *[(0, 1)] * rank, *box[axis + 1 :]) == out:
            return True
    return False


def unbound(place: Place, node: FileNode, out: Box) -> None:
    """A call with a result for each position of a dimension, which the results lack: a box of each."""
    same_settings(place.node, node)
    full, axis = whole(place.first.values[node.inputs[0]]), number(node, "axis", 0)
    if len(place.node.outputs) != len(node.outputs) or len(out) != len(full) - 1:
        raise Unproven("its dimensions are not understood")
    place.holds(0, node.inputs[0], (*out[:axis], full[axis], *out[axis:]))


def divided(place: Place, node: FileNode, out: Box, result: int) -> None:
    """A Split, SPLIT or SPLIT_V along a dimension of which the box has all positions of this result."""
    same_settings(place.node, node)
    read, listing = split_inputs(node)
    full, output_box = whole(place.first.values[node.inputs[read]]), whole(place.first.values[node.outputs[result]])
    stated = number(node, "axis", 0) if listing is None else (integers_of(place, listing) or [0])[0]
    axis = stated % len(out)
    if out[axis] != output_box[axis]:
        raise Unproven("it divides a part of its input")
    place.holds(read, node.inputs[read], (*out[:axis], full[axis], *out[axis + 1 :]))
    for position in set(range(max(len(node.inputs), len(place.node.inputs)))) - {read}:
        target = node.inputs[position] if position < len(node.inputs) else ABSENT
        place.holds(position, target, whole(place.first.values[target]) if target != ABSENT else ())


def reduced(place: Place, node: FileNode, out: Box) -> None:
    """A reduction over dimensions that are read whole."""
    same_settings(place.node, node)
    full = whole(place.first.values[node.inputs[0]])
    axes = list(integers(node, "axes", ()))
    if len(node.inputs) > 1 and node.inputs[1] != ABSENT:
        place.holds(1, node.inputs[1], whole(place.first.values[node.inputs[1]]))
        axes = integers_of(place, 1) or []
    if not axes or len(place.node.inputs) != len(node.inputs):
        raise Unproven("its axes are not known")
    over, kept = {axis % len(full) for axis in axes}, iter(out)
    keeps = number(node, "keepdims", 1)
    box = []
    for axis, extent in enumerate(full):
        stretch = next(kept) if keeps or axis not in over else extent
        box.append(extent if axis in over else stretch)
    place.holds(0, node.inputs[0], tuple(box))


def repeated(place: Place, node: FileNode, out: Box) -> None:
    """A Resize that copies elements, by whole factors: each position of the box copies the position that the original
    copies."""
    same_settings(place.node, node)
    text = {name: node.settings.get(name) for name in ("mode", "nearest_mode", "coordinate_transformation_mode")}
    asymmetric = text["coordinate_transformation_mode"] == (3, b"asymmetric")
    if text["mode"] not in (None, (3, b"nearest")) or not asymmetric or text["nearest_mode"] != (3, b"floor"):
        raise Unproven("it does not copy elements from asymmetric coordinates, rounded down")
    further = {"axes", "antialias", "keep_aspect_ratio_policy", "exclude_outside"}
    if any(node.settings.get(name, (2, 0))[1] not in (0, b"stretch", ()) for name in further):  # type: ignore[index]
        raise Unproven("its settings are not understood")
    full, output_box = (whole(place.first.values[value]) for value in (node.inputs[0], node.outputs[0]))
    factors = [size // read for (_, size), (_, read) in zip(output_box, full, strict=True)]
    for network, resize in ((place.first, node), (place.second, place.node)):
        scales = network.values[resize.inputs[2]] if len(resize.inputs) > 2 and resize.inputs[2] != ABSENT else None
        if scales is None or scales.content is None or len(resize.inputs) > 3:
            raise Unproven("it states no scales")
        if array_of(scales).reshape(-1).tolist() != factors:
            raise Unproven("its scales are not whole factors")
    if any(edge % factor for stretch, factor in zip(out, factors, strict=True) for edge in stretch):
        raise Unproven("it makes part of what one element is copied to")
    place.holds(0, node.inputs[0], tuple((low // by, high // by) for (low, high), by in zip(out, factors, strict=True)))


def quantised(place: Place, node: FileNode, out: Box) -> None:
    """A QuantizeLinear or DequantizeLinear with one scale, or one for each position along its axis."""
    same_settings(place.node, node)
    if number(node, "block_size", 0) or len(place.node.inputs) != len(node.inputs):
        raise Unproven("it has a scale for each block, or another number of inputs")
    place.holds(0, node.inputs[0], out)
    for position in range(1, len(node.inputs)):
        target = node.inputs[position]
        full = () if target == ABSENT else whole(place.first.values[target])
        if len(full) > 1:
            raise Unproven("its scales have several dimensions")
        axis = number(node, "axis", 1)
        place.holds(position, target, full if not full or full[0][1] == 1 else (out[axis],))


def reshaped(place: Place, node: FileNode, out: Box) -> None:
    """An operator that keeps the sequence of all elements. In each of the smallest runs of dimensions with equal
    numbers of elements, the box of the input and that of the result hold the same consecutive elements."""
    full, output_box = whole(place.first.values[node.inputs[0]]), whole(place.first.values[node.outputs[0]])
    if place.node.kind != node.kind:
        raise Unproven(f"it is no {node.kind}")
    box: list[tuple[int, int]] = []
    for before, behind in _runs([size for _, size in full], [size for _, size in output_box]):
        flat = _flat(out[behind.start : behind.stop], [size for _, size in output_box[behind.start : behind.stop]])
        box += _stretches(flat, [size for _, size in full[before.start : before.stop]])
    place.holds(0, node.inputs[0], tuple(box))
    sizes = [stop - start for start, stop in out]
    if _result_sizes(place, node, [stop - start for start, stop in box]) != sizes:
        raise Unproven(f"it does not make the shape {sizes}")


def _runs(first: Sizes, second: Sizes) -> Iterator[tuple[range, range]]:
    """The smallest runs of dimensions with equal numbers of elements; together they are all dimensions."""
    if math.prod(first) != math.prod(second) or 0 in first:
        raise Unproven("it changes the number of elements")
    one = two = 0
    while one < len(first) or two < len(second):
        begin, other = one, two
        ours = theirs = 1
        while ours != theirs or (one, two) == (begin, other):
            if one < len(first) and (ours <= theirs or two == len(second)):
                ours, one = ours * first[one], one + 1
            if two < len(second) and (theirs < ours or one == len(first)):
                theirs, two = theirs * second[two], two + 1
        yield range(begin, one), range(other, two)


def _flat(box: Box, sizes: Sizes) -> tuple[int, int]:
    """The consecutive elements, of those of some dimensions, that a box of these dimensions holds."""
    cut = next((axis for axis, (low, high) in enumerate(box) if high - low != 1), len(box))
    if any(stretch != (0, size) for stretch, size in zip(box[cut + 1 :], sizes[cut + 1 :], strict=True)):
        raise Unproven("its result is not consecutive")
    start = 0
    for (low, _), size in zip(box, sizes, strict=True):
        start = start * size + low
    return start, start + math.prod(high - low for low, high in box)


def _stretches(flat: tuple[int, int], sizes: Sizes) -> Box:
    """The box of these dimensions that holds these consecutive elements."""
    start, stop = flat
    box = []
    for axis in range(len(sizes)):
        inner = math.prod(sizes[axis + 1 :])
        low, high = start // inner, -(-stop // inner)
        box.append((low, high))
        if high - low != 1:
            if start % inner or stop % inner:
                raise Unproven("its input is not consecutive")
            return (*box, *((0, extent) for extent in sizes[axis + 1 :]))
        start, stop = start - low * inner, stop - low * inner
    return tuple(box)


def _stated_shape(node: FileNode) -> list[int]:
    """The sizes that a reshape states in its settings, in either format."""
    stated = node.settings.get("newShape")
    if stated is None:
        return list(integers(node, "shape", ()))
    return listed_integers(stated)


def _result_sizes(place: Place, node: FileNode, sizes: list[int]) -> list[int]:
    """The sizes that the operator makes of an input of these sizes, as its constants and settings say."""
    mine = place.node
    if node.kind in ("Reshape", "RESHAPE"):
        stated = integers_of(place, 1) if len(mine.inputs) > 1 else _stated_shape(mine)
        if not stated:
            raise Unproven("its shape is not known")
        copies = node.kind == "Reshape" and not number(mine, "allowzero", 0)
        shape = [sizes[axis] if size == 0 and copies else size for axis, size in enumerate(stated)]
        if -1 in shape:
            place_open = shape.index(-1)
            shape[place_open] = math.prod(sizes) // max(math.prod(size for size in shape if size != -1), 1)
        return shape
    same_settings(mine, node)
    if node.kind == "SQUEEZE":
        gone = {axis % len(sizes) for axis in listed_integers(mine.settings.get("squeezeDims"))}
        if not gone:
            raise Unproven("its axes are not known")
        return [size for axis, size in enumerate(sizes) if axis not in gone]
    if node.kind == "EXPAND_DIMS":
        (axis,) = integers_of(place, 1) or []
        axis += (len(sizes) + 1) * (axis < 0)
        return [*sizes[:axis], 1, *sizes[axis:]]
    if node.kind == "Flatten":
        axis = number(mine, "axis", 1)
        axis += len(sizes) if axis < 0 else 0
        return [math.prod(sizes[:axis]), math.prod(sizes[axis:])]
    axes = list(integers(mine, "axes", ()))
    if len(node.inputs) > 1 and node.inputs[1] != ABSENT:
        place.holds(1, node.inputs[1], whole(place.first.values[node.inputs[1]]))
        axes = integers_of(place, 1) or []
    if not axes or len(mine.inputs) != len(node.inputs):
        raise Unproven("its axes are not known")
    rank = len(sizes) + (len(axes) if node.kind == "Unsqueeze" else 0)
    places = {axis % rank for axis in axes}
    if node.kind == "Unsqueeze":
        left = iter(sizes)
        return [1 if axis in places else next(left) for axis in range(rank)]
    return [size for axis, size in enumerate(sizes) if axis not in places]
