"""The rules of the lemma of shifts (`stream_motion`): how an operator's results move, from how its inputs do. Each is
written from the specifications of the formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from downset.equivalence.claims import Unproven, array_of
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode
from downset.equivalence.identities import pads_of
from downset.equivalence.meaning import (
    ELEMENTWISE,
    LAYER_NORMS,
    channels_axis,
    integers,
    number,
    split_inputs,
    windowed,
    windows,
)
from downset.equivalence.moving_rows import Motion, Motions, MovingRows, shape_of
from downset.equivalence.slices import sliced_axes

__all__ = ["results"]


def results(network: FileNetwork, node: FileNode, tensors: Motions) -> Mapping[int, Motion]:
    """By result of an operator: how it moves. Raises Unproven where the operator has no rule, or its rule does not
    hold."""
    kind = "Conv" if windowed(node) else "Add" if node.kind in ELEMENTWISE else node.kind
    rule = _RULES.get(kind)
    if rule is None:
        raise Unproven("has no rule: it may mix rows")
    moved = rule(_Rules(network, node, tensors))
    return dict(zip(node.outputs, moved, strict=False))


@dataclass(frozen=True, slots=True)
class _Rules(MovingRows):
    """The rules, by operator."""

    def elementwise(self) -> Sequence[Motion]:
        if self.node.settings.keys() & {"axis", "broadcast"}:
            raise Unproven("broadcasts in its own way")
        motion = self.joined(self.rank)
        for value in self.node.inputs:
            if value in self.tensors.of:
                shape = shape_of(self.network, value)
                if shape[motion.axis - self.rank + len(shape)] != self.size(motion.axis):
                    raise Unproven("repeats a row")
        return [motion]

    def windowed(self) -> Sequence[Motion]:
        motion, shape, rank = self.only(0), self.shape(0), self.rank
        weights = self.node.inputs[1] if len(self.node.inputs) > 1 else ABSENT
        self.not_hybrid(weights)
        channels = channels_axis(self.node, rank)
        if motion.axis == 0 or (motion.axis == channels and weights == ABSENT):
            return [motion]
        if motion.axis == channels:
            raise Unproven("adds up rows, which are its channels")
        spatial = [axis for axis in range(1, rank) if axis != channels]
        kernel = None
        if weights != ABSENT:
            full = shape_of(self.network, weights)
            kernel = full[1:3] if self.node.kind in ("CONV_2D", "DEPTHWISE_CONV_2D") else full[2:]
        along = windows(self.node, [shape[axis] for axis in spatial], kernel)[spatial.index(motion.axis)]
        whole = motion.rows[0], motion.rows[1] - along.reach + 1
        inside = Motion(motion.axis, motion.rate, whole, motion.hops)
        return [inside.mapped(motion.axis, offset=-along.pad_begin, step=along.stride, stop=self.size(motion.axis))]

    def not_hybrid(self, weights: int) -> None:
        """TFLite's kernels for float inputs and integer weights scale all rows by the largest value in any."""
        if weights == ABSENT or "BuiltinOptions" not in self.node.settings:
            return
        dtypes = [self.network.values[value].dtype for value in (self.node.inputs[0], weights)]
        if dtypes[0].startswith("float") and not dtypes[1].startswith("float"):
            raise Unproven("scales all rows by the largest value in any of them (float input, integer weights)")

    def concatenated(self) -> Sequence[Motion]:
        axis = number(self.node, "axis", 0) % self.rank
        moving = [place for place, value in enumerate(self.node.inputs) if value in self.tensors.of]
        first = self.tensors.of[self.node.inputs[moving[0]]]
        if first.axis != axis:
            return [self.joined(self.rank)]
        if len(moving) > 1:
            raise Unproven("joins tensors one behind the other along the rows")
        before = sum(self.shape(place)[axis] for place in range(moving[0]))
        return [first.mapped(axis, offset=-before)]

    def padded(self) -> Sequence[Motion]:
        motion = self.only(0)
        begin, _ = pads_of(self.node, self.network, self.rank)[motion.axis]
        return [motion.mapped(motion.axis, offset=-begin, stop=self.size(motion.axis))]

    def sliced(self) -> Sequence[Motion]:
        """ONNX's Slice and TFLite's SLICE and STRIDED_SLICE, by constants."""
        motion = self.only(0)
        along = sliced_axes(self.node, self.network, list(self.shape(0)))
        taken = along[motion.axis]
        if taken.gone:
            raise Unproven("takes one row")
        axis = motion.axis - sum(one.gone for one in along[: motion.axis])
        return [motion.mapped(axis, offset=taken.start, step=taken.step, stop=self.size(axis))]

    def divided(self) -> Sequence[Motion]:
        """Split, SPLIT and SPLIT_V."""
        place, listed = split_inputs(self.node)
        motion, rank = self.only(place), len(self.shape(place))
        stated = [number(self.node, "axis", 0)] if listed is None else self.integers(listed)
        axis = (stated or [0])[0] % rank
        if axis != motion.axis:
            return [motion] * len(self.node.outputs)
        moved, start = [], 0
        for result in range(len(self.node.outputs)):
            moved.append(motion.mapped(axis, offset=start, stop=self.size(axis, result)))
            start += self.size(axis, result)
        return moved

    def reshaped(self) -> Sequence[Motion]:
        """All elements in sequence: a row stays a row, or becomes several."""
        motion, shape = self.only(0), self.shape(0)
        before, sizes = math.prod(shape[: motion.axis]), shape_of(self.network, self.node.outputs[0])
        inner = 1
        for behind in range(motion.axis, len(shape)):
            inner *= shape[behind] if behind > motion.axis else 1
            for axis, size in enumerate(sizes):
                if math.prod(sizes[:axis]) == before and size == shape[motion.axis] * inner:
                    return [motion.mapped(axis, repeats=inner)]
        raise Unproven("puts rows and other dimensions into one")

    def transposed(self) -> Sequence[Motion]:
        motion = self.only(0)
        order = list(integers(self.node, "perm", range(self.rank)[::-1]))
        if len(self.node.inputs) > 1:
            order = self.integers(1) or []
        return [Motion(order.index(motion.axis), motion.rate, motion.rows, motion.hops)]

    def normalised_rows(self) -> Sequence[Motion]:
        """Softmaxes and normalisations, which read all positions along an axis, or from it on."""
        motion = self.joined(self.rank)
        kind, last = self.node.kind, self.rank - 1
        version = self.network.settings.get(("version of operator set", ""), (0,))
        recent = isinstance(version, tuple) and isinstance(version[0], int) and version[0] >= 13
        norm = kind in LAYER_NORMS
        axis = number(self.node, "axis", -1 if recent or norm else 1) % self.rank if not kind.isupper() else last
        stop = axis + 1 if recent and not norm else self.rank
        if axis <= motion.axis < stop:
            raise Unproven("normalises over the rows")
        return [motion]

    def reduced(self) -> Sequence[Motion]:
        motion, shape = self.only(0), self.shape(0)
        axes = self.integers(1) if len(self.node.inputs) > 1 else list(integers(self.node, "axes", ()))
        over = {axis % len(shape) for axis in axes or range(len(shape))}
        if motion.axis in over:
            raise Unproven("reduces over the rows")
        name, default = ("keepDims", 0) if self.node.kind.isupper() else ("keepdims", 1)
        gone = 0 if number(self.node, name, default) else sum(axis < motion.axis for axis in over)
        return [Motion(motion.axis - gone, motion.rate, motion.rows, motion.hops)]

    def globally_pooled(self) -> Sequence[Motion]:
        motion = self.only(0)
        if motion.axis > 1:
            raise Unproven("pools over the rows")
        return [motion]

    def scaled(self) -> Sequence[Motion]:
        """BatchNormalization, QuantizeLinear and DequantizeLinear: constants for each position along an axis."""
        motion, batch = self.only(0), self.node.kind == "BatchNormalization"
        axis = 1 if batch else number(self.node, "axis", 1) % self.rank
        if (batch and number(self.node, "training_mode", 0)) or number(self.node, "block_size", 0):
            raise Unproven("learns, or has a scale for each block")
        many = any(
            math.prod(self.shape(place)) > 1
            for place in range(1, len(self.node.inputs))
            if self.node.inputs[place] != ABSENT
        )
        if axis == motion.axis and many:
            raise Unproven("scales each row by a constant of its own")
        return [motion]

    def multiplied(self) -> Sequence[Motion]:
        """MatMul and Gemm of rows and a fixed matrix."""
        motion, rank = self.only(0), len(self.shape(0))
        flips = ("transA", "adjX", "transBatchA", "transBatchB")
        if motion.axis == rank - 1 or any(number(self.node, name, 0) for name in flips):
            raise Unproven("adds up rows, or transposes them")
        if rank != self.rank or (motion.axis < rank - 2 and len(self.shape(1)) > 2):
            raise Unproven("multiplies batches of several matrices")
        if len(self.node.inputs) > 2 and self.node.inputs[2] != ABSENT:
            self.without_rows(2, motion.axis, rank)
        return [motion]

    def connected(self) -> Sequence[Motion]:
        """TFLite's FULLY_CONNECTED: rows of the last dimension."""
        motion, shape = self.only(0), self.shape(0)
        self.not_hybrid(self.node.inputs[1])
        if motion.axis == len(shape) - 1 or shape[-1] != self.shape(1)[1]:
            raise Unproven("reads several rows as one")
        if len(shape) == self.rank:
            return [motion]
        return self.reshaped()

    def resized(self) -> Sequence[Motion]:
        """TFLite's resizes by powers of two, for which the fixed-point scale is exact, and ONNX's that copy rows."""
        motion, node = self.only(0), self.node
        factor, rest = divmod(self.size(motion.axis), self.shape(0)[motion.axis])
        near = node.kind != "RESIZE_BILINEAR"
        if node.kind == "Resize":
            text = {
                name: node.settings.get(name) for name in ("mode", "nearest_mode", "coordinate_transformation_mode")
            }
            asymmetric = text["coordinate_transformation_mode"] == (3, b"asymmetric")
            if text["mode"] not in (None, (3, b"nearest")) or not asymmetric or text["nearest_mode"] != (3, b"floor"):
                raise Unproven("does not copy rows from asymmetric coordinates, rounded down")
            scales = self.network.values[node.inputs[2]] if len(node.inputs) == 3 and node.inputs[2] != ABSENT else None
            if scales is None or scales.content is None or array_of(scales).reshape(-1)[motion.axis] != factor:
                raise Unproven("states no whole factor")
        elif factor & (factor - 1) or number(node, "alignCorners", 0):
            raise Unproven("has a factor that is not a power of two, or aligns corners")
        if rest or not factor:
            raise Unproven("makes rows at places between rows")
        half = factor - 1 if number(node, "halfPixelCenters", 0) and not near else 0
        low, high = motion.rows
        inside = [
            row
            for row in range(self.size(motion.axis))
            if low <= (2 * row - half) // (2 * factor) and (2 * row - half) // (2 * factor) + (not near) < high
        ]
        rows = (inside[0], inside[-1] + 1) if inside else (0, 0)
        return [Motion(motion.axis, motion.rate * factor, rows, motion.hops)]

    def gathered(self) -> Sequence[Motion]:
        """Rows of indices into fixed data, or fixed indices along another axis than the rows."""
        if len(self.node.inputs) != 2 or number(self.node, "batchDims", 0):
            raise Unproven("gathers by batches")
        axis = number(self.node, "axis", 0) % len(self.shape(0))
        if self.node.inputs[1] in self.tensors.of:
            motion = self.only(1)
            return [Motion(axis + motion.axis, motion.rate, motion.rows, motion.hops)]
        motion = self.only(0)
        if motion.axis == axis:
            raise Unproven("takes single rows")
        moved = motion.axis if motion.axis < axis else motion.axis + len(self.shape(1)) - 1
        return [Motion(moved, motion.rate, motion.rows, motion.hops)]


_RULES: Mapping[object, Callable[[_Rules], Sequence[Motion]]] = {
    "Add": _Rules.elementwise,
    "Conv": _Rules.windowed,
    **dict.fromkeys(("Concat", "CONCATENATION"), _Rules.concatenated),
    **dict.fromkeys(("Pad", "PAD", "PADV2", "MIRROR_PAD"), _Rules.padded),
    **dict.fromkeys(("Slice", "SLICE", "STRIDED_SLICE"), _Rules.sliced),
    **dict.fromkeys(("Split", "SPLIT", "SPLIT_V"), _Rules.divided),
    **dict.fromkeys(
        ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "RESHAPE", "SQUEEZE", "EXPAND_DIMS"), _Rules.reshaped
    ),
    **dict.fromkeys(("Transpose", "TRANSPOSE"), _Rules.transposed),
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION", *sorted(LAYER_NORMS)),
        _Rules.normalised_rows,
    ),
    **dict.fromkeys(
        (
            "ReduceMax",
            "ReduceMean",
            "ReduceMin",
            "ReduceProd",
            "ReduceSum",
            "MEAN",
            "SUM",
            "REDUCE_MAX",
            "REDUCE_MIN",
            "REDUCE_PROD",
        ),
        _Rules.reduced,
    ),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _Rules.globally_pooled),
    **dict.fromkeys(("BatchNormalization", "QuantizeLinear", "DequantizeLinear"), _Rules.scaled),
    **dict.fromkeys(("MatMul", "Gemm"), _Rules.multiplied),
    "FULLY_CONNECTED": _Rules.connected,
    **dict.fromkeys(("Resize", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _Rules.resized),
    **dict.fromkeys(("Gather", "GATHER"), _Rules.gathered),
}
"""By kind; all element-wise kinds stand under Add, and all windows under Conv."""
