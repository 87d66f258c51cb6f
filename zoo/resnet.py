"""ResNet-34 and ResNet-50 (He et al., 2016), version 1.5: the stride is in the 3x3 convolution."""

from __future__ import annotations

from functools import partial

import onnx

from zoo.network import Network, Value

__all__ = ["resnet34", "resnet50"]


def _basic(net: Network, x: Value, channels: int, stride: int) -> Value:
    branch = net.conv(net.conv(x, channels, 3, stride, act="relu"), channels, 3)
    short = x if stride == 1 and x.channels == channels else net.conv(x, channels, 1, stride)
    return net.relu(net.add(branch, short))


def _bottleneck(net: Network, x: Value, channels: int, stride: int) -> Value:
    out = 4 * channels
    branch = net.conv(x, channels, 1, act="relu")
    branch = net.conv(net.conv(branch, channels, 3, stride, act="relu"), out, 1)
    short = x if stride == 1 and x.channels == out else net.conv(x, out, 1, stride)
    return net.relu(net.add(branch, short))


def build(name: str, bottleneck: bool, seed: int = 0, *, image: int = 224, **options: bool) -> onnx.ModelProto:
    net = Network(name, seed, **options)
    x = net.max_pool(net.conv(net.input(3, image), 64, 7, 2, act="relu"), 3, 2, 1)
    unit = _bottleneck if bottleneck else _basic
    for stage, (channels, units) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for position in range(units):
            x = unit(net, x, channels, 2 if stage and position == 0 else 1)
    return net.model(net.linear(net.flatten(net.global_avg_pool(x)), 1000))


resnet34 = partial(build, "resnet34", False)
resnet50 = partial(build, "resnet50", True)
