"""The difference between the outputs of two executions, and the difference that is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.extras import torch_library

__all__ = ["allowed_difference", "as_array", "difference"]

_ALLOWED = {"float64": 1e-6, "float32": 1e-3, "tf32": 2e-2, "float16": 5e-2, "bfloat16": 2e-1}
"""The largest differences allowed, as a share of an output's largest value. `float64`: parameters of operators are
float32 in .onnx files, and runtimes round what they make of them in different ways. `tf32`: float32 of which cuDNN
multiplies ten bits of the mantissa, PyTorch's default."""


def allowed_difference(device: str, dtype: str) -> float:
    """The largest difference allowed between executions on this kind of device in this element type, as a share of an
    output's largest value."""
    short = device == "cuda" and dtype == "float32" and torch_library().backends.cudnn.allow_tf32
    return _ALLOWED["tf32" if short else dtype]


def as_array(value: Any) -> npt.NDArray[Any]:
    """A copy of a PyTorch tensor as a numpy array of its element type. bfloat16, which numpy lacks, becomes float32."""
    lacks = value.dtype == torch_library().bfloat16
    array: npt.NDArray[Any] = (value.float() if lacks else value).cpu().numpy().copy()
    return array


def difference(ours: Sequence[npt.NDArray[Any]], theirs: Sequence[npt.NDArray[Any]]) -> float:
    """The largest difference between two lists of outputs, as a share of the largest value in that output of `theirs`.
    It is infinite where shapes differ, and where a value is NaN or infinite in one of them and not the same in both."""
    worst = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            return math.inf
        mine, expected = np.asarray(one, np.float64), np.asarray(other, np.float64)
        finite = np.isfinite(expected)
        if not np.array_equal(mine[~finite], expected[~finite], equal_nan=True) or not np.isfinite(mine[finite]).all():
            return math.inf
        if finite.any():
            scale = float(np.abs(expected[finite]).max()) or 1.0
            worst = max(worst, float(np.abs(mine[finite] - expected[finite]).max()) / scale)
    return worst
