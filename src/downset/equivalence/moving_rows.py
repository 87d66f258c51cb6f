"""How the rows of a tensor move from one window to a later one, and what an operator says of those that it reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from downset.equivalence.claims import Unproven, array_of
from downset.equivalence.file_network import ABSENT, FileNetwork, FileNode

__all__ = ["Motion", "Motions", "MovingRows", "shape_of"]


@dataclass(frozen=True, slots=True)
class Motion:
    """A tensor moves by `rate` rows a hop along `axis`, in its interior `rows`, every `hops` hops."""

    axis: int
    rate: Fraction
    rows: tuple[int, int]
    hops: int = 1

    def mapped(self, axis: int, *, offset: int = 0, step: int = 1, repeats: int = 1, stop: int | None = None) -> Motion:
        """The motion of a tensor that repeats each `step`th row from `offset` on `repeats` times; `stop`: the number of
        its rows, None where all come from these."""
        low, high = (-(-(row - offset) // step) * repeats for row in self.rows)
        low = max(low, 0)
        high = max(high if stop is None else min(high, stop), low)
        rate = self.rate / step
        return Motion(axis, rate * repeats, (low, high), math.lcm(self.hops, rate.denominator))


@dataclass(slots=True)
class Motions:
    """`of`: by value of the network, how it moves. `fixed`: values that depend on no input. `stops`: by value that
    neither moves nor is fixed, which operator stops it, and why."""

    of: dict[int, Motion] = field(default_factory=dict)
    fixed: set[int] = field(default_factory=set)
    stops: dict[int, str] = field(default_factory=dict)


def shape_of(network: FileNetwork, value: int) -> tuple[int, ...]:
    shape = network.values[value].shape
    if shape is None:
        raise Unproven(f"has a tensor of unknown shape, {network.values[value].label!r}")
    return shape


@dataclass(frozen=True, slots=True)
class MovingRows:
    """One operator, of which some inputs move and the others are fixed."""

    network: FileNetwork
    node: FileNode
    tensors: Motions

    @property
    def rank(self) -> int:
        return len(shape_of(self.network, self.node.outputs[0]))

    def shape(self, position: int) -> tuple[int, ...]:
        return shape_of(self.network, self.node.inputs[position])

    def only(self, position: int) -> Motion:
        """The motion of the one input that moves."""
        if [place for place, value in enumerate(self.node.inputs) if value in self.tensors.of] != [position]:
            raise Unproven("reads rows of several tensors")
        return self.tensors.of[self.node.inputs[position]]

    def integers(self, position: int) -> list[int] | None:
        if position >= len(self.node.inputs) or self.node.inputs[position] == ABSENT:
            return None
        value = self.network.values[self.node.inputs[position]]
        if value.content is not None:
            return [int(item) for item in array_of(value).reshape(-1).tolist()]
        if value.computed is None or value.dtype not in ("", "int64", "int32"):
            raise Unproven("has an input that is not constant")
        return [int(item) for item in np.frombuffer(value.computed(), value.dtype or "int64").tolist()]

    def size(self, axis: int, result: int = 0) -> int:
        return shape_of(self.network, self.node.outputs[result])[axis]

    def without_rows(self, position: int, axis: int, rank: int) -> None:
        """A fixed input that is broadcast to a result of this rank has the same values in each row."""
        value = self.network.values[self.node.inputs[position]]
        shape = shape_of(self.network, self.node.inputs[position])
        place = axis - rank + len(shape)
        if place < 0 or shape[place] == 1:
            return
        if value.content is not None:
            array = array_of(value)
            rows = np.moveaxis(array, place, 0)
            if all(row.tobytes() == rows[0].tobytes() for row in rows):
                return
        raise Unproven(f"reads {value.label!r}, a constant with rows of its own")

    def joined(self, rank: int) -> Motion:
        """The common motion of all inputs, broadcast from the last axis on."""
        together: Motion | None = None
        for value in self.node.inputs:
            motion = self.tensors.of.get(value)
            if motion is None:
                continue
            shape = shape_of(self.network, value)
            axis = motion.axis + rank - len(shape)
            moved = Motion(axis, motion.rate, motion.rows, motion.hops)
            if together is None:
                together = moved
            elif (together.axis, together.rate) != (axis, moved.rate):
                raise Unproven("joins tensors that move along other axes, or at another pace")
            else:
                low, high = max(together.rows[0], moved.rows[0]), min(together.rows[1], moved.rows[1])
                together = Motion(axis, moved.rate, (low, max(low, high)), math.lcm(together.hops, moved.hops))
        assert together is not None
        for position, value in enumerate(self.node.inputs):
            if value in self.tensors.fixed:
                self.without_rows(position, together.axis, rank)
        return together
