"""ONNX Runtime, asked from a process of its own: outputs, the executed order, and the peak of its CPU arena.

By default it runs nodes in an order of its own. With `execution_order = PRIORITY_BASED` and all optimisation off it
follows the file's order; so a file is optimised offline first, reordered, and run with those two options. Three more
make it hold no byte longer than the plan says: no memory pattern (one block for all), no reuse of buffers by shape (it
keeps them until they are reused), and an arena that splits its chunks. `how_to_run` says so in code.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.formats.onnx.data_files import link_weights
from downset.formats.onnx.model_file import forget_shapes, resizes
from downset.isolation import isolated

__all__ = ["PeakMeasurement", "how_to_run", "least_region", "measure_peak", "optimise_offline", "run", "run_on"]

Shapes = Mapping[str, tuple[int, ...]]

_REGION_BYTES = 1 << 20
_GROWTH = (1.0, 1.05, 1.1, 1.2, 1.35, 1.5)


@dataclass(frozen=True, slots=True)
class PeakMeasurement:
    """What its CPU arena says of itself, in bytes.

    `peak_bytes`: the most in use at a time, loading included. `persistent_bytes`: of these, what stays between runs
    (weights that kernels packed for themselves). `live_bytes`: the most in use beside those when a kernel ended, so
    without its workspace: what the memory model `ort` counts. `held_bytes`: what the arena took from the system.
    `executed`: node names in the order they ran.
    """

    peak_bytes: int
    persistent_bytes: int
    live_bytes: int
    held_bytes: int
    executed: tuple[str, ...]

    @property
    def run_bytes(self) -> int:
        """The most in use beside what is persistent: intermediates and kernel workspace (or, where that was more, what
        loading needed for a moment)."""
        return self.peak_bytes - self.persistent_bytes


def how_to_run(region_bytes: int = _REGION_BYTES) -> str:
    """Python code that makes a session which follows the file's order and holds nothing longer than needed."""
    return f"""\
import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime as ort
from onnxruntime.capi._pybind_state import OrtMemoryInfo, OrtAllocatorType, OrtMemType

ort.create_and_register_allocator(
    OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT),
    ort.OrtArenaCfg({{"max_mem": 0, "arena_extend_strategy": 0, "max_dead_bytes_per_chunk": 1,
                     "initial_chunk_size_bytes": {region_bytes}}}),
)
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
options.enable_mem_pattern = False
options.enable_mem_reuse = False
options.add_session_config_entry("session.use_env_allocators", "1")
session = ort.InferenceSession(MODEL, options)"""


def optimise_offline(
    path: str | os.PathLike[str], output: str | os.PathLike[str], *, shapes: Shapes | None = None
) -> None:
    """Write the file as ONNX Runtime's portable optimisations (EXTENDED) leave it, with the input sizes fixed.

    Fixed sizes let it fold away what only computes shapes; weights that an old file lists as inputs stop being inputs,
    or they could not be folded either. Weights outside the file stay there: they are linked beside `output`, too, or
    copied where that is another device. Raises UnsupportedError if it refuses the file.
    """
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        fixed = _with_fixed_inputs(Path(path), Path(folder), shapes or {})
        isolated("downset.runtimes.ort_session", "optimise_here", {"path": str(fixed), "output": str(output)})
    if not Path(output).exists():
        raise UnsupportedError(f"ONNX Runtime wrote no optimised form of {path}")
    link_weights(Path(path), Path(output).parent)


def _with_fixed_inputs(path: Path, folder: Path, shapes: Shapes) -> Path:
    """A copy whose inputs are only inputs and have these sizes. External weights are linked beside it."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    weights = {initializer.name for initializer in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if any(resizes(value, shapes.get(value.name, ())) for value in inputs):
        forget_shapes(model.graph)
    for value in inputs:
        if value.name in shapes:
            del value.type.tensor_type.shape.dim[:]
            for extent in shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = extent
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    link_weights(path, folder)
    fixed = folder / path.name
    fixed.write_bytes(model.SerializeToString())
    return fixed


def run(
    path: str | os.PathLike[str], *, shapes: Shapes | None = None, seed: int = 0, file_order: bool = True
) -> list[npt.NDArray[Any]]:
    """Outputs on inputs drawn from the seed, one thread. `file_order`: run as the file says, nothing optimised;
    otherwise optimised (EXTENDED) and ordered as ONNX Runtime likes."""
    arguments = _arguments(path, shapes, seed, file_order)
    arrays, _ = isolated("downset.runtimes.ort_session", "run_here", arguments)
    return [arrays[f"output_{index}"] for index in range(len(arrays))]


def run_on(
    path: str | os.PathLike[str], feeds: Mapping[str, npt.NDArray[Any]], *, shapes: Shapes | None = None
) -> list[npt.NDArray[Any]]:
    """Outputs on these inputs, by name; optimised (EXTENDED), one thread. `shapes`: of inputs, for the file's."""
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        given = Path(folder) / "feeds.npz"
        np.savez(given, *feeds.values())
        fixed = _with_fixed_inputs(Path(path), Path(folder), shapes) if shapes else path
        arguments = {"path": os.fspath(fixed), "feeds": str(given), "names": list(feeds)}
        found, _ = isolated("downset.runtimes.ort_session", "run_on_here", arguments)
    return [found[f"output_{index}"] for index in range(len(found))]


def measure_peak(
    path: str | os.PathLike[str],
    *,
    shapes: Shapes | None = None,
    seed: int = 0,
    file_order: bool = True,
    region_bytes: int = _REGION_BYTES,
) -> PeakMeasurement:
    """Run with profiling and read the arena's own figures. `file_order`: as `how_to_run` does, with a first region of
    `region_bytes`; otherwise with ONNX Runtime's defaults, on one thread. Raises UnsupportedError where this version
    does not tell."""
    arguments = _arguments(path, shapes, seed, file_order) | {"region_bytes": region_bytes}
    arrays, _ = isolated("downset.runtimes.ort_session", "measure_here", arguments)
    peak, persistent, live, held = (int(value) for value in arrays["bytes"])
    return PeakMeasurement(peak, persistent, live, held, tuple(str(name) for name in arrays["executed"]))


def least_region(path: str | os.PathLike[str], *, shapes: Shapes | None = None, seed: int = 0) -> tuple[int, int]:
    """(bytes of the first region, bytes the arena then holds beside what is persistent) where it holds least.

    Tries the peak of a run and some sizes above it, for its best fit leaves holes; each try is a process.
    """
    least = measure_peak(path, shapes=shapes, seed=seed)
    found = (_REGION_BYTES, least.held_bytes - least.persistent_bytes)
    for growth in _GROWTH:
        region = -(-int(least.run_bytes * growth) // 256) * 256
        if region <= 0 or region >= found[1]:
            break
        taken = measure_peak(path, shapes=shapes, seed=seed, region_bytes=region)
        held = taken.held_bytes - taken.persistent_bytes
        found = min(found, (region, held), key=lambda pair: pair[1])
        if held <= region:
            break
    return found


def _arguments(path: str | os.PathLike[str], shapes: Shapes | None, seed: int, file_order: bool) -> dict[str, Any]:
    fixed = {name: list(shape) for name, shape in (shapes or {}).items()}
    return {"path": str(path), "shapes": fixed, "seed": seed, "file_order": file_order}
