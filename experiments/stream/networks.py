"""Networks as people train them for sound, by published shapes, with random weights: .onnx files of fixed windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["NETWORKS"]


class _Net:
    def __init__(self, *shape: int) -> None:
        self.random = np.random.default_rng(40)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shape = shape

    def op(self, kind: str, *inputs: str, **settings: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{kind.lower()}{len(self.nodes)}", **settings))
        return name

    def constant(self, value: object, dtype: str = "int64") -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def conv(self, x: str, *shape: int, **settings: object) -> str:
        scale = np.prod(shape[1:]) ** -0.5
        weights = self.constant(self.random.standard_normal(shape) * scale, "float32")
        return self.op("Conv", x, weights, self.constant(np.zeros(shape[0]), "float32"), **settings)

    def save(self, path: Path, output: str) -> None:
        ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, path.stem, ends, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)

    def separable(self, x: str, depth: int, channels: int, stride: int) -> str:
        x = self.conv(x, depth, 1, 3, 3, group=depth, pads=[1] * 4, strides=[stride] * 2)
        x = self.conv(self.op("Relu", x), channels, depth, 1, 1)
        return self.op("Relu", x)


def _ds_cnn(path: Path) -> None:
    """DS-CNN small of "Hello Edge": 49 rows of 10 coefficients, SAME padding, a mean over all, 12 words."""
    net = _Net(1, 1, 49, 10)
    x = net.op("Relu", net.conv("x", 64, 1, 10, 4, pads=[4, 1, 5, 2], strides=[2, 2]))
    for _ in range(4):
        x = net.separable(x, 64, 64, 1)
    net.save(path, net.conv(net.op("GlobalAveragePool", x), 12, 64, 1, 1))


def _yamnet(path: Path) -> None:
    """YAMNet: MobileNet v1 on 96 rows of 64 mel bands, SAME padding, a mean over all, 521 classes."""
    net = _Net(1, 1, 96, 64)
    x = net.op("Relu", net.conv("x", 32, 1, 3, 3, pads=[0, 0, 1, 1], strides=[2, 2]))
    layers = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))
    layers += ((512, 512, 1),) * 5 + ((512, 1024, 2), (1024, 1024, 1))
    for depth, channels, stride in layers:
        x = net.separable(x, depth, channels, stride)
    net.save(path, net.conv(net.op("GlobalAveragePool", x), 521, 1024, 1, 1))


def _tcn(path: Path) -> None:
    """A temporal convolutional network on 128 rows of 40: eight dilated layers without padding, residuals that are cut
    to the rows that are left, the last 8 rows as outputs."""
    net = _Net(1, 40, 128)
    x = net.conv("x", 64, 40, 1)
    for dilation in (1, 2, 4, 8) * 2:
        y = net.op("Relu", net.conv(x, 64, 64, 3, dilations=[dilation]))
        cut = [net.constant([value]) for value in (2 * dilation, 1 << 30, 2)]
        x = net.op("Add", y, net.op("Slice", x, *cut))
    net.save(path, net.conv(x, 12, 64, 1))


def _wavenet(path: Path) -> None:
    """A causal WaveNet on 256 rows: gated dilated layers that pad rows before the first, sums of all layers, the last 8
    rows as outputs."""
    net = _Net(1, 1, 256)
    x, total = net.conv("x", 32, 1, 1), ""
    for dilation in (1, 2, 4, 8, 16) * 2:
        padded = net.op("Pad", x, net.constant([0, 0, dilation, 0, 0, 0]))
        gates = [net.op(kind, net.conv(padded, 32, 32, 2, dilations=[dilation])) for kind in ("Tanh", "Sigmoid")]
        y = net.conv(net.op("Mul", *gates), 32, 32, 1)
        x, total = net.op("Add", x, y), net.op("Add", total, y) if total else y
    last = [net.constant([value]) for value in (-8, 1 << 30, 2)]
    net.save(path, net.conv(net.op("Relu", net.op("Slice", total, *last)), 8, 32, 1))


NETWORKS: dict[str, Callable[[Path], None]] = {
    "DS-CNN": _ds_cnn,
    "YAMNet": _yamnet,
    "TCN": _tcn,
    "WaveNet, causal": _wavenet,
}
"""By name: writes the network to a file."""
