"""RandWire (Xie et al., 2019) in its large regime, as the stages paper builds it: WS(4, 0.75) graphs of 16 and three
times 32 nodes; 120 operators in 6 blocks."""

from __future__ import annotations

import onnx

from zoo.network import Network
from zoo.units import Units

__all__ = ["build"]

# A stage is one word a node: the nodes that it adds up, x for the stage's input. The last word is the stage's output.
_STAGES = [
    "x x x 2,1 x 4,0 x x 7,6 7,6,4,1 9 7,2,1,9 0,9 4,8,12,11 1,5,13,10,3 6,1,0,8,3,14 15",
    "x x x 2 x 4 4 6 7 8 9 1,10 2,8 0,12 7 14,9 15 0,8,15 2,1,17,3 9,17,16 4,15 0,14,20,3 7,11,21,5 12,21 11,20 24,13 "
    "4,6,10,25 15,24 6,20,24 28,16 6,29 14,11,20,29,18,30,22,25 19,23,27,26,31",
    "x 0 x x 3 4 x 6 6 8 9 9 8,7 12,0 x 14 14,12 14,8,16,9,11 17 3,4,1,18 2,16 20,11,1,13 14,8,20 22 11,15,23 "
    "7,2,21,23 20,25,24,19 12,10,19,26 8,5,21,27 14,6,5,27,28 20,22,9 4,30 31,29",
    "x x 1 x 3 3,1 5,0 3,2 3,7,5 5,8,4 9 x 11,4 x 13 14 15 4,16 16,0 13,11,18,12 8,15,19 x 21,2,10,6 13,1,22 21 "
    "13,4,24,17 11,16,24,20,17 2,5,9,24 14,9,27,17 15,25,28 21,14,18 0,30 31,23,26,29",
]


def build(seed: int = 0, *, image: int = 224, channels: int = 154, **options: bool) -> onnx.ModelProto:
    """channels: of the first stage; each following stage has twice as many."""
    net = Network("randwire_large", seed, **options)
    units = Units(net)
    with units.block(), units.unit():
        x = net.conv(net.input(3, image), channels // 2, 3, 2)
    for number, stage in enumerate(_STAGES):
        *nodes, last = stage.split()
        with units.block():
            values = []
            for word in nodes:
                parts = [x] if word == "x" else [values[int(node)] for node in word.split(",")]
                values.append(units.relu_sep_conv(parts, channels << number, 3, 2 if word == "x" else 1))
            x = units.sum(*[values[int(node)] for node in last.split(",")])
    with units.block():
        with units.unit():
            x = net.relu(x)
        with units.unit():
            x = net.conv(x, 1280, 1)
        with units.unit():
            x = net.global_avg_pool(x)
    return net.model(x)
