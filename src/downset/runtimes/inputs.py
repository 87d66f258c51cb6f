"""Inputs of a run: the user's, or random ones that a network accepts, which depend on the seed alone and not on the
runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UsageError

__all__ = ["fixed_shapes", "given_arrays", "given_inputs", "given_or_random", "random_array", "run_inputs"]

_GIVEN: ContextVar[str] = ContextVar("given", default="")
"""The .npz file of the user's arrays for runs that are measured; empty where there is none."""
_PREFIX = "input "
"""Before each name in it, since numpy has names of its own (`file`)."""


@contextlib.contextmanager
def given_inputs(path: Path | None, arrays: Mapping[str, npt.NDArray[Any]]) -> Iterator[None]:
    """A context in which runs that are measured in ONNX Runtime take these arrays, by the inputs' names: values may
    choose what runs (If, Loop), and not every network runs with every value. It writes them to `path`; with None they
    stay random."""
    if path is not None:
        with path.open("wb") as file:
            named: dict[str, Any] = {f"{_PREFIX}{name}": array for name, array in arrays.items()}
            np.savez(file, **named)
    token = _GIVEN.set("" if path is None else str(path))
    try:
        yield
    finally:
        _GIVEN.reset(token)


def run_inputs(shapes: Mapping[str, Sequence[int]] | None, seed: int) -> dict[str, Any]:
    """The inputs of runs as an argument of a worker."""
    return {"inputs": {"shapes": fixed_shapes(shapes), "seed": seed, "given": _GIVEN.get()}}


def fixed_shapes(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in (shapes or {}).items()}


def given_arrays(inputs: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """The user's arrays by the inputs' names, in a worker."""
    if not inputs["given"]:
        return {}
    with np.load(inputs["given"]) as arrays:
        return {name.removeprefix(_PREFIX): arrays[name] for name in arrays}


def given_or_random(
    given: npt.NDArray[Any] | None, shape: Sequence[int], dtype: Any, *, seed: int, position: int
) -> npt.NDArray[Any]:
    """The user's array where it has this type and shape, as at other sizes it has not; else `random_array`."""
    if given is not None and given.shape == tuple(shape) and given.dtype.kind == np.dtype(dtype).kind:
        return given
    return random_array(shape, dtype, seed=seed, position=position)


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
