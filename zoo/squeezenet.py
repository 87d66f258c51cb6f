"""SqueezeNet with convolutions as bypasses (Iandola et al., 2016, "complex bypass"), cut into blocks as in IOS: 50
operators. Names are bBLOCK/uUNIT/KIND, as in inception_v3."""

from __future__ import annotations

import onnx

from zoo.network import Network, Value
from zoo.units import Units

__all__ = ["build"]

_FIRES = [(16, 64), (16, 64), (32, 128), None, (32, 128), (48, 192), (48, 192), (64, 256), None, (64, 256)]
"""(squeezed, expanded) channels of a fire module; None: a pool."""


def build(seed: int = 0, *, image: int = 224, **options: bool) -> onnx.ModelProto:
    net = Network("squeezenet", seed, **options)
    units = Units(net)
    x = net.input(3, image)
    with units.block():
        with units.unit():
            x = net.conv(x, 96, 7, 2, act="relu")
        with units.unit():
            x = net.max_pool(x, 3, 2)
    for fire in _FIRES:
        with units.block():
            if fire is None:
                with units.unit():
                    x = net.max_pool(x, 3, 2)
            else:
                x = _fire(units, x, *fire)
    with units.block():
        with units.unit():
            x = net.conv(x, 1000, 1, act="relu")
        with units.unit():
            x = net.global_avg_pool(x)
    return net.model(x)


def _fire(units: Units, x: Value, squeezed: int, expanded: int) -> Value:
    net = units.network
    with units.unit():
        squeeze = net.conv(x, squeezed, 1, act="relu")
    with units.unit():
        square = net.conv(squeeze, expanded, 3, act="relu")
    with units.unit():
        point = net.conv(squeeze, expanded, 1, act="relu")
    joined = units.concat([square], [point])
    if x.channels != joined.channels:  # the bypass is a convolution where the channels change
        with units.unit():
            x = net.conv(x, joined.channels, 1, act="relu")
    return units.sum(joined, x)
