"""Sessions of ONNX Runtime inside the worker process of `ort`: one function for each function there."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.extras import onnxruntime_library
from downset.results.sessions import EXTENDED, FILE_ORDER, SessionSettings
from downset.runtimes.differences import difference
from downset.runtimes.feeds import unpacked
from downset.runtimes.inputs import given_arrays, given_or_random
from downset.runtimes.ort_settings import open_session, session_outputs
from downset.text import brief

__all__ = [
    "apart_here",
    "made_feeds_of",
    "measure_here",
    "optimise_here",
    "placed_here",
    "program_here",
    "quiet_library",
    "run_here",
    "run_on_here",
    "time_here",
]

_NUMPY = {
    "float": "float32",
    "float16": "float16",
    "double": "float64",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "bool": "bool",
    "string": "str",
}

_RUNS = 3
"""Runs of a measured session: from the second on, ONNX Runtime uses the memory pattern of the first."""
_LOADS, _LOADS_S = 3, 5.0
"""The most loads of a file in an order that may differ from load to load, and the CPU seconds after which there is no
further one: ONNX Runtime's optimisation takes time with the square of the nodes."""
_UNKNOWN = -1
Inputs = Mapping[str, Any]
"""Inputs of runs as `run_inputs` describes them."""


def quiet_library() -> Any:
    onnxruntime = onnxruntime_library()
    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


def _settings(fields: Any) -> SessionSettings:
    return msgspec.convert(fields, SessionSettings)


def made_feeds_of(session: Any, inputs: Inputs) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a run: the user's where they have the sizes that are asked for, others drawn from the seed."""
    feeds, shapes, given = {}, inputs["shapes"], given_arrays(inputs)
    for value in session.get_inputs():
        dtype = _NUMPY.get(value.type.removeprefix("tensor(").removesuffix(")"))
        stated = all(isinstance(extent, int) for extent in value.shape)
        shape = value.shape if stated else shapes.get(value.name, value.shape)
        if dtype is None or any(not isinstance(extent, int) for extent in shape):
            raise UnsupportedError(
                f"input {value.name!r} of type {value.type} and shape {shape}: no values can be generated for it"
            )
        position = zlib.crc32(value.name.encode())
        feeds[value.name] = given_or_random(given.get(value.name), shape, dtype, seed=inputs["seed"], position=position)
    return feeds


def _run(session: Any, feeds: Mapping[str, Any]) -> list[Any]:
    try:
        return list(session.run(None, feeds))
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise UnsupportedError(f"ONNX Runtime cannot run it: {brief(error)}") from None


def optimise_here(path: str, output: str, settings: Any = None) -> dict[str, npt.NDArray[Any]]:
    """`optimise_offline` inside the worker process, or with `settings` `optimise_as`. Returns the runtime's version."""
    library = quiet_library()
    open_session(library, path, EXTENDED if settings is None else _settings(settings), optimised_path=output)
    return {"version": np.asarray(library.__version__)}


def run_here(path: str, inputs: Inputs, file_order: bool) -> dict[str, npt.NDArray[Any]]:
    """`run` inside the worker process."""
    library = quiet_library()
    session = open_session(library, path, FILE_ORDER if file_order else EXTENDED)
    outputs = session_outputs(session, made_feeds_of(session, inputs))
    return {f"output_{index}": array for index, array in enumerate(outputs)}


def run_on_here(path: str, feeds: str, names: Sequence[Sequence[str]]) -> dict[str, npt.NDArray[Any]]:
    """`run_on` inside the worker process."""
    session = open_session(quiet_library(), path, EXTENDED)
    (fed,) = unpacked(feeds, names)
    outputs = session_outputs(session, fed)
    return {f"output_{index}": array for index, array in enumerate(outputs)}


def measure_here(
    path: str, inputs: Inputs, settings: Any, first_that_fits: bool = False
) -> dict[str, npt.NDArray[Any]]:
    """`measure_sessions` inside the worker process: one session after another, each with a new arena."""
    library = quiet_library()
    measured: dict[str, npt.NDArray[Any]] = {}
    for index, fields in enumerate(settings):
        session_settings = _settings(fields)
        nbytes, executed = _most(library, path, inputs, session_settings)
        measured |= {f"bytes_{index}": np.asarray(nbytes, np.int64), f"executed_{index}": np.asarray(executed, np.str_)}
        _, persistent, _, held_bytes = nbytes
        if first_that_fits and held_bytes <= (session_settings.region_bytes or 0) + persistent:
            break
    return measured


def _most(library: Any, path: str, inputs: Inputs, settings: SessionSettings) -> tuple[list[int], list[str]]:
    """`_measure`. ONNX Runtime may order nodes differently each time it loads a file; where it does, this is the
    largest measurement of several loads."""
    begin = time.process_time()
    taken = [_measure(library, path, inputs, settings)]
    while not settings.follows_file and len(taken) < _LOADS and time.process_time() - begin < _LOADS_S:
        taken.append(_measure(library, path, inputs, settings))
    return max(taken, key=lambda one: one[0][0])


def _measure(library: Any, path: str, inputs: Inputs, settings: SessionSettings) -> tuple[list[int], list[str]]:
    """(peak, persistent, live, held) bytes, and the names of the nodes in the order in which they ran."""
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(library, path, settings, profile_prefix=str(Path(folder) / "profile"))
        feeds = made_feeds_of(session, inputs)
        for _ in range(_RUNS):
            _run(session, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    kernels.sort(key=lambda event: event["ts"])
    if not kernels:
        return [0, 0, 0, 0], []
    if "mem_in_use_peak" not in kernels[0]["args"]:
        raise UnsupportedError(
            "ONNX Runtime reports no memory in its profile: it does from version 1.31 on, where its arena is on"
        )
    figures = [{key: int(value) for key, value in event["args"].items() if key.startswith("mem_")} for event in kernels]
    persistent = figures[0]["mem_bytes_in_use"] - figures[0]["mem_in_use_delta"]
    peak = max(figure["mem_in_use_peak"] for figure in figures)
    live = max(figure["mem_bytes_in_use"] for figure in figures) - persistent
    # Only kernels report what is held, and loading may have had more in use.
    held_bytes = max(peak, *(figure["mem_arena_held"] for figure in figures))
    names = [event["name"].removesuffix("_kernel_time") for event in kernels[-(len(kernels) // _RUNS) :]]
    return [peak, persistent, live, held_bytes], names


def placed_here(path: str, inputs: Inputs, settings: Any) -> dict[str, npt.NDArray[Any]]:
    """`placed_nodes` inside the worker process."""
    library, wanted = quiet_library(), _settings(settings)
    missing = [name for name in wanted.providers if name not in library.get_available_providers()]
    if missing:
        raise UnsupportedError(
            f"ONNX Runtime {library.__version__} here has no {missing[0]}; onnxruntime-gpu brings it"
        )
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(library, path, wanted, profile_prefix=str(Path(folder) / "profile"))
        _run(session, made_feeds_of(session, inputs))
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    names = [event["name"].removesuffix("_kernel_time") for event in kernels]
    return {"names": np.asarray(names, np.str_), "providers": np.asarray([e["args"]["provider"] for e in kernels])}


def program_here(path: str) -> dict[str, npt.NDArray[Any]]:
    """`program_bytes` inside the worker process."""
    sys.argv = [path, "arena"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(path, run_name="__main__")
    figures = dict(line.split() for line in printed.getvalue().splitlines())
    return {"bytes": np.asarray([int(figures["in_use_bytes"]), int(figures["held_bytes"])], np.int64)}


def time_here(
    sessions: Sequence[tuple[str, Any]],
    inputs: Inputs,
    budget_s: float,
    rounds: tuple[int, int],
    latency: bool = False,
) -> dict[str, npt.NDArray[Any]]:
    """`session_seconds` inside the worker process. All sessions stay open. Every round runs each of them once, every
    second round in reverse sequence."""
    library, clock = quiet_library(), time.perf_counter if latency else time.process_time
    opened = [open_session(library, path, _settings(fields)) for path, fields in sessions]
    feeds = [made_feeds_of(session, inputs) for session in opened]
    for session, fed in zip(opened, feeds, strict=True):
        _run(session, fed)
        _run(session, fed)
    least, most = rounds
    taken: list[list[float]] = []
    end = time.perf_counter() + budget_s
    while len(taken) < least or (len(taken) < most and time.perf_counter() < end):
        row = [0.0] * len(opened)
        turns = range(len(opened)) if len(taken) % 2 == 0 else reversed(range(len(opened)))
        for index in turns:
            begin = clock()
            opened[index].run(None, feeds[index])
            row[index] = clock() - begin
        taken.append(row)
    return {"seconds": np.asarray(taken)}


def apart_here(sessions: Sequence[tuple[str, Any]], inputs: Inputs) -> dict[str, npt.NDArray[Any]]:
    """`outputs_apart` inside the worker process."""
    library = quiet_library()
    outputs = []
    for path, fields in sessions:
        session = open_session(library, path, _settings(fields))
        outputs.append(session_outputs(session, made_feeds_of(session, inputs)))
    return {"apart": np.asarray([difference(computed, outputs[0]) for computed in outputs])}
