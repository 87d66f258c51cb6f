"""SqueezeNet 1.0 (Iandola et al., 2016) as torchvision builds it: no bypass, pools that round up."""

from __future__ import annotations

import onnx

from zoo.network import Network

__all__ = ["build"]

_FIRES = [(16, 64), (16, 64), (32, 128), None, (32, 128), (48, 192), (48, 192), (64, 256), None, (64, 256)]


def build(seed: int = 0, *, image: int = 224, **options: bool) -> onnx.ModelProto:
    net = Network("squeezenet1_0", seed, **options)
    x = net.max_pool(net.conv(net.input(3, image), 96, 7, 2, 0, act="relu"), 3, 2, ceil=True)
    for fire in _FIRES:
        if fire is None:
            x = net.max_pool(x, 3, 2, ceil=True)
            continue
        x = net.conv(x, fire[0], 1, act="relu")
        x = net.concat(net.conv(x, fire[1], 1, act="relu"), net.conv(x, fire[1], 3, act="relu"))
    return net.model(net.global_avg_pool(net.conv(x, 1000, 1, act="relu")))
