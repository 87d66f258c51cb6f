"""The growth of a process that opens a file in LiteRT and runs it: as an application opens it, where XNNPACK takes the
operators that it has, and with LiteRT's built-in kernels alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt

from downset.formats.tflite.interpreter import open_interpreter
from downset.process.isolation import isolated
from downset.process.limits import RUNNING_S, worker_s
from downset.results.processes import LitertKernels, ProcessGrowth
from downset.runtimes.growth import figures_of, growths_of, in_turns
from downset.runtimes.inputs import random_array
from downset.runtimes.litert import allocate, setting_inputs

__all__ = ["growth_here", "litert_growths"]


def litert_growths(
    files: Sequence[tuple[str | os.PathLike[str], LitertKernels]],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    rounds: int = 1,
) -> list[list[ProcessGrowth]]:
    """The readings of each file with these kernels, on one thread, one for each of the `rounds`; none where a process
    failed, and where the system does not report resident memory."""
    each_s = worker_s(RUNNING_S)
    arguments = {
        "files": [(os.fspath(path), kernels) for path, kernels in files],
        "shapes": {name: list(shape) for name, shape in (shapes or {}).items()},
        "seed": seed,
        "rounds": rounds,
        "each_s": each_s,
    }
    most_s = each_s * (1 + rounds * len(files))
    arrays, _ = isolated(__name__, "growth_here", arguments, fresh=True, timeout_s=most_s)
    return growths_of(arrays["figures"])


def growth_here(
    files: Sequence[tuple[str, LitertKernels]], shapes: Mapping[str, list[int]], seed: int, rounds: int, each_s: float
) -> dict[str, npt.NDArray[Any]]:
    """`litert_growths` inside a worker that has imported no library."""
    asked = [partial(_figures, path, kernels, shapes, seed) for path, kernels in files]
    return {"figures": in_turns(asked, rounds=rounds, limit_s=each_s)}


def _figures(
    path: str, kernels: LitertKernels, shapes: Mapping[str, list[int]], seed: int, mark: Callable[[], None]
) -> list[float]:
    import ai_edge_litert.interpreter  # noqa: F401 - what the library takes does not count

    random_array((1,), "float32", seed=seed, position=0)  # nor what makes inputs

    def opened() -> Callable[[], object]:
        interpreter = open_interpreter(path, delegates=kernels == "XNNPACK")
        allocate(interpreter, shapes)
        set_inputs = setting_inputs(interpreter, seed)

        def run() -> None:
            set_inputs()
            interpreter.invoke()

        return run

    return figures_of(opened, timed=True, mark=mark)
