"""Names for the stages paper's networks: bBLOCK/uUNIT/KIND, where a unit is what its scheduler treats as one operator
(a convolution with its ReLU, a ReLU with its separable convolution, a concatenation with the sums of its parts)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from zoo.network import Network, Value

__all__ = ["Units"]


class Units:
    def __init__(self, network: Network) -> None:
        self.network = network
        self._block = self._unit = -1

    def block(self) -> AbstractContextManager[None]:
        self._block += 1
        return self.network.scope(f"b{self._block}")

    def unit(self) -> AbstractContextManager[None]:
        self._unit += 1
        return self.network.scope(f"u{self._unit}")

    def relu_conv(self, x: Value, out: int, stride: int = 1) -> Value:
        """A ReLU and a 1x1 convolution."""
        with self.unit():
            return self.network.conv(self.network.relu(x), out, 1, stride)

    def relu_sep_conv(self, parts: list[Value], out: int, kernel: int, stride: int = 1) -> Value:
        """The sum of the parts, a ReLU, a depthwise and a 1x1 convolution."""
        with self.unit():
            x = self.network.relu(self.network.add(*parts))
            return self.network.conv(self.network.depthwise(x, kernel, stride, bias=False), out, 1)

    def sum(self, *parts: Value) -> Value:
        """The sum; an Identity where there is one part only."""
        with self.unit():
            return self.network.add(*parts) if len(parts) > 1 else self.network.identity(parts[0])

    def concat(self, *terms: list[Value]) -> Value:
        """The concatenation of the sum of each term."""
        with self.unit():
            return self.network.concat(*[self.network.add(*term) for term in terms])
