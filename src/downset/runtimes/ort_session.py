"""Sessions of ONNX Runtime inside the worker process that `ort` asks: one function for each of its questions."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.extras import optional_library
from downset.runtimes.inputs import random_array
from downset.text import brief

__all__ = ["measure_here", "optimise_here", "run_here", "run_on_here"]

_NUMPY = {
    "float": "float32", "float16": "float16", "double": "float64", "int64": "int64", "int32": "int32", "int16": "int16",
    "int8": "int8", "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "bool": "bool",
    "string": "str",
}  # fmt: skip

_RUNS = 3
"""Of a measured session: a memory pattern is used from the second run on."""


def _library() -> Any:
    onnxruntime = optional_library("onnxruntime", what="running .onnx files", extra="ort")
    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


def _options(library: Any, file_order: bool) -> Any:
    options = library.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    level = library.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_DISABLE_ALL if file_order else level.ORT_ENABLE_EXTENDED
    if file_order:
        options.execution_order = library.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_pattern = False
        options.enable_mem_reuse = False
    return options


def _share_arena(library: Any, options: Any, region_bytes: int) -> None:
    """Make the session use an arena that splits chunks to the byte; by default it hands out up to twice the request."""
    from onnxruntime.capi import _pybind_state as names

    memory = names.OrtMemoryInfo("Cpu", names.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, names.OrtMemType.DEFAULT)
    arena = {
        "max_mem": 0,
        "arena_extend_strategy": 0,
        "max_dead_bytes_per_chunk": 1,
        "initial_chunk_size_bytes": region_bytes,
    }
    library.create_and_register_allocator(memory, library.OrtArenaCfg(arena))
    options.add_session_config_entry("session.use_env_allocators", "1")


def _session(library: Any, path: str, options: Any) -> Any:
    try:
        return library.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base of their own
        raise UnsupportedError(f"ONNX Runtime cannot load {Path(path).name}: {brief(error)}") from None


def _feeds(session: Any, shapes: Mapping[str, list[int]], seed: int) -> dict[str, npt.NDArray[Any]]:
    feeds = {}
    for value in session.get_inputs():
        dtype = _NUMPY.get(value.type.removeprefix("tensor(").removesuffix(")"))
        shape = shapes.get(value.name, value.shape)
        if dtype is None or any(not isinstance(extent, int) for extent in shape):
            raise UnsupportedError(f"input {value.name!r} of type {value.type} and shape {shape} cannot be made up")
        feeds[value.name] = random_array(shape, dtype, seed=seed, position=zlib.crc32(value.name.encode()))
    return feeds


def _invoke(session: Any, feeds: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    try:
        found = session.run(None, feeds)
    except Exception as error:  # its exceptions share no base of their own
        raise UnsupportedError(f"ONNX Runtime cannot run it: {brief(error)}") from None
    return [_plain(output.name, value) for output, value in zip(session.get_outputs(), found, strict=True)]


def _plain(name: str, value: Any) -> npt.NDArray[Any]:
    """An output as an array without Python objects, which are not passed on between processes."""
    if not isinstance(value, np.ndarray):
        raise UnsupportedError(f"output {name!r} is no tensor: sequences and maps are not compared")
    return value.astype(str) if value.dtype == object else value


def optimise_here(path: str, output: str) -> dict[str, npt.NDArray[Any]]:
    """`optimise_offline` inside the worker process."""
    library = _library()
    options = _options(library, False)
    options.optimized_model_filepath = output
    _session(library, path, options)
    return {}


def run_here(path: str, shapes: Mapping[str, list[int]], seed: int, file_order: bool) -> dict[str, npt.NDArray[Any]]:
    """`run` inside the worker process."""
    library = _library()
    session = _session(library, path, _options(library, file_order))
    outputs = _invoke(session, _feeds(session, shapes, seed))
    return {f"output_{index}": array for index, array in enumerate(outputs)}


def run_on_here(path: str, feeds: str, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """`run_on` inside the worker process."""
    library = _library()
    session = _session(library, path, _options(library, False))
    with np.load(feeds, allow_pickle=False) as given:
        outputs = _invoke(session, {name: given[f"arr_{at}"] for at, name in enumerate(names)})
    return {f"output_{index}": array for index, array in enumerate(outputs)}


def measure_here(
    path: str, shapes: Mapping[str, list[int]], seed: int, file_order: bool, region_bytes: int
) -> dict[str, npt.NDArray[Any]]:
    """`measure_peak` inside the worker process; later runs count too."""
    library = _library()
    options = _options(library, file_order)
    options.enable_profiling = True
    if file_order:
        _share_arena(library, options, region_bytes)
    else:
        options.graph_optimization_level = library.GraphOptimizationLevel.ORT_ENABLE_ALL
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = _session(library, path, options)
        feeds = _feeds(session, shapes, seed)
        for _ in range(_RUNS):
            _invoke(session, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    kernels.sort(key=lambda event: event["ts"])
    if not kernels:
        return {"bytes": np.zeros(4, np.int64), "executed": np.zeros(0, "U1")}
    if "mem_in_use_peak" not in kernels[0]["args"]:
        raise UnsupportedError("this ONNX Runtime does not report memory in its profile; 1.31 does")
    figures = [{key: int(value) for key, value in event["args"].items() if key.startswith("mem_")} for event in kernels]
    persistent = figures[0]["mem_bytes_in_use"] - figures[0]["mem_in_use_delta"]
    peak = max(figure["mem_in_use_peak"] for figure in figures)
    live = max(figure["mem_bytes_in_use"] for figure in figures) - persistent
    held = max(figure["mem_arena_held"] for figure in figures)
    names = [event["name"].removesuffix("_kernel_time") for event in kernels[-(len(kernels) // _RUNS) :]]
    return {"bytes": np.asarray([peak, persistent, live, held]), "executed": np.asarray(names)}
