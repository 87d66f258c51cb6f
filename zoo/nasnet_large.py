"""NASNet-A Large (Zoph et al., 2018) as the stages paper builds it: 374 operators in 25 blocks.

It differs from the published network where that implementation does: the first stem adds its first sum where later
reductions add their second, the second stem adds its two reduced paths instead of concatenating them, the first cell
after a reduction takes its second branch from the right, later cells do not concatenate their left input, and the
network ends with the global pool.
"""

from __future__ import annotations

import onnx

from zoo.network import Network, Value
from zoo.units import Units

__all__ = ["build"]


def build(seed: int = 0, *, image: int = 331, filters: int = 168, **options: bool) -> onnx.ModelProto:
    """filters: channels of the first cells; a multiple of 4."""
    net = _NasNet(Network("nasnet_large", seed, **options))
    with net.block(), net.unit():
        stem = net.network.conv(net.network.input(3, image), 96, 3, 2, 0)
    with net.block():
        first = net.stem(stem, filters // 4)
    with net.block():
        second = net.second_stem(stem, first, filters // 2)
    before, x = first, second
    for stage in range(3):
        channels = filters << stage
        if stage:
            with net.block():
                # the next cell reads what the reduction read, not what came just before it
                x, cells_before = net.reduction(before, x, channels), before
            before = cells_before
        with net.block():
            following = net.first_cell(before, x, channels)
        before, x = x, following
        for _ in range(5):
            with net.block():
                following = net.cell(before, x, channels)
            before, x = x, following
    with net.block(), net.unit():
        x = net.network.relu(x)
    with net.block(), net.unit():
        x = net.network.global_avg_pool(x)
    return net.network.model(x)


class _NasNet(Units):
    def twice(self, x: Value, out: int, kernel: int, stride: int = 1, middle: int | None = None) -> Value:
        """Two separable convolutions in a row; the stride is in the first."""
        return self.relu_sep_conv([self.relu_sep_conv([x], middle or out, kernel, stride)], out, kernel)

    def max(self, x: Value) -> Value:
        with self.unit():
            return self.network.max_pool(x, 3, 2, 1)

    def avg(self, x: Value, stride: int) -> Value:
        with self.unit():
            return self.network.avg_pool(x, 3, stride, 1)

    def stem(self, x: Value, channels: int) -> Value:
        right = self.relu_conv(x, channels)
        return self._reducing(x, right, channels, channels, stem=True)

    def second_stem(self, stem: Value, x: Value, channels: int) -> Value:
        right = self.relu_conv(x, channels)
        left = self.sum(self.relu_conv(stem, channels // 2, 2), self.relu_conv(stem, channels // 2, 2))
        return self._reducing(left, right, channels, channels // 2)

    def reduction(self, before: Value, x: Value, channels: int) -> Value:
        left = self.relu_conv(before, channels)
        right = self.relu_conv(x, channels)
        return self._reducing(left, right, channels, channels, summed_again=True)

    def _reducing(
        self, left: Value, right: Value, channels: int, middle: int, *, stem: bool = False, summed_again: bool = False
    ) -> Value:
        first = self.sum(self.twice(right, channels, 5, 2), self.twice(left, channels, 7, 2, middle))
        parts = [self.max(right), self.twice(left, channels, 7, 2, middle)]
        second = self.sum(*parts)
        third = [self.avg(right, 2), self.twice(left, channels, 5, 2, middle)]
        fourth = [self.avg(first, 1), first if stem else second]
        fifth = [self.twice(first, channels, 3), self.max(right)]
        return self.concat(parts if summed_again else [second], third, fourth, fifth)

    def first_cell(self, before: Value, x: Value, channels: int) -> Value:
        halves = [self.relu_conv(before, channels // 2, 2), self.relu_conv(before, channels // 2, 2)]
        left = self.concat([halves[0]], [halves[1]])
        right = self.relu_conv(x, channels)
        return self.concat([left], *self._normal(left, right, right, channels))

    def cell(self, before: Value, x: Value, channels: int) -> Value:
        left = self.relu_conv(before, channels)
        right = self.relu_conv(x, channels)
        return self.concat(*self._normal(left, right, left, channels))

    def _normal(self, left: Value, right: Value, second: Value, channels: int) -> list[list[Value]]:
        one = [self.twice(right, channels, 5), self.twice(second, channels, 3)]
        two = [self.twice(left, channels, 5), self.twice(left, channels, 3)]
        three = [self.avg(right, 1), left]
        four = [self.avg(left, 1), self.avg(left, 1)]
        five = [self.twice(right, channels, 3), right]
        return [one, two, three, four, five]
