"""The proof that an .onnx file holds a network in the layouts of ONNX Runtime's optimisation: tensors and weights in
blocks of channels, and activations and sums fused into convolutions.

In the order of the file, every value is shown to hold a value of the original, as it is or in blocks of channels. An
operator is one of the original, or a convolution with all that is fused into it; its constants are the original's, in
blocks. A value in blocks has channels up to a whole block; weights for those beyond the original's are zeros, and
nothing else reads them. Kernels add up products in another sequence, so the proof is not `exact`. Complexity: linear in
operators and in bytes of constants.

Source: ONNX Runtime's nchwc_transformer.cc, and MLAS for the sequence of elements in blocks.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from downset.equivalence.claims import Unproven, array_of
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode
from downset.equivalence.meaning import ELEMENTWISE, base_kind, number, others, real, windows

__all__ = ["layouts_difference"]

_DOMAIN = "com.microsoft.nchwc"
_BLOCKS = (8, 16)
"""The channels of a block, by processor. One number holds for a whole file."""
_POOLS = ("MaxPool", "AveragePool")
_GLOBAL = ("GlobalAveragePool", "GlobalMaxPool")
_PARAMETERS: Mapping[str, Mapping[str, float]] = {
    "LeakyRelu": {"alpha": 0.01},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
}
"""By activation: its parameters in their sequence, with ONNX's defaults."""
_DEFAULTS: Mapping[str, Mapping[str, Hashable]] = {
    "MaxPool": {"storage_order": (2, 0)},
    "AveragePool": {"count_include_pad": (2, 0)},
    "Pad": {"mode": (3, b"constant")},
    **{
        kind: {setting: (1, struct.pack("<f", usual)) for setting, usual in settings.items()}
        for kind, settings in _PARAMETERS.items()
    },
    "BatchNormalization": {"momentum": (1, b"fff?"), "epsilon": (1, struct.pack("<f", 1e-5))},
}
"""By kind: settings that ONNX Runtime writes where a file leaves them out."""
_PLAIN = ("Relu", "Sigmoid", "Tanh")
"""Activations without parameters."""


def layouts_difference(first: FileNetwork, second: FileNetwork) -> str:
    """Why `second` is not proven to hold the network of `first` in these layouts; "" where it is. Both are read at
    given sizes (`at_sizes`)."""
    reasons = []
    for block in _BLOCKS:
        layouts = _Layouts(first, second, block)
        try:
            layouts.whole()
        except Unproven as error:
            reasons.append((len(layouts.holds), str(error)))
        else:
            return ""
    return max(reasons)[1]


def _operator(node: FileNode) -> tuple[bool, str]:
    """(whether it works on blocks, its name in ONNX)."""
    if isinstance(node.kind, tuple) and node.kind[0] == _DOMAIN and not node.kind[2]:
        return True, str(node.kind[1])
    return False, base_kind(node) if isinstance(node.kind, str) else ""


class _Layouts:
    def __init__(self, first: FileNetwork, second: FileNetwork, block: int) -> None:
        self.first, self.second, self.block = first, second, block
        self.holds: dict[int, int] = {}
        """By value of `second`: the value of `first` that it holds."""
        self.blocked: set[int] = set()
        self.readers: dict[int, list[FileNode]] = defaultdict(list)
        for index in first.bodies[0].nodes:
            for value in dict.fromkeys(first.nodes[index].inputs):
                self.readers[value].append(first.nodes[index])

    def whole(self) -> None:
        self._same_world()
        ours, theirs = self.first.bodies[0], self.second.bodies[0]
        for one, other in zip(ours.inputs, theirs.inputs, strict=True):
            self._same_end(one, other)
            self.holds[other] = one
        for index in theirs.nodes:
            node = self.second.nodes[index]
            try:
                self._node(node)
            except Unproven as reason:
                raise Unproven(f"{node.called}: {reason}") from None
            except (IndexError, KeyError, TypeError, ValueError) as error:
                raise Unproven(f"{node.called} is malformed ({type(error).__name__})") from None
        for one, other in zip(ours.outputs, theirs.outputs, strict=True):
            self._same_end(one, other)
            if self.holds.get(other) != one or other in self.blocked:
                raise Unproven(f"the output {self.first.values[one].label!r} is another tensor")

    def _same_world(self) -> None:
        ours, theirs = self.first, self.second
        if (
            len(ours.bodies) != 1
            or len(theirs.bodies) != 1
            or any(node.bodies for node in (*ours.nodes, *theirs.nodes))
        ):
            raise Unproven("they hold further graphs")
        if any(node.effects for node in (*ours.nodes, *theirs.nodes)):
            raise Unproven("operators have effects of their own")
        key = next((key for key, said in ours.settings.items() if theirs.settings.get(key) != said), None)
        if key is not None:
            raise Unproven(f"they differ in {' '.join(part for part in key if part)}")
        for key in (("further fields",), ("annotations",)):
            if ours.bodies[0].settings.get(key) != theirs.bodies[0].settings.get(key):
                raise Unproven("their main graphs state something else")
        ends = [(len(network.bodies[0].inputs), len(network.bodies[0].outputs)) for network in (ours, theirs)]
        if ends[0] != ends[1]:
            raise Unproven("they have other numbers of inputs or outputs")

    def _same_end(self, one: int, other: int) -> None:
        ours, theirs = self.first.values[one], self.second.values[other]
        if ours.label != theirs.label or ours.form != theirs.form or not ours.same_default(theirs):
            raise Unproven(f"{ours.label!r} has another name, type or shape")

    def _node(self, node: FileNode) -> None:
        on_blocks, kind = _operator(node)
        if on_blocks and kind in ("ReorderInput", "ReorderOutput"):
            self._reordered(node, kind)
        elif kind == "Conv":
            self._convolved(node, on_blocks)
        else:
            self._kept(node, kind, on_blocks)

    def _reordered(self, node: FileNode, kind: str) -> None:
        (value,), (result,) = node.inputs, node.outputs
        self._settings(node, ("channels_last", "channels"))
        inwards = kind == "ReorderInput"
        if number(node, "channels_last", 0) or (value in self.blocked) == inwards or value not in self.holds:
            raise Unproven("it changes another layout")
        held = self.holds[result] = self.holds[value]
        shape = self.first.values[held].shape
        if inwards:
            self.blocked.add(result)
        elif shape is None or number(node, "channels", 0) != shape[1]:
            raise Unproven(f"{self.first.values[held].label!r} has another number of channels")

    def _settings(self, node: FileNode, accepted: Sequence[str]) -> None:
        further = next((key for key in node.settings if key not in accepted), None)
        if further is not None:
            raise Unproven(f"it states {further!r}")

    def _kept(self, node: FileNode, kind: str, on_blocks: bool) -> None:
        """An operator of the original, which works on blocks as it does on plain channels."""
        inputs = [value for value in node.inputs if value in self.holds]
        in_blocks = [value in self.blocked for value in inputs]
        if not inputs or not kind:
            raise Unproven("it is not known, or reads constants alone")
        pools = kind in _POOLS or kind in _GLOBAL
        if any(in_blocks) or on_blocks:
            elementwise = kind in ELEMENTWISE and len(inputs) == len(node.inputs)
            if not all(in_blocks) or not ((on_blocks and pools) or elementwise or self._joins_blocks(node, kind)):
                raise Unproven("it does not work on blocks of channels")
            if elementwise and len({self.first.values[self.holds[value]].shape for value in inputs}) > 1:
                raise Unproven("it broadcasts blocks of channels")
        original = self._found(
            [one for one in self.readers[self.holds[inputs[0]]] if one.kind == kind and self._same(node, one, pools)]
        )
        for mine, its in zip(node.outputs, original.outputs, strict=True):
            if mine != ABSENT:
                self.holds[mine] = its
                self.blocked |= {mine} if any(in_blocks) else set()

    def _joins_blocks(self, node: FileNode, kind: str) -> bool:
        shapes = [self.first.values[self.holds[value]].shape for value in node.inputs if value in self.holds]
        whole = all(shape is not None and shape[1] % self.block == 0 for shape in shapes)
        return kind == "Concat" and len(shapes) == len(node.inputs) and number(node, "axis", 0) == 1 and whole

    def _same(self, node: FileNode, original: FileNode, pools: bool) -> bool:
        """Whether an operator of the original has the same inputs and settings."""
        if len(node.inputs) != len(original.inputs) or len(node.outputs) != len(original.outputs):
            return False
        if not all(self._is(mine, its) for mine, its in zip(node.inputs, original.inputs, strict=True)):
            return False
        usual = _DEFAULTS.get(original.kind, {})
        said = [{**usual, **(others(one) if pools else one.settings)} for one in (node, original)]
        if said[0] != said[1] or original.kind not in _POOLS:
            return said[0] == said[1]
        shape = self.first.values[original.inputs[0]].shape or ()
        return windows(node, shape[2:], None) == windows(original, shape[2:], None)

    def _is(self, mine: int, its: int) -> bool:
        """Whether an input is a value of the original, or a constant with the same elements."""
        if ABSENT in (mine, its):
            return mine == its
        if mine in self.holds:
            return self.holds[mine] == its
        ours, theirs = self.second.values[mine].as_constant, self.first.values[its].as_constant
        return (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype) and ours.same_content(theirs)

    def _found(self, originals: Sequence[FileNode]) -> FileNode:
        """The operator of the original that an operator is: the first that nothing holds yet."""
        held = set(self.holds.values())
        original = next((one for one in originals if one.outputs[0] not in held), None) or next(iter(originals), None)
        if original is None:
            raise Unproven("the original has no such operator")
        return original

    def _convolved(self, node: FileNode, on_blocks: bool) -> None:
        """A convolution, or a normalisation as one, with the sum and the activation that are fused into it."""
        self._settings(
            node,
            ("activation", "activation_params", "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
        )
        value = node.inputs[0]
        in_blocks, held = value in self.blocked, self.holds[value]
        if in_blocks and not on_blocks:
            raise Unproven("it does not work on blocks of channels")
        original = self._found(
            [
                one
                for one in self.readers[held]
                if one.inputs[0] == held and self._weighted(node, one, on_blocks, in_blocks)
            ]
        )
        result = original.outputs[0]
        if len(node.inputs) > 3:
            result = self._summed(node.inputs[3], result, on_blocks)
        activation = node.settings.get("activation")
        if isinstance(activation, tuple):
            result = self._activated(node, result, bytes(activation[1]).decode())
        self.holds[node.outputs[0]] = result
        self.blocked |= {node.outputs[0]} if on_blocks else set()

    def _weighted(self, node: FileNode, original: FileNode, on_blocks: bool, in_blocks: bool) -> bool:
        """Whether a convolution has the weights and the window of an operator of the original."""
        shape = self.first.values[original.inputs[0]].shape
        if original.kind not in ("Conv", "BatchNormalization") or shape is None:
            return False
        if original.kind == "Conv":
            weights = array_of(self.first.values[original.inputs[1]])
            bias = array_of(self.first.values[original.inputs[2]]) if len(original.inputs) > 2 else None
            group = number(original, "group", 1)
            frame = windows(original, shape[2:], weights.shape[2:])
        else:
            scaled = self._scaled(original)
            if scaled is None or not on_blocks:
                return False
            weights, bias, group = scaled[0].reshape(-1, *(1 for _ in shape[1:])), scaled[1], shape[1]
            frame = windows(FileNode("", "Conv", {}, (), ()), shape[2:], weights.shape[2:])
        depthwise = group == shape[1] > 1 and weights.shape[1] == 1
        mine, count = self.second.values[node.inputs[1]], weights.shape[0]
        padded = -(-count // self.block) * self.block if on_blocks else count
        if number(node, "group", 1) != (padded if depthwise and on_blocks else group):
            return False
        held = array_of(mine)
        if held.shape[0] != padded or (on_blocks and not in_blocks and group > 1):
            return False
        if on_blocks:
            held = self._plain(held, in_blocks and not depthwise)
        if held.shape[2:] != weights.shape[2:] or windows(node, shape[2:], held.shape[2:]) != frame:
            return False
        given = node.inputs[2] if len(node.inputs) > 2 else ABSENT
        zeros = np.zeros(count, weights.dtype)
        offsets = zeros if given == ABSENT else array_of(self.second.values[given])
        return _padded(held, weights) and _padded(offsets, zeros if bias is None else bias)

    def _plain(self, weights: npt.NDArray[np.generic], in_blocks: bool) -> npt.NDArray[np.generic]:
        """Weights [filters, channels, ...] of those that are stored in blocks of filters, and of channels."""
        count, channels, *window = weights.shape
        block = self.block
        if not in_blocks:
            parted = weights.reshape(count // block, channels, *window, block)
            return np.moveaxis(parted, -1, 1).reshape(count, channels, *window)
        parted = weights.reshape(count // block, channels // block, *window, block, block)
        return np.moveaxis(parted, (-1, -2), (1, 3)).reshape(count, channels, *window)

    def _scaled(self, node: FileNode) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]] | None:
        """(scale, offset) of the channels of a normalisation by constants, in float32 as ONNX Runtime computes them."""
        if len(node.inputs) != 5 or len(node.outputs) != 1 or number(node, "training_mode", 0):
            return None
        scale, offset, mean, variance = (array_of(self.first.values[value]) for value in node.inputs[1:])
        if any(one.dtype != np.float32 for one in (scale, offset, mean, variance)):
            return None
        epsilon = np.float32(real(node, "epsilon", 1e-5))
        with np.errstate(all="ignore"):
            scale = scale / np.sqrt(variance + epsilon)  # type: ignore[operator]
            return scale, offset - mean * scale

    def _summed(self, value: int, result: int, on_blocks: bool) -> int:
        """The original's sum of a convolution's result and the value that is added to it."""
        if (value in self.blocked) != on_blocks or value not in self.holds:
            raise Unproven("what it adds is in another layout")
        pair = {result, self.holds[value]}
        shapes = {self.first.values[one].shape for one in pair}
        sums = [one for one in self.readers[result] if one.kind in ("Add", "Sum") and not one.settings]
        sums = [one for one in sums if len(one.inputs) == 2 and set(one.inputs) == pair]
        if len(shapes) != 1:
            raise Unproven("what it adds is broadcast")
        return self._found(sums).outputs[0]

    def _activated(self, node: FileNode, result: int, name: str) -> int:
        said = node.settings.get("activation_params")
        packed = said[1] if isinstance(said, tuple) else b""
        given = [struct.pack("<f", value) for (value,) in struct.iter_unpack("<f", bytes(packed))]
        alike = [one for one in self.readers[result] if one.kind == name and self._parameters(one, name) == given]
        return self._found(alike).outputs[0]

    def _parameters(self, node: FileNode, name: str) -> list[bytes] | None:
        """The parameters of an activation of the original, as floats."""
        if name in _PLAIN:
            return [] if not node.settings else None
        if name in _PARAMETERS:
            return [struct.pack("<f", real(node, setting, usual)) for setting, usual in _PARAMETERS[name].items()]
        if name == "Clip" and len(node.inputs) == 3 and ABSENT not in node.inputs:
            limits = [self.first.values[value].as_constant.content for value in node.inputs[1:]]
            return [b"" if limit is None else limit() for limit in limits]
        return None


def _padded(mine: npt.NDArray[np.generic], its: npt.NDArray[np.generic]) -> bool:
    """Whether an array is another, with zeros behind it along its first two axes."""
    if (
        mine.dtype != its.dtype
        or mine.ndim != its.ndim
        or any(one < other for one, other in zip(mine.shape, its.shape, strict=True))
    ):
        return False
    inside = tuple(slice(extent) for extent in its.shape)
    rest = mine.copy()
    rest[inside] = 0
    return mine[inside].tobytes() == its.tobytes() and not rest.any()
