"""The local identities: that an operator makes a part of what the original's operator makes, from parts of its inputs.

Each function proves one operator, from claims about its inputs that are proven already, or raises Unproven. None knows
how the network was rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from downset.equivalence.claims import Box, Claim, Unproven, Views, array_of, scales_of, whole
from downset.equivalence.meaning import Along, base_kind, channels_axis, fused, number, others, windows
from downset.equivalence.network import ABSENT, Network, Node, Value

__all__ = [
    "Place",
    "elementwise",
    "flattened",
    "global_pool",
    "joined",
    "kept",
    "normalised",
    "padded",
    "sliced",
    "window",
]


@dataclass(frozen=True, slots=True)
class Place:
    """An operator of the rewritten network, what is known of its inputs, and the original's side."""

    node: Node
    second: Network
    first: Network
    views: Views
    claims: dict[int, Claim]

    def value(self, position: int) -> Value | None:
        """The input at this position, or None."""
        given = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        return None if given == ABSENT else self.second.values[given]

    def holds(self, position: int, target: int, box: Box) -> None:
        """Prove that an input holds this box of a value of the original."""
        given = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        if ABSENT in (given, target):
            if given != target:
                raise Unproven(f"input {position} is there in one of the files only")
            return
        original = self.first.values[target]
        if original.content is not None:
            _same_constant(self.second.values[given], original, box)
            return
        claim = self.claims.get(given)
        if claim is None or box not in self.views.boxes(claim, target):
            raise Unproven(f"input {position} does not hold {_said(box)} of {original.label!r}")

    def boxes(self, position: int, target: int) -> list[Box]:
        """The boxes of a value of the original that an input holds."""
        given = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        claim = self.claims.get(given)
        return [] if claim is None else list(self.views.boxes(claim, target))


def _said(box: Box) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"


def _same_constant(value: Value, original: Value, box: Box) -> None:
    """A constant holds the box of another."""
    if value.content is None:
        raise Unproven(f"{value.label!r} is no constant")
    if original.shape is not None and box == whole(original) and value.form == original.form:
        same = value.content() == original.content() if original.content is not None else False
    else:
        cut = array_of(original)[tuple(slice(*along) for along in box)]
        mine = array_of(value)
        same = mine.dtype == cut.dtype and mine.shape == cut.shape and mine.tobytes() == cut.tobytes()
        same = same and scales_of(value, tuple((0, extent) for extent in mine.shape)) == scales_of(original, box)
    if not same:
        raise Unproven(f"the constant {value.label!r} is not {_said(box)} of {original.label!r}")


def kept(place: Place, node: Node) -> None:
    """The original's operator itself, on whole inputs."""
    mine = place.node
    if mine.kind != node.kind or mine.settings != node.settings or len(mine.inputs) != len(node.inputs):
        raise Unproven("its kind or settings are others")
    if mine.bodies or node.bodies:
        raise Unproven("it holds graphs, which are not followed in a rewritten network")
    for position, target in enumerate(node.inputs):
        box = whole(place.first.values[target]) if target != ABSENT else ()
        place.holds(position, target, box)


def elementwise(place: Place, node: Node, out: Box) -> None:
    """Every element follows from the same element of each input, which is broadcast from the right."""
    _same_settings(place.node, node)
    if len(place.node.inputs) != len(node.inputs):
        raise Unproven("it has another number of inputs")
    for position, target in enumerate(node.inputs):
        shape = () if target == ABSENT else place.first.values[target].shape
        if shape is None:
            raise Unproven(f"the shape of input {position} is not known")
        tail = out[len(out) - len(shape) :]
        if len(shape) > len(out):
            raise Unproven("an input has more axes than the result")
        box = tuple((0, 1) if extent == 1 else along for extent, along in zip(shape, tail, strict=True))
        place.holds(position, target, box)


def normalised(place: Place, node: Node, out: Box) -> None:
    """A BatchNormalization that only scales and shifts each channel by constants."""
    _same_settings(place.node, node)
    if number(node, "training_mode", 0) or len(node.inputs) != 5:
        raise Unproven("it learns")
    place.holds(0, node.inputs[0], out)
    for position in range(1, 5):
        place.holds(position, node.inputs[position], (out[1],))


def global_pool(place: Place, node: Node, out: Box) -> None:
    """Each channel by itself."""
    _same_settings(place.node, node)
    place.holds(0, node.inputs[0], (*out[:2], *whole(place.first.values[node.inputs[0]])[2:]))


def flattened(place: Place, node: Node, out: Box) -> None:
    """Rows are contiguous and channels come first: channels of an image are a stretch of its flattened row."""
    _same_settings(place.node, node)
    full = whole(place.first.values[node.inputs[0]])
    pixels = int(np.prod([stop for _, stop in full[2:]], dtype=np.int64))
    if number(node, "axis", 1) != 1 or out[0] != full[0] or any(edge % pixels for edge in out[1]):
        raise Unproven("it flattens something else")
    place.holds(0, node.inputs[0], (full[0], (out[1][0] // pixels, out[1][1] // pixels), *full[2:]))


def joined(place: Place, out: Claim) -> None:
    """A concatenation of boxes that lie one behind the other."""
    node = place.node
    if fused(node) is not None:
        raise Unproven("something is fused to it")
    axis = number(node, "axis", 0)
    axis += len(out.box) if axis < 0 else 0
    at = out.box[axis][0]
    for position in range(len(node.inputs)):
        fitting = [
            box
            for box in place.boxes(position, out.of)
            if box[axis][0] == at and box[:axis] + box[axis + 1 :] == out.box[:axis] + out.box[axis + 1 :]
        ]
        if not fitting:
            raise Unproven(f"input {position} is not the part that follows at {at}")
        at = fitting[0][axis][1]
    if at != out.box[axis][1]:
        raise Unproven(f"its inputs end at {at}, not at {out.box[axis][1]}")


def sliced(place: Place, out: Claim) -> None:
    """A Slice in steps of one, of what its input holds."""
    starts, ends, axes, steps = (_integers(place, position) for position in range(1, 5))
    if starts is None or ends is None or any(step != 1 for step in steps or ()):
        raise Unproven("it does not slice in steps of one")
    for box in place.boxes(0, out.of):
        cut = list(box)
        for start, end, axis in zip(starts, ends, axes if axes is not None else range(len(starts)), strict=True):
            low, high = box[axis]
            if not 0 <= start <= end or not 0 <= axis < len(box):
                raise Unproven("it counts from the end")
            cut[axis] = (min(low + start, high), min(low + end, high))
        if tuple(cut) == out.box:
            return
    raise Unproven(f"it does not cut {_said(out.box)} out")


def padded(place: Place, node: Node, out: Box) -> None:
    """Padding with a constant: what the part adds lies outside the original too, and the other way round."""
    _same_settings(place.node, node, without=frozenset({"pads"}))
    if node.settings.get("mode", (3, b"constant")) != (3, b"constant") and node.kind != "PAD":
        raise Unproven("it pads with what it reads")
    held = place.boxes(0, node.inputs[0])
    if not held:
        raise Unproven("its input holds nothing of the original's")
    given = held[0]
    ours, theirs = _pads(place.node, place.second, len(out)), _pads(node, place.first, len(out))
    for position in range(2, max(len(node.inputs), len(place.node.inputs))):
        place.holds(position, node.inputs[position], ())
    full = whole(place.first.values[node.inputs[0]])
    for along, read, (_, extent), mine, its in zip(out, given, full, ours, theirs, strict=True):
        low, high = along[0] - its[0], along[1] - its[0]
        if read[0] - mine[0] != low or read[1] + mine[1] != high:
            raise Unproven("its pads put the part somewhere else")
        if max(low, 0) < read[0] or min(high, extent) > read[1]:
            raise Unproven("it pads where the original reads")


def _pads(node: Node, network: Network, rank: int) -> list[tuple[int, int]]:
    if len(node.inputs) < 2:
        flat = node.settings.get("pads", (7, ()))
        values = np.asarray(flat[1] if isinstance(flat, tuple) else ())
    else:
        values = array_of(network.values[node.inputs[1]])
    if values.size != 2 * rank or len(node.inputs) > 3:
        raise Unproven("its pads are not understood")
    pairs = values if values.ndim == 2 else values.reshape(2, rank).T
    return [(int(begin), int(end)) for begin, end in pairs]


def _integers(place: Place, position: int) -> list[int] | None:
    value = place.value(position)
    return None if value is None else [int(item) for item in array_of(value).reshape(-1).tolist()]


def _same_settings(mine: Node, original: Node, *, without: frozenset[str] = frozenset()) -> None:
    if mine.kind != original.kind or others(mine, without=without) != others(original, without=without):
        raise Unproven(f"{mine.kind} has other settings than {original.kind} {original.label!r}")


def window(place: Place, node: Node, out: Box) -> None:
    """A convolution or pool makes some channels and rows of what the original's makes."""
    if fused(place.node) != fused(node):
        raise Unproven("its activation is another one")
    same_window_kind(place.node, node)
    axis = channels_axis(node, len(out))
    weights = place.first.values[node.inputs[1]] if len(node.inputs) > 1 else None
    given = _window_input(place, node, out, axis, _groups(node, place.first, axis), weights)
    place.holds(0, node.inputs[0], given)
    if weights is not None:
        hold_weights(place, node, out[axis], None)
        for position in range(2, max(len(node.inputs), len(place.node.inputs))):
            target = node.inputs[position] if position < len(node.inputs) else ABSENT
            place.holds(position, target, (out[axis],) if position == 2 else out)


def same_window_kind(mine: Node, original: Node) -> None:
    if base_kind(mine) != base_kind(original) or others(mine) != others(original):
        raise Unproven(f"{mine.kind} has other settings than {original.kind} {original.label!r}")


def hold_weights(place: Place, node: Node, made: tuple[int, int], summed: tuple[int, int] | None) -> None:
    """The weights are those for these output channels, and (`summed`) for these input channels."""
    weights = place.first.values[node.inputs[1]]
    box = list(whole(weights))
    box[out_axis(node)] = made
    if summed is not None:
        box[in_axis(node)] = summed
    place.holds(1, node.inputs[1], tuple(box))


def out_axis(node: Node) -> int:
    return 3 if node.kind == "DEPTHWISE_CONV_2D" else 0


def in_axis(node: Node) -> int:
    return 3 if node.kind == "CONV_2D" else 1


def _groups(node: Node, network: Network, axis: int) -> int:
    if len(node.inputs) < 2:
        return 0
    channels = (network.values[node.inputs[0]].shape or ())[axis]
    if node.kind == "DEPTHWISE_CONV_2D":
        return channels
    per_group = (network.values[node.inputs[1]].shape or ())[in_axis(node)]
    groups = channels // per_group
    if node.kind != "CONV_2D" and number(node, "group", 1) != groups:
        raise Unproven("its groups do not divide its channels")
    return groups


def _window_input(place: Place, node: Node, out: Box, axis: int, groups: int, weights: Value | None) -> Box:
    """The box of the input from which the operator makes this box of the result."""
    source = place.first.values[node.inputs[0]]
    size = whole(source)
    candidates = place.boxes(0, node.inputs[0])
    if not candidates:
        raise Unproven(f"its input holds nothing of {source.label!r}")
    channels = _channels_read(place, node, out[axis], axis, groups)
    fitting = [box for box in candidates if box[axis] == channels and box[0] == out[0]]
    if not fitting:
        raise Unproven(f"its input does not hold the channels {channels[0]}:{channels[1]} of {source.label!r}")
    check_window(place, node, out, fitting[0], size, axis, weights)
    return fitting[0]


def _channels_read(place: Place, node: Node, made: tuple[int, int], axis: int, groups: int) -> tuple[int, int]:
    total = (place.first.values[node.inputs[0]].shape or ())[axis]
    if groups == 0:  # a pool
        return made
    if groups == 1:
        if number(place.node, "group", 1) != 1:
            raise Unproven("it has groups")
        return (0, total)
    weights = place.first.values[node.inputs[1]].shape or ()
    out_of_group, in_of_group = weights[out_axis(node)] // groups, total // groups
    if made[0] % out_of_group or made[1] % out_of_group:
        raise Unproven("it makes part of a group")
    read = (made[0] // out_of_group, made[1] // out_of_group)
    if node.kind not in ("CONV_2D", "DEPTHWISE_CONV_2D") and number(place.node, "group", 1) != read[1] - read[0]:
        raise Unproven("it has another number of groups")
    return (read[0] * in_of_group, read[1] * in_of_group)


def check_window(place: Place, node: Node, out: Box, given: Box, size: Box, axis: int, weights: Value | None) -> None:
    """Along every other axis the windows meet the same positions, and padding where the original's do."""
    spatial = [at for at in range(1, len(out)) if at != axis]
    kernel = None
    if weights is not None:
        shape = weights.shape or ()
        kernel = shape[1:3] if node.kind in ("CONV_2D", "DEPTHWISE_CONV_2D") else shape[2:]
    try:
        ours = windows(place.node, [given[at][1] - given[at][0] for at in spatial], kernel)
        theirs = windows(node, [size[at][1] for at in spatial], kernel)
    except ValueError as error:
        raise Unproven(f"its {error} is not understood") from None
    for at, mine, original in zip(spatial, ours, theirs, strict=True):
        _along(mine, original, out[at], given[at], size[at][1], averages=node.kind in ("AveragePool", "LpPool"))


def _along(
    mine: Along, its: Along, made: tuple[int, int], read: tuple[int, int], extent: int, *, averages: bool
) -> None:
    if (mine.size, mine.stride, mine.dilation) != (its.size, its.stride, its.dilation):
        raise Unproven("its window is another one")
    if mine.made != made[1] - made[0]:
        raise Unproven(f"it makes {mine.made} positions, not {made[1] - made[0]}")
    first = made[0] * its.stride - its.pad_begin
    behind = (made[1] - 1) * its.stride - its.pad_begin + its.reach
    if read[0] - mine.pad_begin != first:
        raise Unproven("its windows begin somewhere else")
    if max(first, 0) < read[0] or min(behind, extent) > read[1]:
        raise Unproven("its windows need positions that it does not read")
    if averages and (behind > extent + its.pad_end or behind > read[1] + mine.pad_end):
        raise Unproven("its windows reach beyond the padding")


def shape_is(value: Value, box: Box) -> None:
    """Where the file states a shape, it is the box's."""
    sizes = tuple(stop - start for start, stop in box)
    if value.shape is not None and value.shape != sizes:
        raise Unproven(f"{value.label!r} has the shape {list(value.shape)}, not {list(sizes)}")


def same_type(value: Value, original: Value, box: Box) -> None:
    """A part has the element type and the scales of what it is a part of."""
    if value.dtype and original.dtype and value.dtype != original.dtype:
        raise Unproven(f"{value.label!r} has another element type")
    if scales_of(value, tuple((0, stop - start) for start, stop in box)) != scales_of(original, box):
        raise Unproven(f"{value.label!r} has another quantization")
