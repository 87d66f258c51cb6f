"""Compares a written `.onnx` file, and the weights next to it, with what was proven, before the file takes its name."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

from downset.errors import InvalidPlan
from downset.formats.onnx.bodies import tensors_of
from downset.formats.onnx.data_files import stored_range
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.skeleton import left_out
from downset.process.file_ranges import FileRange, check_copy, check_ranges
from downset.process.whole_files import copy_whole

__all__ = ["check_model", "copy_model"]

Pair = tuple[FileRange, FileRange]
"""The bytes that were proven, and those that were written."""


def copy_model(original: Path, output: Path) -> None:
    """Replace `output` by a copy of the model `original` in one step. Its weights lie next to both. Raises UsageError
    as `copy_whole` does, and InvalidPlan where bytes of the copy, or of weights next to it, differ."""

    def check(part: Path) -> None:
        check_copy(original, part, output)
        check_ranges(
            output, [pair for one in tensors_of(read_skeleton(original)) for pair in _beside(one, original, output)]
        )

    copy_whole(original, output, check=check)


def check_model(model: Any, source: Path, written: Path, output: Path) -> None:
    """Raise InvalidPlan unless the file `written`, which will be `output`, holds `model`, a skeleton, with its weights:
    those inside, and those next to `output`, which equal those of the same names next to `source`. The data of `model`
    are taken out."""
    reread = read_skeleton(written)
    pairs: list[Pair] = []
    for one, other in zip_longest(tensors_of(model), tensors_of(reread)):
        if one is None or other is None:
            break  # the messages differ
        pairs += [*_inside(one, other), *_beside(one, source, output)]
    if model.SerializeToString(deterministic=True) != reread.SerializeToString(deterministic=True):
        raise InvalidPlan(
            f"{output} is not written: it would hold another model than was proven; the disk or another program "
            "changed it; write to another disk"
        )
    check_ranges(output, pairs)


def _inside(one: Any, other: Any) -> list[Pair]:
    """The data of two tensors that lie in their files, which are taken out of both."""
    first, second = left_out(one), left_out(other)
    if first is None or second is None:
        return []
    one.ClearField("raw_data")
    other.ClearField("raw_data")
    return [(first, second)]


def _beside(tensor: Any, source: Path, output: Path) -> list[Pair]:
    """The data of a tensor that lie next to two files."""
    if tensor.data_location != tensor.EXTERNAL:
        return []
    first, second = stored_range(source, tensor), stored_range(output, tensor)
    return [] if first is None or second is None else [(first, second)]
