"""YOLOv2 (Redmon and Farhadi, 2017) on Darknet-19, 80 classes, with the passthrough as SpaceToDepth."""

from __future__ import annotations

import onnx

from zoo.network import Network

__all__ = ["build"]

_EARLY = [
    (32, 3),
    "pool",
    (64, 3),
    "pool",
    (128, 3),
    (64, 1),
    (128, 3),
    "pool",
    (256, 3),
    (128, 1),
    (256, 3),
    "pool",
    (512, 3),
    (256, 1),
    (512, 3),
    (256, 1),
    (512, 3),
]
_LATE = ["pool", (1024, 3), (512, 1), (1024, 3), (512, 1), (1024, 3), (1024, 3), (1024, 3)]


def build(
    seed: int = 0, *, image: int = 448, passthrough: bool = True, narrower: int = 1, **options: bool
) -> onnx.ModelProto:
    """passthrough: without it the network is a chain of 27 layers. narrower: by what inner channels are divided."""
    net = Network("yolov2", seed, **options)
    x = early = net.input(3, image)
    for part in (_EARLY, _LATE):
        early = x
        for layer in part:
            x = net.max_pool(x, 2, 2) if layer == "pool" else net.conv(x, layer[0] // narrower, layer[1], act="leaky")
    if passthrough:
        x = net.concat(net.space_to_depth(net.conv(early, 64 // narrower, 1, act="leaky"), 2), x)
    return net.model(net.conv(net.conv(x, 1024 // narrower, 3, act="leaky"), 425, 1))
