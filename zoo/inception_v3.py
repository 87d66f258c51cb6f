"""Inception V3 (Szegedy et al., 2016), cut into blocks as in IOS: 119 operators, batch normalisation folded.

Operators are named bBLOCK/UNIT/KIND; a unit is what IOS schedules (a convolution with its ReLU is one).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from zoo.network import Network, Pad, Value
from zoo.units import Units

__all__ = ["build"]

# A branch is a chain of layers: (channels, kernel[, stride]), or "max" / "avg" for a pool of 3. Pads are k // 2, except
# for layers with stride 2, which have none.
_A = [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]]
_B = [[(384, 3, 2)], [(64, 1), (96, 3), (96, 3, 2)], ["max"]]
_D = [[(192, 1), (320, 3, 2)], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)], ["max"]]


def _c(middle: int) -> list[list[object]]:
    tall, wide = (7, 1), (1, 7)
    return [
        [(192, 1)],
        [(middle, 1), (middle, wide), (192, tall)],
        [(middle, 1), (middle, tall), (middle, wide), (middle, tall), (192, wide)],
        ["avg", (192, 1)],
    ]


def build(seed: int = 0, *, image: int = 299, classes: int = 0, **options: bool) -> onnx.ModelProto:
    """classes: 0 ends with the global pool, as IOS does; otherwise a classifier and a softmax follow."""
    net = _Inception(Network("inception_v3", seed, **options))
    x = net.network.input(3, image)
    with net.block():
        x = net.conv(x, 32, 3, 2, 0)
        x = net.conv(x, 32, 3, 1, 0)
        x = net.conv(x, 64, 3)
        x = net.max_pool(x)
        x = net.conv(x, 80, 1)
        x = net.conv(x, 192, 3, 1, 0)
        x = net.max_pool(x)
    for pooled in (32, 64, 64):
        x = net.module(x, [*_A, ["avg", (pooled, 1)]])
    x = net.module(x, _B)
    for middle in (128, 160, 160, 192):
        x = net.module(x, _c(middle))
    x = net.module(x, _D)
    for _ in range(2):
        x = net.module_e(x)
    with net.block(), net.unit():
        x = net.network.global_avg_pool(x)
    if classes:
        x = net.network.softmax(net.network.linear(net.network.flatten(x), classes))
    return net.network.model(x)


class _Inception(Units):
    def conv(self, x: Value, out: int, kernel: int | tuple[int, int], stride: int = 1, pad: Pad = None) -> Value:
        with self.unit():
            return self.network.conv(x, out, kernel, stride, pad, act="relu")

    def max_pool(self, x: Value) -> Value:
        with self.unit():
            return self.network.max_pool(x, 3, 2)

    def avg_pool(self, x: Value) -> Value:
        with self.unit():
            return self.network.avg_pool(x, 3, 1, 1, include_pad=True)

    def branch(self, x: Value, layers: Sequence[object]) -> Value:
        for layer in layers:
            if isinstance(layer, tuple):
                x = self.conv(x, *layer, **({"pad": 0} if len(layer) == 3 else {}))
            else:
                x = self.max_pool(x) if layer == "max" else self.avg_pool(x)
        return x

    def module(self, x: Value, branches: Sequence[Sequence[object]]) -> Value:
        with self.block():
            return self.concat(*[[self.branch(x, layers)] for layers in branches])

    def module_e(self, x: Value) -> Value:
        """The widest block: two branches fork into a 1x3 and a 3x1 convolution."""
        with self.block():
            parts = [self.branch(x, [(320, 1)])]
            for layers in ([(384, 1)], [(448, 1), (384, 3)]):
                stem = self.branch(x, layers)
                parts += [self.conv(stem, 384, (1, 3)), self.conv(stem, 384, (3, 1))]
            parts.append(self.branch(x, ["avg", (192, 1)]))
            return self.concat(*[[part] for part in parts])
