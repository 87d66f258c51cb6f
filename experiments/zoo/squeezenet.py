"""SqueezeNet with convolutions as bypasses (Iandola et al., 2016, "complex bypass"), cut into blocks as in IOS: 50
operators. Names are bBLOCK/uUNIT/KIND, as in inception_v3."""

from __future__ import annotations

import onnx

from experiments.zoo.network import Network, Value

__all__ = ["build"]

_FIRES = [(16, 64), (16, 64), (32, 128), None, (32, 128), (48, 192), (48, 192), (64, 256), None, (64, 256)]
"""(squeezed, expanded) channels of a fire module; None: a pool."""


def build(seed: int = 0, *, image: int = 224, fused: bool = False, batch_norm: bool = False) -> onnx.ModelProto:
    net = Network("squeezenet", seed, fused=fused, batch_norm=batch_norm)
    x = net.input(3, image)
    unit = 0

    def named(block: int):
        nonlocal unit
        unit += 1
        return net.scope(f"b{block}", f"u{unit - 1}")

    def pool(block: int, x: Value) -> Value:
        with named(block):
            return net.max_pool(x, 3, 2)

    with named(0):
        x = net.conv(x, 96, 7, 2, act="relu")
    x = pool(0, x)
    for block, fire in enumerate(_FIRES, start=1):
        if fire is None:
            x = pool(block, x)
            continue
        squeezed, expanded = fire
        with named(block):
            squeeze = net.conv(x, squeezed, 1, act="relu")
        with named(block):
            square = net.conv(squeeze, expanded, 3, act="relu")
        with named(block):
            point = net.conv(squeeze, expanded, 1, act="relu")
        with named(block):
            joined = net.concat(square, point)
        if x.channels != joined.channels:  # the bypass is a convolution where the channels change
            with named(block):
                x = net.conv(x, joined.channels, 1, act="relu")
        with named(block):
            x = net.add(joined, x)
    with named(11):
        x = net.conv(x, 1000, 1, act="relu")
    with named(11):
        x = net.global_avg_pool(x)
    return net.model(x)
