"""Argument types of kernels, and the layout of channels-last operators (attribute layout="NHWC")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from downset.graph.core import Op

Shapes = Sequence[tuple[int, ...]]
Inputs = Sequence[Any]


def channels_last(op: Op) -> bool:
    return op.attrs.get("layout") == "NHWC"


def to_first(op: Op, values: Any) -> Any:
    return values.permute(0, 3, 1, 2) if channels_last(op) and values.dim() == 4 else values


def to_last(op: Op, values: Any) -> Any:
    return values.permute(0, 2, 3, 1) if channels_last(op) and values.dim() == 4 else values
