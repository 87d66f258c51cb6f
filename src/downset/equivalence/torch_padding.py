"""Paddings that a rewrite put before windows, and the windows that pad alike by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from downset.equivalence.torch_arguments import Meaning
from downset.equivalence.torch_meaning import FILLS
from downset.formats.torch.program import TorchCall, TorchValue

__all__ = ["Padding", "padding_of", "with_padding"]

_NAMES = (("self", 1), ("pad", 1), ("value", 1))


class Padding(NamedTuple):
    of: TorchValue
    pads: list[int]
    """Pads before each dimension, then pads behind, as ONNX orders them."""
    fill: float


def padding_of(call: TorchCall) -> Padding | None:
    """The padding with a constant that a call is; None for any other call."""
    if call.target != "aten.constant_pad_nd.default" or call.names != _NAMES:
        return None
    source, sides, fill = call.args
    rank = len(source.shape or ())
    pairs = [(0, 0)] * rank
    for place in range(len(sides) // 2):
        pairs[rank - 1 - place] = int(sides[2 * place]), int(sides[2 * place + 1])
    return Padding(source, [pair[end] for end in (0, 1) for pair in pairs], float(fill))


def with_padding(meaning: Meaning | None, padding: Padding) -> Meaning | None:
    """The meaning of a window on a padded input as one with these pads more; None where its kernel pads otherwise."""
    _, pads, fill = padding
    if meaning is None or meaning.kind not in FILLS:
        return None
    if meaning.kind == "AveragePool" and meaning.settings["count_include_pad"] != (2, 1):
        return None
    if meaning.kind != "Conv" and meaning.settings["ceil_mode"] != (2, 0):
        return None
    rank = len(pads) // 2
    own: Any = meaning.settings["pads"]
    spatial = rank - 2
    if fill != FILLS[meaning.kind] or any(pads[:2]) or any(pads[rank : rank + 2]):
        return None
    added = [*pads[2:rank], *pads[rank + 2 :]]
    if min(added) < 0 or len(own[1]) != 2 * spatial:
        return None
    both = [one + more for one, more in zip(own[1], added, strict=True)]
    return replace(meaning, settings={**meaning.settings, "pads": (7, tuple(both))})
