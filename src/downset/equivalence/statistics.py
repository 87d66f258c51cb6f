"""Normalisations of the original as their parts: means and variances of rows, what is joined of them, and the values.

An InstanceNormalization is (x - mean) / sqrt(variance + epsilon) · scale + bias over each channel; between two
reshapes it normalises groups of channels, as PyTorch's group normalisation does. A LayerNormalization of an image from
its channels or its rows on does the same over the image or over each channel, with a scale and a bias for each element.
The mean of rows of one length is the mean of their means, and the variance is the mean of their variances plus the
variance of their means. A global mean is the mean of the means of rows. ONNX Runtime writes a GroupNormalization in
plain operators (its function), whose variance is the mean of squares less the square of the mean. So the parts below
compute the same up to rounding. A certificate names them by the tensor that the normalisation or the mean makes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from downset.equivalence.claims import array_of
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode, FileValue
from downset.equivalence.meaning import GROUP_NORM, PYTORCH, integers, number, real

__all__ = ["with_statistics"]


def with_statistics(network: FileNetwork, named: Collection[str]) -> FileNetwork:
    """The network with the parts of each normalisation of which `named` has one, behind its own operators; the network
    itself where there is none."""
    parts = _StatisticsWriter(network)
    read_by: dict[int, list[FileNode]] = {}
    maker: dict[int, FileNode] = {}
    main = [network.nodes[index] for index in network.bodies[0].nodes]
    for node in main:
        for value in node.inputs:
            read_by.setdefault(value, []).append(node)
        maker.update({value: node for value in node.outputs if value != ABSENT})
    for node in main:
        if len(node.outputs) == 1 and node.outputs[0] != ABSENT:
            parts.simple(node, named)
            grouped = f"{network.values[node.outputs[0]].label}/grouped" in named
            if node.kind == "Reshape" and grouped and PYTORCH not in network.settings:  # whose calls state more
                parts.in_plain_operators(_Function(network, maker), node)
        shape = network.values[node.inputs[0]].shape or () if node.inputs and node.inputs[0] != ABSENT else ()
        if node.kind not in ("InstanceNormalization", GROUP_NORM) or len(node.outputs) != 1 or len(shape) < 3:
            continue
        source, result = node.inputs[0], node.outputs[0]
        groups = shape[1] if node.kind != GROUP_NORM else number(node, "num_groups", 0)
        if len(shape) == 3 and node.kind != GROUP_NORM:
            before, behind = maker.get(source), read_by.get(result, [])
            if before is None or before.kind != "Reshape" or len(behind) != 1 or behind[0].kind != "Reshape":
                continue
            source, result = before.inputs[0], behind[0].outputs[0]
        image = network.values[source].shape or ()
        if (
            len(image) != 4
            or network.values[result].shape != image
            or shape[0] != image[0]
            or image[1] % max(groups, 1)
        ):
            continue
        if groups > 0 and f"{network.values[result].label}/grouped" in named:
            parts.normalisation(node, source, result, groups)
    return parts.network()


Array = npt.NDArray[np.generic]
_Parameters = tuple[float, list[Array]]
"""Epsilon; the scale, and behind it the bias, as far as they are there, for tensors of groups."""


@dataclass(frozen=True, slots=True)
class _Function:
    """Reads the plain operators of a GroupNormalization, back from its result."""

    network: FileNetwork
    maker: Mapping[int, FileNode]

    def read(self, last: FileNode) -> tuple[int, int, Array, Array, float] | None:
        """(source, groups, scale and bias for each channel, epsilon); None where it is another network."""
        try:
            scaled, bias = self._inputs(last.inputs[0], "Add")
            scale, normal = self._inputs(scaled, "Mul")
            centred, deviation = self._inputs(normal, "Div")
            x, mean = self._inputs(centred, "Sub")
            (sum_,) = self._inputs(deviation, "Sqrt")
            variance, epsilon = self._inputs(sum_, "Add")
            mean_of_squares, squared_mean = self._inputs(variance, "Sub")
            (squares,) = self._mean_of(mean_of_squares)
            one, other = self._inputs(squares, "Mul")
            first, second = self._inputs(squared_mean, "Mul")
            (source,) = self._mean_of(mean)
            parameters = [self._constant(value) for value in (scale, bias, epsilon)]
        except ValueError:
            return None
        shape, image = self._shape(x), self._shape(last.outputs[0])
        whole = self._through(x)
        channels = (1, image[1], 1) if len(image) == 4 else None
        lawful = one == other == source == x and first == second == mean and self._shape(whole) == image
        lawful = lawful and len(shape) == 3 and shape[0] == image[0] and image[1] % shape[1] == 0
        lawful = lawful and self._shape(scale) == self._shape(bias) == channels and parameters[2].size == 1
        # The scale is for each channel: what it is multiplied with has channels in its second dimension.
        lawful = lawful and self._shape(normal) == (*image[:2], math.prod(image[2:]))
        if not lawful or self.network.values[whole].dtype != "float32":
            return None
        return whole, shape[1], parameters[0], parameters[1], float(parameters[2].reshape(()))

    def _shape(self, value: int) -> tuple[int, ...]:
        return self.network.values[value].shape or ()

    def _through(self, value: int) -> int:
        """The value of which this one is a reshape, or a cast to the type that it has."""
        values = self.network.values
        while value in self.maker and self.maker[value].kind in ("Reshape", "Cast"):
            read = self.maker[value].inputs[0]
            if values[read].dtype is None or values[read].dtype != values[value].dtype:
                break
            value = read
        return value

    def _inputs(self, value: int, kind: str) -> tuple[int, ...]:
        node = self.maker.get(self._through(value))
        return node.inputs if node is not None and node.kind == kind else ()

    def _mean_of(self, value: int) -> tuple[int, ...]:
        """The input of a mean over the last of three axes."""
        node = self.maker.get(value)
        if node is None or node.kind != "ReduceMean" or not number(node, "keepdims", 1) or len(node.inputs) != 2:
            return ()
        axes = self.network.values[node.inputs[1]]
        last = axes.content is not None and array_of(axes).reshape(-1).tolist() in ([2], [-1])
        return node.inputs[:1] if last and len(self._shape(node.inputs[0])) == 3 else ()

    def _constant(self, value: int) -> Array:
        held = self.network.values[self._through(value)]
        if held.content is None or held.dtype != "float32":
            raise ValueError("not a constant")
        return array_of(held)


@dataclass(slots=True)
class _StatisticsWriter:
    whole: FileNetwork
    values: list[FileValue] = field(default_factory=list)
    nodes: list[FileNode] = field(default_factory=list)
    label: str = ""

    def network(self) -> FileNetwork:
        values, nodes = (*self.whole.values, *self.values), (*self.whole.nodes, *self.nodes)
        return replace(self.whole, values=values, nodes=nodes) if self.nodes else self.whole

    def simple(self, node: FileNode, named: Collection[str]) -> None:
        """The parts of a LayerNormalization or a global mean of an image, if it is one and `named` has one of them."""
        source = node.inputs[0] if node.inputs else ABSENT
        result = self.whole.values[node.outputs[0]]
        image = () if source == ABSENT else self.whole.values[source].shape or ()
        if len(image) != 4 or self.whole.values[source].dtype != "float32":
            return
        if node.kind == "LayerNormalization" and f"{result.label}/grouped" in named:
            axis = number(node, "axis", -1) % 4
            if axis in (1, 2) and number(node, "stash_type", 1) == 1 and len(node.inputs) <= 3:
                self.normalisation(node, source, node.outputs[0], 1 if axis == 1 else image[1])
        elif node.kind in ("GlobalAveragePool", "ReduceMean") and f"{result.label}/means of rows" in named:
            axes = self._reduced(node)
            if {2, 3} <= {*axes} <= {0, 1, 2, 3}:
                self._mean_of_rows(node, source, axes)

    def in_plain_operators(self, function: _Function, node: FileNode) -> None:
        """The parts of a GroupNormalization in plain operators of which `node` is the last, if it is one."""
        normalisation = function.read(node)
        if normalisation is None:
            return
        source, groups, scale, bias, epsilon = normalisation
        apart = (groups, -1, 1, 1)
        self._parts(source, node.outputs[0], groups, (epsilon, [scale.reshape(apart), bias.reshape(apart)]))

    def _reduced(self, node: FileNode) -> list[int]:
        if node.kind == "GlobalAveragePool":
            return [2, 3]
        axes: Sequence[int] = integers(node, "axes", ())
        if len(node.inputs) > 1 and node.inputs[1] != ABSENT:
            value = self.whole.values[node.inputs[1]]
            axes = [] if value.content is None else [int(one) for one in array_of(value).reshape(-1)]
        return [axis % 4 for axis in axes]

    def _mean_of_rows(self, node: FileNode, source: int, axes: Sequence[int]) -> None:
        result = self.whole.values[node.outputs[0]]
        self.label = result.label
        within = sorted({*axes} - {2})
        means = self._mean(source, within, "means of rows")
        if number(node, "keepdims", 1):
            self.nodes.append(replace(self._reduction(means, [2]), outputs=node.outputs))
            return
        last = self._mean(means, [2], "mean")
        self.nodes.append(FileNode(f"{self.label}/result", "Reshape", {}, (last,), node.outputs))

    def normalisation(self, node: FileNode, source: int, result: int, groups: int) -> None:
        if ABSENT in node.inputs:  # a bias without a scale
            return
        constants = [self.whole.values[value] for value in node.inputs[1:]]
        if any(one.content is None for one in constants) or self.whole.values[source].dtype != "float32":
            return
        factors = [array_of(value) for value in constants]
        if node.kind != "LayerNormalization":
            factors = [value.reshape(groups, -1, 1, 1) for value in factors]
        self._parts(source, result, groups, (real(node, "epsilon", 1e-5), factors))

    def _parts(self, source: int, result: int, groups: int, parameters: _Parameters) -> None:
        """Add the parts."""
        count, channels, height, width = self.whole.values[source].shape or (0,) * 4
        least, factors = parameters
        self.label = self.whole.values[result].label
        full, one = (count, groups, channels // groups, height, width), (count, groups, 1, 1, 1)
        of_rows = (count, groups, 1, height, 1)
        grouped = self._make("Reshape", (source,), full, "grouped")
        means = self._mean(self._mean(grouped, [4], "row columns"), [2], "row means")
        distances = self._make("Sub", (grouped, means), full, "row distances")
        squares = self._make("Mul", (distances, distances), full, "row squares")
        variances = self._mean(self._mean(squares, [4], "row variance columns"), [2], "row variance means")
        mean = self._mean(means, [3], "mean")
        between = self._make("Sub", (means, mean), of_rows, "mean distances")
        between = self._make("Mul", (between, between), of_rows, "mean squares")
        between = self._mean(between, [3], "variance between rows")
        within = self._mean(variances, [3], "variance within rows")
        variance = self._make("Add", (between, within), one, "variance")
        shifted = self._shifted(variance, least, one)
        deviation = self._make("Sqrt", (shifted,), one, "deviation")
        centred = self._make("Sub", (grouped, mean), full, "centred")
        last = self._make("Div", (centred, deviation), full, "normalised")
        if any((value != neutral).any() for value, neutral in zip(factors, (1, 0), strict=False)):
            for value, kind, what in zip(factors, ("Mul", "Add"), ("scaled", "moved"), strict=False):
                last = self._make(kind, (last, self._constant(value)), full, what)
        self.nodes.append(FileNode(f"{self.label}/result", "Reshape", {}, (last,), (result,)))

    def _make(
        self,
        kind: str,
        inputs: tuple[int, ...],
        shape: tuple[int, ...],
        what: str,
        settings: dict[str, Hashable] | None = None,
    ) -> int:
        last = self._add(FileValue(f"{self.label}/{what}", shape=shape, dtype="float32"))
        settings = settings if settings is not None else self._elementwise(kind, inputs)
        self.nodes.append(FileNode(f"{self.label}/{what}", kind, settings, inputs, (last,)))
        return last

    def _shifted(self, variance: int, least: float, shape: tuple[int, ...]) -> int:
        """The variance plus epsilon, which is a number of PyTorch's call and a constant of ONNX's operator."""
        if not self._is_torch:
            epsilon = self._constant(np.array(least, np.float32))
            return self._make("Add", (variance, epsilon), shape, "shifted variance")
        from downset.equivalence.torch_meaning import elementwise_settings

        settings = elementwise_settings("add", (None, least))
        return self._make("Add", (variance,), shape, "shifted variance", settings)

    @property
    def _is_torch(self) -> bool:
        return PYTORCH in self.whole.settings

    def _elementwise(self, kind: str, inputs: tuple[int, ...]) -> dict[str, Hashable]:
        """The settings of an operator of tensors alone."""
        if not self._is_torch or kind == "Reshape":
            return {}
        from downset.equivalence.torch_meaning import elementwise_settings

        return elementwise_settings(kind.lower(), (None,) * len(inputs))

    def _mean(self, value: int, axes: Sequence[int], what: str) -> int:
        read = (*self.whole.values, *self.values)[value].shape or ()
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(read))
        last = self._add(FileValue(f"{self.label}/{what}", shape=shape, dtype="float32"))
        self.nodes.append(replace(self._reduction(value, axes), outputs=(last,)))
        return last

    def _reduction(self, value: int, axes: Sequence[int]) -> FileNode:
        version = self.whole.settings.get(("version of operator set", ""), (0,))
        recent = isinstance(version, tuple) and isinstance(version[0], int) and version[0] >= 18
        inputs = (value, self._constant(np.array(axes, np.int64))) if recent else (value,)
        settings: dict[str, Hashable] = {"keepdims": (2, 1)} | ({} if recent else {"axes": (7, tuple(axes))})
        return FileNode(f"{self.label}/rows", "ReduceMean", settings, inputs, ())

    def _constant(self, value: npt.NDArray[np.generic]) -> int:
        content = value.tobytes()
        return self._add(FileValue("", content=lambda: content, shape=value.shape, dtype=str(value.dtype)))

    def _add(self, value: FileValue) -> int:
        self.values.append(value)
        return len(self.whole.values) + len(self.values) - 1
