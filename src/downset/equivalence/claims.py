"""Claims: statements proven about tensors of a rewritten network, also as boxes of concatenations that hold them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from downset.equivalence.file_network import ABSENT, FileNetwork, FileValue
from downset.equivalence.meaning import fused, number

__all__ = ["Box", "Claim", "Padding", "Unproven", "Views", "array_of", "scales_of", "whole"]

Box = tuple[tuple[int, int], ...]
"""By axis: a half-open interval of positions."""


Padding = Literal["", "zero", "lowest"]


class Unproven(Exception):
    """A statement about an operator cannot be proven; the message says why."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A tensor holds the box `box` of the tensor `of` of the original. With `terms` = (start, stop) its elements are
    unfinished sums: of the products with these input channels of the operator that makes `of`, with the bias if
    `biased`, before any activation."""

    of: int
    box: Box
    terms: tuple[int, int] | None = None
    biased: bool = False
    padding: Padding = ""
    """The value where the box reaches beyond the tensor: its zero point, or the lowest value of its type. Empty where
    the box does not reach beyond it."""
    valid: Box | None = None
    """The positions that hold the tensor's values (None: the whole box). Others may hold any value."""


def whole(value: FileValue) -> Box:
    if value.shape is None:
        raise Unproven(f"the shape of {value.label!r} is not known")
    return tuple((0, extent) for extent in value.shape)


def array_of(value: FileValue) -> npt.NDArray[np.generic]:
    """A constant as an array. Raises Unproven for packed, sparse and unknown types."""
    content = value.content() if value.content is not None else b""
    try:
        if min(value.shape or (0,)) < 0:
            raise ValueError
        return np.frombuffer(content, np.dtype(value.dtype)).reshape(value.shape or ())
    except (TypeError, ValueError):
        raise Unproven(f"the constant {value.label!r} is of a type or form that cannot be cut") from None


def scales_of(value: FileValue, box: Box) -> object:
    """The quantization of a box, with its axis, as kernels read it also for a single scale: where there is a scale for
    each channel, those of the channels in the box."""
    if value.scales is None:
        return None
    scales, zeros, axis = value.scales
    if len(scales) > 1 and value.shape is not None and value.shape[axis] == len(scales) == len(zeros):
        start, stop = box[axis]
        scales, zeros = scales[start:stop], zeros[start:stop]
    return scales, zeros, axis


@dataclass(frozen=True, slots=True)
class Views:
    """The original network with its concatenations: a part of a tensor is also a part of a concatenation that reads
    it."""

    network: FileNetwork
    joined: Mapping[int, tuple[tuple[int, int, int], ...]] = field(init=False)
    """By value: (the concatenation's result, its axis, where the value begins)."""

    def __post_init__(self) -> None:
        joined: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for node in self.network.nodes:
            if node.kind in ("Concat", "CONCATENATION") and fused(node) is None and ABSENT not in node.inputs:
                result = self.network.values[node.outputs[0]]
                axis, start = number(node, "axis", 0), 0
                axis += len(result.shape or ()) if axis < 0 else 0
                for value in node.inputs:
                    part = self.network.values[value]
                    if part.shape is None or result.shape is None or axis >= len(part.shape):
                        break
                    # A concatenation rescales an input that has other scales.
                    if part.scales == result.scales and part.dtype == result.dtype:
                        joined[value].append((node.outputs[0], axis, start))
                    start += part.shape[axis]
        object.__setattr__(self, "joined", {value: tuple(box) for value, box in joined.items()})

    def boxes(self, claim: Claim, target: int) -> Iterator[Box]:
        """The boxes of `target` that a tensor with this claim holds, directly or as a part of concatenations. There are
        none for sums, and for tensors with padding or wrong values."""
        if claim.terms is not None or claim.padding or claim.valid is not None:
            return
        stack = [(claim.of, claim.box)]
        while stack:
            of, box = stack.pop()
            if of == target:
                yield box
            for result, axis, start in self.joined.get(of, ()):
                moved = (*box[:axis], (box[axis][0] + start, box[axis][1] + start), *box[axis + 1 :])
                stack.append((result, moved))
