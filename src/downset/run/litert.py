"""LiteRT, asked from a process of its own: outputs for seeded inputs, and shapes that the file leaves open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.run.inputs import random_array
from downset.run.worker import isolated

__all__ = ["resolve_shapes", "run"]


def run(
    path: str | os.PathLike[str],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    steps: int = 1,
) -> list[npt.NDArray[Any]]:
    """Outputs of `steps` invocations in a row (networks with state differ from one to the next), on inputs drawn from
    the seed. Reference kernels without delegates, so that the order of the file is the order of execution. Raises
    UnsupportedError where LiteRT is missing or cannot run the file."""
    arguments = {"path": str(path), "shapes": _plain(shapes), "seed": seed, "steps": steps}
    arrays, _ = isolated("downset.run.litert", "run_here", arguments)
    return [arrays[f"output_{index}"] for index in range(len(arrays))]


def resolve_shapes(path: str | os.PathLike[str], inputs: Mapping[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """By tensor: its shape once the inputs (tensor index -> shape) are resized and LiteRT has planned memory."""
    arguments = {"path": str(path), "inputs": [[index, list(shape)] for index, shape in inputs.items()]}
    arrays, _ = isolated("downset.run.litert", "shapes_here", arguments)
    return [tuple(int(extent) for extent in arrays[f"shape_{index}"]) for index in range(len(arrays))]


def _plain(shapes: Mapping[str, tuple[int, ...]] | None) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in (shapes or {}).items()}


def _interpreter(path: str) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        raise UnsupportedError("running .tflite files needs an extra: pip install 'downset[tflite]'") from None
    try:
        return Interpreter(
            path, experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, num_threads=1
        )
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"LiteRT cannot load {Path(path).name}: {error}") from None


def run_here(path: str, shapes: Mapping[str, list[int]], seed: int, steps: int) -> dict[str, npt.NDArray[Any]]:
    """`run` inside the worker process."""
    interpreter = _interpreter(path)
    try:
        for detail in interpreter.get_input_details():
            if detail["name"] in shapes:
                interpreter.resize_tensor_input(detail["index"], shapes[detail["name"]])
        interpreter.allocate_tensors()
        outputs = []
        for step in range(steps):
            for position, detail in enumerate(interpreter.get_input_details()):
                value = random_array(detail["shape"], detail["dtype"], seed=seed + step, position=position)
                interpreter.set_tensor(detail["index"], value)
            interpreter.invoke()
            outputs += [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"LiteRT cannot run {Path(path).name}: {error}") from None
    return {f"output_{index}": array for index, array in enumerate(outputs)}


def shapes_here(path: str, inputs: list[tuple[int, list[int]]]) -> dict[str, npt.NDArray[Any]]:
    """`resolve_shapes` inside the worker process."""
    interpreter = _interpreter(path)
    try:
        for index, shape in inputs:
            interpreter.resize_tensor_input(index, shape)
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise UnsupportedError(f"LiteRT cannot resize {Path(path).name}: {error}") from None
    details = {detail["index"]: detail["shape"] for detail in interpreter.get_tensor_details()}
    return {f"shape_{index}": np.asarray(details.get(index, []), np.int64) for index in range(max(details) + 1)}
