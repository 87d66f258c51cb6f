"""A network written down operator by operator, with seeded weights, as an ONNX model.

Weights are drawn so that activations keep their size through any depth: each convolution divides by the second moment
that its input is expected to have, so that outputs of 1,000 operators still compare meaningfully in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Network", "Pad", "Value", "counts"]

Pad = int | str | Sequence[int] | None
"""None: (kernel - 1) · dilation // 2 on every side; "same": TensorFlow's rule, the odd row at the end; a number for all
sides; (height, width); or (top, left, bottom, right)."""

_FUSED = {"relu": ("Relu", []), "relu6": ("Clip", [0.0, 6.0]), "leaky": ("LeakyRelu", [0.1])}
_SQUARE_AFTER = {"relu": 0.5, "relu6": 0.5, "leaky": 0.505, "hswish": 0.4, "hsigmoid": 0.3, "sigmoid": 0.3}


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the network: batch 1, channels first. `square`: its expected second moment."""

    name: str
    shape: tuple[int, ...]
    square: float

    @property
    def channels(self) -> int:
        return self.shape[1]


def counts(model: onnx.ModelProto) -> dict[str, int]:
    """`ops`, `macs` (of convolutions and matrix products) and `weights` (elements, biases included) of a zoo model."""
    return {entry.key: int(entry.value) for entry in model.metadata_props if entry.key in ("ops", "macs", "weights")}


class Network:
    """Methods append one operator each (and its activation) and return its result.

    fused: activations inside the convolution (ONNX Runtime's FusedConv), as TFLite executes them, instead of after it.
    batch_norm: a BatchNormalization behind each convolution instead of one that is folded into its weights and bias.
    weights: without them they are named, as external data, but not there: quick, enough to plan, not to run.
    """

    def __init__(
        self, name: str, seed: int = 0, *, fused: bool = False, batch_norm: bool = False, weights: bool = True
    ) -> None:
        if fused and batch_norm:
            raise ValueError("an activation behind a batch normalisation cannot be fused into the convolution")
        self.name = name
        self._random = np.random.default_rng(seed)
        self._fused, self._batch_norm, self._with_weights = fused, batch_norm, weights
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[Value] = []
        self._scope: list[str] = []
        self._numbers: dict[str, int] = {}
        self._macs = self._weights = 0

    @contextmanager
    def scope(self, *names: str) -> Iterator[None]:
        """Operators added inside carry these names in front of theirs, each followed by a slash."""
        before = self._scope
        self._scope = [*before, *names]
        yield
        self._scope = before

    def input(self, channels: int, height: int, width: int | None = None) -> Value:
        name = "input" if not self._inputs else f"input{len(self._inputs)}"
        value = Value(name, (1, channels, height, height if width is None else width), 1.0)
        self._inputs.append(value)
        return value

    def conv(
        self,
        x: Value,
        out: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        pad: Pad = None,
        *,
        groups: int = 1,
        dilation: int = 1,
        act: str | None = None,
        bias: bool = True,
    ) -> Value:
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        pads = _pads(pad, x.shape[2:], size, stride, dilation)
        inside = x.channels // groups
        fan_in = inside * size[0] * size[1]
        weights = self._drawn((out, inside, *size), 1.0 / math.sqrt(fan_in * x.square))
        name = self._operator_name("conv")
        shape = (1, out, *_extents(x.shape[2:], size, stride, pads, dilation))
        self._macs += math.prod(shape) * fan_in
        inputs = [x.name, self._constant(f"{name}.weight", weights)]
        if bias and not self._batch_norm:
            inputs.append(self._constant(f"{name}.bias", self._drawn((out,), 0.1)))
        attributes = {
            "kernel_shape": size,
            "strides": (stride, stride),
            "pads": pads,
            "group": groups,
            "dilations": (dilation, dilation),
        }
        if self._fused and act in _FUSED:
            kind, parameters = _FUSED[act]
            attributes |= {"activation": kind} | ({"activation_params": parameters} if parameters else {})
            return self._append("FusedConv", inputs, shape, _SQUARE_AFTER[act], name, "com.microsoft", **attributes)
        result = self._append("Conv", inputs, shape, 1.0, name, **attributes)
        return self.act(self.batch_norm(result) if self._batch_norm else result, act)

    def depthwise(self, x: Value, kernel: int, stride: int = 1, pad: Pad = None, **options: Any) -> Value:
        return self.conv(x, x.channels, kernel, stride, pad, groups=x.channels, **options)

    def linear(self, x: Value, out: int, *, act: str | None = None) -> Value:
        inside = x.shape[1]
        name = self._operator_name("linear")
        weights = self._constant(f"{name}.weight", self._drawn((out, inside), 1.0 / math.sqrt(inside * x.square)))
        bias = self._constant(f"{name}.bias", self._drawn((out,), 0.1))
        self._macs += inside * out
        return self.act(self._append("Gemm", [x.name, weights, bias], (1, out), 1.0, name, transB=1), act)

    def act(self, x: Value, kind: str | None) -> Value:
        if kind is None:
            return x
        square = x.square * _SQUARE_AFTER[kind] if kind != "hsigmoid" and kind != "sigmoid" else _SQUARE_AFTER[kind]
        if kind == "relu6":
            bounds = [self._shared("zero", np.float32(0)), self._shared("six", np.float32(6))]
            return self._append("Clip", [x.name, *bounds], x.shape, square)
        if kind == "leaky":
            return self._append("LeakyRelu", [x.name], x.shape, square, alpha=0.1)
        if kind == "hsigmoid":
            return self._append("HardSigmoid", [x.name], x.shape, square, alpha=1 / 6, beta=0.5)
        return self._append(
            {"relu": "Relu", "hswish": "HardSwish", "sigmoid": "Sigmoid"}[kind], [x.name], x.shape, square
        )

    def batch_norm(self, x: Value) -> Value:
        name, channels = self._operator_name("bn"), (x.channels,)
        values = {
            "scale": 1 + self._drawn(channels, 0.1),
            "shift": self._drawn(channels, 0.1),
            "mean": self._drawn(channels, 0.1),
            "variance": 1 + np.abs(self._drawn(channels, 0.1)),
        }
        inputs = [self._constant(f"{name}.{key}", value) for key, value in values.items()]
        return self._append("BatchNormalization", [x.name, *inputs], x.shape, x.square, name)

    def relu(self, x: Value) -> Value:
        return self.act(x, "relu")

    def max_pool(self, x: Value, kernel: int, stride: int, pad: Pad = 0, *, ceil: bool = False) -> Value:
        pads = _pads(pad, x.shape[2:], (kernel, kernel), stride)
        shape = (1, x.channels, *_extents(x.shape[2:], (kernel, kernel), stride, pads, ceil=ceil))
        options = {"ceil_mode": 1} if ceil else {}
        geometry = {"kernel_shape": (kernel, kernel), "strides": (stride, stride), "pads": pads}
        return self._append("MaxPool", [x.name], shape, x.square * 1.5, **geometry, **options)

    def avg_pool(self, x: Value, kernel: int, stride: int, pad: Pad = 0, *, include_pad: bool = False) -> Value:
        pads = _pads(pad, x.shape[2:], (kernel, kernel), stride)
        shape = (1, x.channels, *_extents(x.shape[2:], (kernel, kernel), stride, pads))
        geometry = {"kernel_shape": (kernel, kernel), "strides": (stride, stride), "pads": pads}
        square = x.square * (0.6 if kernel > 1 else 1.0)
        return self._append("AveragePool", [x.name], shape, square, **geometry, count_include_pad=int(include_pad))

    def global_avg_pool(self, x: Value) -> Value:
        return self._append("GlobalAveragePool", [x.name], (1, x.channels, 1, 1), x.square * 0.4)

    def concat(self, *parts: Value, axis: int = 1) -> Value:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        square = sum(part.square * part.shape[axis] for part in parts) / shape[axis]
        return self._append("Concat", [part.name for part in parts], tuple(shape), square, axis=axis)

    def add(self, *parts: Value) -> Value:
        """The sum; itself where there is one part only."""
        if len(parts) == 1:
            return parts[0]
        kind = "Add" if len(parts) == 2 else "Sum"
        return self._append(kind, [p.name for p in parts], parts[0].shape, sum(p.square for p in parts))

    def identity(self, x: Value) -> Value:
        return self._append("Identity", [x.name], x.shape, x.square)

    def mean(self, *parts: Value) -> Value:
        if len(parts) == 1:
            return parts[0]
        square = sum(p.square for p in parts) / len(parts) ** 2
        return self._append("Mean", [p.name for p in parts], parts[0].shape, square)

    def mul(self, x: Value, scale: Value) -> Value:
        return self._append("Mul", [x.name, scale.name], x.shape, x.square * scale.square)

    def crop(self, x: Value, top: int, left: int) -> Value:
        """The tensor without its first rows and columns."""
        bounds = [
            self._shared(f"at_{top}_{left}", np.array([top, left])),
            self._shared("to_end", np.array([1 << 31] * 2)),
            self._shared("rows_columns", np.array([2, 3])),
        ]
        shape = (1, x.channels, x.shape[2] - top, x.shape[3] - left)
        return self._append("Slice", [x.name, *bounds], shape, x.square)

    def pad(self, x: Value, pads: Sequence[int]) -> Value:
        """ONNX's pads, all begins and then all ends; negative ones crop."""
        name = self._shared("pads_" + "_".join(map(str, pads)), np.array(pads, np.int64))
        rank = len(x.shape)
        shape = tuple(x.shape[axis] + pads[axis] + pads[axis + rank] for axis in range(rank))
        return self._append("Pad", [x.name, name], shape, x.square)

    def resize(self, x: Value, height: int, width: int, *, corners: bool = True) -> Value:
        """Bilinear; with `corners` they are aligned, so that every row depends on the height of the whole map."""
        shape = (1, x.channels, height, width)
        sizes = self._shared(f"sizes_{x.channels}_{height}_{width}", np.array(shape, np.int64))
        modes = {"mode": "linear", "coordinate_transformation_mode": "align_corners" if corners else "half_pixel"}
        return self._append("Resize", [x.name, "", "", sizes], shape, x.square, **modes)

    def space_to_depth(self, x: Value, block: int) -> Value:
        shape = (1, x.channels * block * block, x.shape[2] // block, x.shape[3] // block)
        return self._append("SpaceToDepth", [x.name], shape, x.square, blocksize=block)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        shape = tuple(x.shape[axis] for axis in order)
        return self._append("Transpose", [x.name], shape, x.square, perm=list(order))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        name = self._shared("shape_" + "_".join(map(str, shape)), np.array(shape, np.int64))
        return self._append("Reshape", [x.name, name], tuple(shape), x.square)

    def flatten(self, x: Value) -> Value:
        return self._append("Flatten", [x.name], (1, math.prod(x.shape)), x.square, axis=1)

    def softmax(self, x: Value) -> Value:
        return self._append("Softmax", [x.name], x.shape, 0.0, axis=-1)

    def model(self, *outputs: Value) -> onnx.ModelProto:
        """The network as a checked ONNX model; its metadata holds ops, macs and weights."""
        infos = [
            [helper.make_tensor_value_info(value.name, TensorProto.FLOAT, value.shape) for value in values]
            for values in (self._inputs, outputs)
        ]
        graph = helper.make_graph(self._nodes, self.name, *infos, list(self._initializers.values()))
        opsets = [helper.make_opsetid("", 17)]
        if self._fused:
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="downset zoo")
        facts = {"ops": len(self._nodes), "macs": self._macs, "weights": self._weights}
        helper.set_model_props(model, {key: str(value) for key, value in facts.items()})
        return model

    def _drawn(self, shape: tuple[int, ...], deviation: float) -> np.ndarray:
        if not self._with_weights:
            return np.broadcast_to(np.float32(0), shape)
        values = self._random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(deviation)
        return values

    def _constant(self, name: str, values: np.ndarray) -> str:
        if self._with_weights:
            self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        else:
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=values.shape)
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="weights-left-out")
            self._initializers[name] = tensor
        self._weights += values.size
        return name

    def _shared(self, name: str, values: np.ndarray | np.generic) -> str:
        """A constant that is not a weight."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.asarray(values), name)
        return name

    def _operator_name(self, kind: str) -> str:
        name = "".join(f"{part}/" for part in self._scope) + kind
        self._numbers[name] = number = self._numbers.get(name, -1) + 1
        return f"{name}{number}" if number or not self._scope else name

    def _append(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: tuple[int, ...],
        square: float,
        name: str | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> Value:
        name = name or self._operator_name(kind.lower())
        self._nodes.append(helper.make_node(kind, list(inputs), [f"{name}:0"], name=name, domain=domain, **attributes))
        return Value(f"{name}:0", shape, square)


def _pads(pad: Pad, size: Sequence[int], kernel: tuple[int, int], stride: int, dilation: int = 1) -> tuple[int, ...]:
    """(top, left, bottom, right)."""
    reach = [(window - 1) * dilation for window in kernel]
    if pad == "same":
        totals = [
            max((-(-extent // stride) - 1) * stride + far + 1 - extent, 0)
            for extent, far in zip(size, reach, strict=True)
        ]
        return (totals[0] // 2, totals[1] // 2, totals[0] - totals[0] // 2, totals[1] - totals[1] // 2)
    if pad is None:
        pad = (reach[0] // 2, reach[1] // 2)
    if isinstance(pad, int):
        return (pad, pad, pad, pad)
    assert not isinstance(pad, str)
    return (*pad, *pad) if len(pad) == 2 else tuple(pad)


def _extents(
    size: Sequence[int],
    kernel: tuple[int, int],
    stride: int,
    pads: Sequence[int],
    dilation: int = 1,
    *,
    ceil: bool = False,
) -> tuple[int, ...]:
    extents = []
    for axis in range(2):
        room = size[axis] + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilation - 1
        extents.append((-(-room // stride) if ceil else room // stride) + 1)
    return tuple(extents)
