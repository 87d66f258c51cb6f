"""How two sequences of arrays differ: in any bit, by the largest absolute difference, and in shape or type; and by how
much the outputs of two executions may differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.extras import torch_library
from downset.messages import Message
from downset.results.comparisons import ROUNDING, Comparison

__all__ = [
    "allowed_difference",
    "as_array",
    "compare_arrays",
    "difference",
    "first_difference",
    "not_compared",
    "same_bits",
    "vary",
]

Array = npt.NDArray[Any]


def not_compared(reason: str) -> Comparison:
    return Comparison(None, None, "", Message("outputs not compared: ", reason))


def compare_arrays(first: Sequence[Array], second: Sequence[Array], *, runtime: str = "") -> Comparison:
    """Compare arrays pairwise: bitwise equality (NaN equals NaN) and the largest absolute difference. A different
    number, shape or type is a difference. `largest` is the largest absolute value, of floats where there are any;
    rounding is judged by it."""
    if len(first) != len(second):
        return Comparison(False, None, runtime, f"{len(first)} outputs against {len(second)}")
    equal, worst, largest = True, 0.0, 0.0
    any_floats = any(one.dtype.kind == "f" for one in first)
    floats = True
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return Comparison(
                False, None, runtime, f"output {index}: {one.dtype}{one.shape} against {other.dtype}{other.shape}"
            )
        if one.dtype.kind == "f" or (not any_floats and one.dtype.kind in "iub"):
            finite = one.astype(np.float64)
            largest = max(largest, float(np.abs(finite[np.isfinite(finite)]).max(initial=0.0)))
        if same_bits(one, other):
            continue
        equal = False
        floats = floats and one.dtype.kind == "f"
        if one.dtype.kind not in "fiub":
            return Comparison(False, None, runtime, f"output {index}: values differ")
        same = (one == other) | ((one != one) & (other != other))  # infinities and NaN of both differ by nothing
        with np.errstate(invalid="ignore"):
            difference = np.where(same, 0.0, np.abs(one.astype(np.float64) - other.astype(np.float64)))
        if not np.isfinite(difference).all():
            note = f"output {index}: not finite in one of them"
            return Comparison(False, float("inf"), runtime, note, largest, floats)
        worst = max(worst, float(difference.max(initial=0.0)))
    return Comparison(equal, worst, runtime, "", largest, floats)


def same_bits(one: Array, other: Array) -> bool:
    floats = one.dtype.kind == "f"
    # -0.0 == 0.0, but their bits differ
    signs = not floats or np.array_equal(np.signbit(one) & ~np.isnan(one), np.signbit(other) & ~np.isnan(other))
    return np.array_equal(one, other, equal_nan=floats) and signs


def first_difference(first: Mapping[str, Array], second: Mapping[str, Array], *, exact: bool) -> str:
    """A message about the first tensor that differs, in the order of the first mapping; "" where none does. Floats may
    differ by rounding unless `exact`. Tensors whose shapes or types differ are not compared."""
    for name, one in first.items():
        other = second.get(name)
        if other is None or one.shape != other.shape or one.dtype != other.dtype or same_bits(one, other):
            continue
        comparison = compare_arrays([one], [other])
        worst = comparison.max_abs_error
        if worst is None:
            return f"{name!r}: values differ"
        if exact or not comparison.floats or worst > ROUNDING * max(comparison.largest, 1e-6):
            return f"{name!r} differs by up to {worst:.3g} of values up to {comparison.largest:.3g}"
    return ""


def vary(runs: Sequence[Sequence[Array]]) -> bool | None:
    """Whether any output of a later run differs from the first run; None where there was one run, or no outputs."""
    if len(runs) < 2 or not runs[0]:
        return None
    return any(
        not (one.shape == other.shape and same_bits(one, other))
        for later in runs[1:]
        for one, other in zip(runs[0], later, strict=True)
    )


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
        wide = np.complex128 if "c" in one.dtype.kind + other.dtype.kind else np.float64
        mine, expected = np.asarray(one, wide), np.asarray(other, wide)
        finite = np.isfinite(expected)
        if not np.array_equal(mine[~finite], expected[~finite], equal_nan=True) or not np.isfinite(mine[finite]).all():
            return math.inf
        if finite.any():
            scale = float(np.abs(expected[finite]).max()) or 1.0
            worst = max(worst, float(np.abs(mine[finite] - expected[finite]).max()) / scale)
    return worst
