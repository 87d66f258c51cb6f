"""Runs two model files on the same seeded inputs and compares what comes out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError, UsageError
from downset.formats.reading import load
from downset.methods import check_choice
from downset.results import Comparison
from downset.runtimes import litert, ort, tflm

__all__ = ["RUNTIMES", "Runtime", "RuntimeName", "compare", "compare_arrays", "compare_outputs", "not_compared"]

RuntimeName = Literal["litert", "tflm", "ort"]
Named = str | os.PathLike[str]
Shapes = Mapping[str, tuple[int, ...]]
Pair = tuple[Sequence[npt.NDArray[Any]], Sequence[npt.NDArray[Any]]]
"""The outputs of two files."""


def compare(
    first: Named,
    second: Named,
    *,
    runtime: RuntimeName | None = None,
    shapes: Shapes | None = None,
    seed: int = 0,
) -> Comparison:
    """Run two model files of one format on the same inputs, drawn from `seed`, and compare their outputs.

    `runtime`: litert (default) or tflm for .tflite, ort for .onnx. `shapes` fixes inputs by name. Nothing is raised
    where the outputs differ: see `equal`, `max_abs_error` and `within` of what is returned. Raises LoadError for a bad
    file, UsageError for files of different formats or a runtime that does not run them, UnsupportedError where no
    runtime does or an extra is missing.
    """
    suffixes = {Path(first).suffix.lower(), Path(second).suffix.lower()}
    if len(suffixes) > 1:
        raise UsageError(f"{first} and {second} are of different formats")
    (suffix,) = suffixes
    able = [name for name, row in RUNTIMES.items() if suffix in row.suffixes]
    if not able:
        known = dict.fromkeys(suffix for row in RUNTIMES.values() for suffix in row.suffixes)
        raise UnsupportedError(f"{' and '.join(known)} files are compared, not {suffix or 'files without a suffix'}")
    chosen = able[0] if runtime is None else runtime
    if chosen not in able:
        raise UsageError(f"{chosen} does not run {suffix} files; choose {' or '.join(able)}")
    for path in (first, second):
        load(path, shapes=shapes)  # a bad file is one line from us, not a crash of the runtime
    return compare_outputs(first, second, runtime=chosen, shapes=shapes, seed=seed)


def not_compared(reason: str) -> Comparison:
    return Comparison(None, None, "", f"outputs not compared: {reason}")


def compare_arrays(
    first: Sequence[npt.NDArray[Any]], second: Sequence[npt.NDArray[Any]], *, runtime: str = ""
) -> Comparison:
    """Bitwise equality (NaN equals NaN) and the largest absolute difference. Shapes and types must agree."""
    if len(first) != len(second):
        return Comparison(False, None, runtime, f"{len(first)} outputs against {len(second)}")
    equal, worst, largest = True, 0.0, 0.0
    floats = all(one.dtype.kind == "f" for one in first)
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return Comparison(
                False, None, runtime, f"output {index}: {one.dtype}{one.shape} against {other.dtype}{other.shape}"
            )
        if one.dtype.kind in "fiub":
            largest = max(largest, float(np.abs(one.astype(np.float64)).max(initial=0.0)))
        if _same_bits(one, other):
            continue
        equal = False
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


def _same_bits(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    floats = one.dtype.kind == "f"
    # -0.0 equals 0.0 and is another value
    signs = not floats or np.array_equal(np.signbit(one) & ~np.isnan(one), np.signbit(other) & ~np.isnan(other))
    return np.array_equal(one, other, equal_nan=floats) and signs


def _pair_in_ort(first: Named, second: Named, shapes: Shapes | None, seed: int, *, ordered: bool) -> Pair:
    # Both at the level a user gets without asking for the file's order; a file that is optimised already stays so.
    one = ort.run(first, shapes=shapes, seed=seed, file_order=False)
    return one, ort.run(second, shapes=shapes, seed=seed, file_order=ordered)


def _pair_in_litert(first: Named, second: Named, shapes: Shapes | None, seed: int, *, ordered: bool) -> Pair:
    del ordered  # it runs every file in its own order
    one = litert.run(first, shapes=shapes, seed=seed, steps=3)
    return one, litert.run(second, shapes=shapes, seed=seed, steps=3)


def _pair_in_tflm(first: Named, second: Named, shapes: Shapes | None, seed: int, *, ordered: bool) -> Pair:
    del shapes, ordered  # it runs every file at its own sizes and in its own order
    return tflm.measure(first, seed=seed).outputs, tflm.measure(second, seed=seed).outputs


@dataclass(frozen=True, slots=True)
class Runtime:
    """`suffixes`: of the files that it runs. `pair(first, second, shapes, seed, ordered=)`: what two files compute."""

    suffixes: tuple[str, ...]
    pair: Callable[..., Pair]


RUNTIMES: Mapping[RuntimeName, Runtime] = {
    "litert": Runtime((".tflite",), _pair_in_litert),
    "tflm": Runtime((".tflite",), _pair_in_tflm),
    "ort": Runtime((".onnx",), _pair_in_ort),
}
"""Of those that run files of one suffix the first is the default."""


def compare_outputs(
    first: Named, second: Named, *, runtime: RuntimeName, shapes: Shapes | None = None, seed: int = 0,
    ordered: bool = False,
) -> Comparison:  # fmt: skip
    """Run both files in `runtime` (litert, tflm or ort) on inputs drawn from `seed`; several steps for LiteRT, so that
    networks with state are compared in their state too. `ordered`: ONNX Runtime runs the second file in its own order.
    Raises UnsupportedError where the runtime cannot run them."""
    check_choice("runtime", runtime, RUNTIMES)
    return compare_arrays(*RUNTIMES[runtime].pair(first, second, shapes, seed, ordered=ordered), runtime=runtime)
