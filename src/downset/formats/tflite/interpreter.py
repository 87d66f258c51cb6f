"""Opens LiteRT's interpreter, and asks it in a worker for the shapes that a file leaves open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.extras import optional_library
from downset.process.isolation import parsed

__all__ = ["open_interpreter", "resolve_shapes"]


def resolve_shapes(path: str | os.PathLike[str], inputs: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The shape of every tensor, by index, when the inputs have these shapes (by tensor index). Raises UnsupportedError
    where LiteRT is missing, or cannot load or resize the file, and the errors of `parsed`."""
    arguments = {"path": str(path), "inputs": [[index, list(shape)] for index, shape in inputs.items()]}
    arrays, _ = parsed("downset.formats.tflite.interpreter", "shapes_here", arguments)
    return [tuple(int(extent) for extent in arrays[f"shape_{index}"]) for index in range(len(arrays))]


def open_interpreter(path: str, *, preserve: bool = False, delegates: bool = False) -> Any:
    """An interpreter that runs the file in its order on one thread: with LiteRT's optimised kernels, without delegates.
    `preserve`: keep the value of every tensor after a run. `delegates`: as LiteRT opens it by default, where XNNPACK
    runs what it can in an order and in memory of its own. Raises UnsupportedError where LiteRT is missing or cannot
    load the file."""
    litert = optional_library("ai_edge_litert.interpreter", what="running .tflite files", extra="tflite")
    types = litert.OpResolverType
    resolver = types.AUTO if delegates else types.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    try:
        return litert.Interpreter(
            path,
            experimental_op_resolver_type=resolver,
            num_threads=1,
            experimental_preserve_all_tensors=preserve,
        )
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"LiteRT cannot load {Path(path).name}: {error}") from None


def shapes_here(path: str, inputs: list[tuple[int, list[int]]]) -> dict[str, npt.NDArray[Any]]:
    """The part of `resolve_shapes` that runs in a worker: "shape_INDEX" -> the shape of that tensor."""
    interpreter = open_interpreter(path)
    try:
        for index, shape in inputs:
            interpreter.resize_tensor_input(index, shape)
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"LiteRT cannot resize {Path(path).name}: {error}") from None
    details = {detail["index"]: detail["shape"] for detail in interpreter.get_tensor_details()}
    return {f"shape_{index}": np.asarray(details.get(index, []), np.int64) for index in range(max(details) + 1)}
