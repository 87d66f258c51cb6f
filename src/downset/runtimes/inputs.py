"""Random inputs that a network accepts. They depend on the seed alone, not on the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UsageError

__all__ = ["random_array"]


def random_array(shape: Sequence[int], dtype: Any, *, seed: int, position: int) -> npt.NDArray[Any]:
    """Random values: floats from a standard normal distribution; integers of up to 16 bits over their whole range;
    wider integers 0 or 1, as they are often indices or lengths; booleans; empty strings. `position`: the number of the
    input, so that inputs differ. Raises UsageError for a negative seed."""
    if seed < 0:
        raise UsageError(f"seed must be at least 0; given {seed}")
    random = np.random.default_rng([seed, position])
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.asarray(random.standard_normal(tuple(shape)), dtype)
    if dtype.kind == "c":
        return np.asarray(random.standard_normal(tuple(shape)) + 1j * random.standard_normal(tuple(shape)), dtype)
    if dtype.kind in "iu" and dtype.itemsize <= 2:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, tuple(shape), dtype, endpoint=True)
    if dtype.kind in "iu":
        return random.integers(0, 2, tuple(shape)).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, tuple(shape)).astype(bool)
    return np.full(tuple(shape), "", dtype)
