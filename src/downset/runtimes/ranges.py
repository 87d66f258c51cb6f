"""Inputs over the range of numbers: large and small ones, zeros, negative and denormal ones, and integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.graph.core import Graph
from downset.runtimes.feeds import CHOICES, made_feeds

__all__ = ["SIZES", "Fed", "Inputs", "RangedInputs", "ranged_inputs"]

Array = npt.NDArray[Any]
Fed = Mapping[str, Array]
Inputs = list[tuple[str, Fed]]
"""The inputs of runs, each with a description for messages."""

SIZES = (1.0, 10.0, 100.0, 0.1, 1e3, 1e-3, 1e4, 1e6, 1e-6, 1e9, 1e12, 1e-42)
_INTEGERS = (0, 1, 2, 3, 5, 10, 100, 1000, -1, 2**31 - 1, -(2**31))


@dataclass(frozen=True, slots=True)
class RangedInputs:
    """Inputs of a network. Floats, and integers of at most 16 bits, are scaled; others are those of `base`."""

    graph: Graph
    seed: int
    base: Fed

    def directions(self) -> Iterator[tuple[str, Mapping[str, Array]]]:
        shapes = {self.graph.tensors[tensor].name: self.graph.tensors[tensor].shape for tensor in self.graph.inputs}
        random = np.random.default_rng([self.seed, 7])
        yield "one number everywhere", {name: np.ones(shape) for name, shape in shapes.items()}
        yield "noise", {name: random.standard_normal(shape) for name, shape in shapes.items()}
        yield (
            "a ramp from -1 to 1",
            {
                name: np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape) if shape else np.ones(shape)
                for name, shape in shapes.items()
            },
        )

    def along(self, what: str, direction: Mapping[str, Array], sizes: Sequence[float]) -> Inputs:
        return [(f"{what}, times {size:g}", self.scaled(direction, size)) for size in sizes]

    def ranges(self, numbers: Sequence[float]) -> Iterator[tuple[str, Inputs]]:
        """Inputs over the range of numbers, and of the `numbers` themselves."""
        sizes = [0.0, *(sign * size for size in SIZES for sign in (1, -1))]
        for what, direction in self.directions():
            own = [*sizes, *numbers] if what.startswith("one") else sizes
            yield f"{what}, times 0 and from 1e-42 to 1e+12", self.along(what, direction, own)
        if any(self._wide(value) for value in self.base.values()):
            integers = [*_INTEGERS, *(int(number) for number in numbers if abs(number) < 2**31)]
            yield "integers over their range", [(f"integers of {number}", self.filled(number)) for number in integers]
        if len(self.graph.inputs) > 1:
            noise = dict(self.directions())["noise"]
            yield (
                "one of them scaled alone",
                [
                    (f"{name!r} alone times {size:g}", {**self.base, name: self.scaled(noise, size)[name]})
                    for name in list(self.base)[:4]
                    for size in (0.0, 100.0, -1e4)
                ],
            )

    def few(self) -> Inputs:
        """The usual inputs, with every choice, and some over the range of numbers."""
        usual = [fed for choice in CHOICES for fed in made_feeds(self.graph, seed=self.seed, choice=choice)]
        sizes = [sign * size for size in SIZES[:9] for sign in (1, -1)]
        further = (self.along(what, direction, sizes) for what, direction in self.directions())
        return [*(("a usual input", fed) for fed in usual), *(each for inputs in further for each in inputs)]

    def scaled(self, direction: Mapping[str, Array], size: float) -> Fed:
        """Inputs along a direction; a quantized input holds the nearest numbers that it can."""
        fed = dict(self.base)
        for tensor in self.graph.inputs:
            meta = self.graph.tensors[tensor]
            dtype = fed[meta.name].dtype
            if dtype.kind not in "fiu" or self._wide(fed[meta.name]):
                continue
            value = size * direction[meta.name]
            if dtype.kind == "f":
                fed[meta.name] = np.asarray(np.clip(value, np.finfo(dtype).min, np.finfo(dtype).max), dtype)
                continue
            if meta.quantization is not None and len(meta.quantization["scale"]) == 1:
                value = value / meta.quantization["scale"][0] + meta.quantization["zero_point"][0]
            limits = np.iinfo(dtype)
            fed[meta.name] = np.asarray(np.clip(np.round(value), limits.min, limits.max), dtype)
        return fed

    def filled(self, number: int) -> Fed:
        """Inputs whose wide integers are this number."""
        return {
            name: np.full_like(value, min(max(number, np.iinfo(value.dtype).min), np.iinfo(value.dtype).max))
            if self._wide(value)
            else value
            for name, value in self.base.items()
        }

    @staticmethod
    def _wide(value: Array) -> bool:
        return value.dtype.kind in "iu" and value.dtype.itemsize > 2


def ranged_inputs(graph: Graph, seed: int) -> RangedInputs:
    """Inputs of the network by `made_feeds`, to be scaled."""
    return RangedInputs(graph, seed, made_feeds(graph, seed=seed)[0])
