"""LiteRT, asked from a process of its own: outputs for seeded inputs, and shapes that the file leaves open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.formats.tflite.interpreter import open_interpreter
from downset.isolation import isolated
from downset.runtimes.inputs import random_array

__all__ = ["run"]


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
    arrays, _ = isolated("downset.runtimes.litert", "run_here", arguments)
    return [arrays[f"output_{index}"] for index in range(len(arrays))]


def _plain(shapes: Mapping[str, tuple[int, ...]] | None) -> dict[str, list[int]]:
    return {name: list(shape) for name, shape in (shapes or {}).items()}


def run_here(path: str, shapes: Mapping[str, list[int]], seed: int, steps: int) -> dict[str, npt.NDArray[Any]]:
    """`run` inside the worker process."""
    interpreter = open_interpreter(path)
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
