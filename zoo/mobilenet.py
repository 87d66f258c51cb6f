"""MobileNet v1 and v2 as TensorFlow Lite ships them, and v3 Large as torchvision builds it."""

from __future__ import annotations

import onnx

from zoo.network import Network, Value

__all__ = ["build_v1", "build_v2", "build_v3_large", "inverted_residual", "v1_layers"]

V1 = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
"""(channels, stride) of each separable convolution."""


def v1_layers(net: Network, x: Value, width: float = 1.0, layers: list[tuple[int, int]] | None = None) -> Value:
    x = net.conv(x, int(32 * width), 3, 2, "same", act="relu6")
    for channels, stride in V1 if layers is None else layers:
        x = net.depthwise(x, 3, stride, "same", act="relu6")
        x = net.conv(x, int(channels * width), 1, act="relu6")
    return x


def _classified(net: Network, x: Value) -> Value:
    """A 1x1 convolution to 1001 classes, reshaped."""
    x = net.conv(net.global_avg_pool(x), 1001, 1)
    return net.softmax(net.reshape(x, (1, 1001)))


def build_v1(seed: int = 0, *, image: int = 224, **options: bool) -> onnx.ModelProto:
    """MobileNet v1 1.0 (Howard et al., 2017)."""
    net = Network("mobilenet_v1", seed, **options)
    return net.model(_classified(net, v1_layers(net, net.input(3, image))))


def inverted_residual(net: Network, x: Value, out: int, stride: int, expansion: int = 6, dilation: int = 1) -> Value:
    y = net.conv(x, x.channels * expansion, 1, act="relu6") if expansion > 1 else x
    y = net.conv(net.depthwise(y, 3, stride, "same", dilation=dilation, act="relu6"), out, 1)
    return net.add(y, x) if stride == 1 and x.channels == out else y


def build_v2(seed: int = 0, *, image: int = 224, **options: bool) -> onnx.ModelProto:
    """MobileNet v2 1.0 (Sandler et al., 2018)."""
    net = Network("mobilenet_v2", seed, **options)
    x = net.conv(net.input(3, image), 32, 3, 2, "same", act="relu6")
    x = inverted_residual(net, x, 16, 1, expansion=1)
    for out, units, stride in [(24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)]:
        for position in range(units):
            x = inverted_residual(net, x, out, stride if position == 0 else 1)
    return net.model(_classified(net, net.conv(x, 1280, 1, act="relu6")))


# kernel, expanded, out, squeeze-and-excitation, activation, stride
_V3_LARGE = [
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hswish", 2),
    (3, 200, 80, False, "hswish", 1),
    (3, 184, 80, False, "hswish", 1),
    (3, 184, 80, False, "hswish", 1),
    (3, 480, 112, True, "hswish", 1),
    (3, 672, 112, True, "hswish", 1),
    (5, 672, 160, True, "hswish", 2),
    (5, 960, 160, True, "hswish", 1),
    (5, 960, 160, True, "hswish", 1),
]


def _by_eight(channels: float) -> int:
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def build_v3_large(seed: int = 0, *, image: int = 224, **options: bool) -> onnx.ModelProto:
    """MobileNet v3 Large (Howard et al., 2019)."""
    net = Network("mobilenet_v3_large", seed, **options)
    x = net.conv(net.input(3, image), 16, 3, 2, act="hswish")
    for kernel, expanded, out, excited, act, stride in _V3_LARGE:
        y = net.conv(x, expanded, 1, act=act) if expanded != x.channels else x
        y = net.depthwise(y, kernel, stride, act=act)
        if excited:
            scale = net.conv(net.global_avg_pool(y), _by_eight(expanded / 4), 1, act="relu")
            y = net.mul(y, net.conv(scale, expanded, 1, act="hsigmoid"))
        y = net.conv(y, out, 1)
        x = net.add(y, x) if stride == 1 and x.channels == out else y
    x = net.global_avg_pool(net.conv(x, 960, 1, act="hswish"))
    return net.model(net.linear(net.linear(net.flatten(x), 1280, act="hswish"), 1000))
