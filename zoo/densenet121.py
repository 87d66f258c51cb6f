"""DenseNet-121 (Huang et al., 2017): every layer reads the concatenation of all before it in its block. The batch
normalisation in front of a concatenation's ReLU cannot be folded; it stays a BatchNormalization."""

from __future__ import annotations

import onnx

from zoo.network import Network, Value

__all__ = ["build"]

GROWTH = 32


def _layer(net: Network, x: Value) -> Value:
    y = net.conv(net.relu(net.batch_norm(x)), 4 * GROWTH, 1, act="relu")
    return net.concat(x, net.conv(y, GROWTH, 3, bias=False))


def build(seed: int = 0, *, image: int = 224, **options: bool) -> onnx.ModelProto:
    net = Network("densenet121", seed, **options)
    x = net.max_pool(net.conv(net.input(3, image), 64, 7, 2, act="relu"), 3, 2, 1)
    for block, layers in enumerate([6, 12, 24, 16]):
        if block:
            x = net.relu(net.batch_norm(x))
            x = net.avg_pool(net.conv(x, x.channels // 2, 1, bias=False), 2, 2)
        for _ in range(layers):
            x = _layer(net, x)
    x = net.global_avg_pool(net.relu(net.batch_norm(x)))
    return net.model(net.linear(net.flatten(x), 1000))
