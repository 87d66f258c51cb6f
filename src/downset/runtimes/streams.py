"""Runs a stream hop by hop, and the network of its window on the same rows.

States begin as NaN, or as random integers: what a hop still took from them after the warm-up would show.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from downset.errors import UnsupportedError, UsageError
from downset.extras import onnxruntime_library
from downset.graph.core import Graph
from downset.messages import Setting
from downset.process.isolation import isolated
from downset.results.comparisons import Comparison, Proof, Rounding, StreamRuns
from downset.results.sessions import DEFAULT
from downset.results.streams import StreamRecord
from downset.runtimes.differences import compare_arrays, vary
from downset.runtimes.feeds import Feeds, FeedSource, made_feeds, read_array, saved, unpacked
from downset.runtimes.ort_settings import open_session, session_outputs
from downset.runtimes.outputs import Array, calls_in_tflm, in_litert, in_ort, in_tflm
from downset.runtimes.rounding import LEVELS, TIMES, first_beyond, level_of

__all__ = ["HOPS", "compare_hops", "record_difference", "runtime_of"]

HOPS = 24
"""Hops whose outputs are compared, after the warm-up."""
_LAST_BITS = 64.0
Named = str | os.PathLike[str]
Runs = list[list[Array]]


def runtime_of(record: StreamRecord, path: Named, runtime: str | None) -> str:
    """The runtime in which a stream is run. Raises UsageError for one that cannot run its form."""
    if record.form == "in_place" and runtime == "litert":
        raise UsageError(
            f"{path} keeps its states in place, at offsets that LiteRT ignores; choose ", Setting("runtime", "tflm")
        )
    usual = {"in_place": "tflm", "variables": "litert", "states": "ort"}
    return runtime or usual[record.form]


@dataclass(frozen=True, slots=True)
class _RowSequence:
    """Rows of the input, as many as `hops` hops and what is before the first take. `others`: the other inputs."""

    record: StreamRecord
    rows: Array
    others: Mapping[str, Array]
    warm: int

    def _cut(self, start: int, stop: int) -> dict[str, Array]:
        rows = self.rows.take(range(start, stop), axis=self.record.axis)
        return {name: rows if name == self.record.input else value for name, value in self.others.items()}

    def windows(self) -> Feeds:
        """The windows that end where a hop ends, from hop `warm` on."""
        ends = [(hop + 1) * self.record.hop for hop in range(self.warm, self.hops)]
        return [self._cut(end - self.record.window, end) for end in ends]

    def hop_feeds(self) -> Feeds:
        return [self._cut(hop * self.record.hop, (hop + 1) * self.record.hop) for hop in range(self.hops)]

    @property
    def hops(self) -> int:
        return int(self.rows.shape[self.record.axis]) // self.record.hop


def compare_hops(
    paths: tuple[Named, Named],
    graphs: Sequence[Graph],
    record: StreamRecord,
    *,
    runtime: str,
    source: FeedSource,
    proof: Proof,
) -> Comparison:
    """Run a window's network (the first of `paths` and `graphs`) on windows and its stream hop by hop on the same rows,
    and compare the outputs from the first hop on whose rows fill a window, and that the record promises. Raises
    UnsupportedError where the runtime is missing or runs neither, UsageError for arrays that do not fit."""
    first, second = paths
    window, count = graphs[0], len(graphs[0].outputs)
    _check_ends(graphs[1], record)
    rows = _sequence(window, record, source)
    feeds = rows.windows()
    compute = {"litert": in_litert, "tflm": in_tflm, "ort": in_ort}[runtime]
    ours = compute(first, feeds).outputs
    try:
        outputs = _stream_outputs(second, graphs, record, rows, runtime)
    except UnsupportedError as refused:
        return Comparison(False, None, runtime, f"it runs {first} alone: {refused.message}", proof=proof)
    theirs = [run[:count] for run in outputs[rows.warm :]]
    flat = [[value for run in runs for value in run] for runs in (ours, theirs)]
    comparison = compare_arrays(flat[0], flat[1], runtime=runtime)
    rounding = _rounding(first, feeds, ours, theirs) if runtime == "ort" else None
    ran = StreamRuns(rows.warm, noise=bool(record.states))
    return replace(comparison, proof=proof, runs=len(feeds), varies=vary(ours), rounding=rounding, stream_runs=ran)


def record_difference(window: Graph, record: StreamRecord) -> str:
    """How a record says something of its window that this window is not; "" where it says nothing else."""
    data = next((tensor for tensor in window.inputs if window.tensors[tensor].name == record.input), None)
    if data is None:
        return f"the window has no input {record.input!r}, which the record of the stream names"
    shape = window.tensors[data].shape
    if not 0 <= record.axis < len(shape) or shape[record.axis] != record.window:
        rows = f"{record.window} rows along axis {record.axis} of {record.input!r}"
        return f"the stream is of windows with {rows}, which has the shape {list(shape)} here"
    if not 0 < record.hop <= record.window:
        return f"the record of the stream states a hop of {record.hop} rows in windows of {record.window}"
    return ""


def _check_ends(graph: Graph, record: StreamRecord) -> None:
    """Raise UnsupportedError where the inputs or outputs of a stream lack a state that the caller would pass on."""
    ends = [{graph.tensors[tensor].name for tensor in listed} for listed in (graph.inputs, graph.outputs)]
    for state in record.states if record.form != "variables" else ():
        if state.name not in ends[0] or state.next not in ends[1]:
            raise UnsupportedError(f"the stream does not have the state {state.name!r} as an input and an output")


def _sequence(graph: Graph, record: StreamRecord, source: FeedSource) -> _RowSequence:
    """Rows from the user's files, one behind the other, or made ones: noise, smooth values and noise again."""
    warm = max(record.first_exact, -(-(record.window - record.hop) // record.hop))
    data = next(tensor for tensor in graph.inputs if graph.tensors[tensor].name == record.input)
    shape, dtype = graph.tensors[data].shape, np.dtype(graph.tensors[data].dtype)
    others = dict(made_feeds(graph, seed=source.seed)[0])
    if source.files:
        rows = np.concatenate([_read(path, shape, dtype, record.axis) for path in source.files], record.axis)
        if rows.shape[record.axis] < (warm + 1) * record.hop:
            raise UsageError(
                f"{source.files[0]} holds {rows.shape[record.axis]} rows; give {(warm + 1) * record.hop} or more, "
                "which fill a window after the warm-up"
            )
        return _RowSequence(record, rows, others, warm)
    length = -(-(warm + HOPS) * record.hop // 3)
    tensors = list(graph.tensors)
    longer = (*shape[: record.axis], length, *shape[record.axis + 1 :])
    tensors[data] = replace(tensors[data], shape=longer)
    runs = made_feeds(replace(graph, tensors=tuple(tensors)), seed=source.seed)
    return _RowSequence(record, np.concatenate([run[record.input] for run in runs], record.axis), others, warm)


def _read(path: Named, shape: tuple[int, ...], dtype: Any, axis: int) -> Array:
    array = read_array(path, most_bytes=float("inf"))
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != len(shape):
        raise UsageError(f"{path} is no .npy file of {dtype} with {len(shape)} dimensions, rows along axis {axis}")
    if any(one != other for place, (one, other) in enumerate(zip(array.shape, shape, strict=True)) if place != axis):
        raise UsageError(f"{path} holds {list(array.shape)}; the input is {list(shape)}, with any rows on axis {axis}")
    return array


def _noise(shape: Sequence[int], dtype: str, seed: int) -> Array:
    """NaN for floats, random integers for integers: what memory may hold."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return np.full(tuple(shape), np.nan, kind)
    limits = np.iinfo(kind)
    random = np.random.default_rng([seed, 40])
    return random.integers(limits.min, limits.max, tuple(shape), kind, endpoint=True)


def _stream_outputs(
    path: Named, graphs: Sequence[Graph], record: StreamRecord, rows: _RowSequence, runtime: str
) -> Sequence[Sequence[Array]]:
    feeds = rows.hop_feeds()
    if record.form == "variables":
        with tempfile.TemporaryDirectory(prefix="downset-") as folder:
            noisy = _with_noise(path, Path(folder))
            return (in_tflm if runtime == "tflm" else in_litert)(noisy, feeds).outputs
    metas = {tensor.name: tensor for tensor in graphs[1].tensors}
    states = {
        state.name: _noise(metas[state.name].shape, metas[state.name].dtype, place)
        for place, state in enumerate(record.states)
        if state.name in metas
    }
    if record.form == "in_place":
        inputs = [graphs[1].tensors[tensor].name for tensor in graphs[1].inputs]
        return calls_in_tflm(
            path, feeds, {inputs.index(name): noise.tobytes() for name, noise in states.items()}
        ).outputs
    started = [{**fed, **(states if hop == 0 else {})} for hop, fed in enumerate(feeds)]
    names = [graphs[1].tensors[tensor].name for tensor in graphs[1].outputs]
    pairs = [(state.name, names.index(state.next)) for state in record.states if state.next in names]
    with saved(started) as where:
        arguments = {"path": os.fspath(path), **where, "pairs": [[name, place] for name, place in pairs]}
        arrays, _ = isolated("downset.runtimes.streams", "ort_hops_here", msgspec.to_builtins(arguments))
    count = int(arrays["count"])
    return [[arrays[f"{hop}_{index}"] for index in range(count)] for hop in range(len(feeds))]


def _with_noise(path: Named, folder: Path) -> Path:
    """A copy of a .tflite file in which the graph that assigns initial values assigns noise."""
    from downset.formats.tflite.flatbuffer import read_flatbuffer
    from downset.formats.tflite.graph_reader import DTYPES

    file = read_flatbuffer(path)
    for number, tensor in enumerate(file.model.subgraphs[-1].tensors if len(file.model.subgraphs) > 1 else ()):
        if tensor.buffer and DTYPES[tensor.type] in ("float32", "float16", "int8", "uint8", "int16", "int32"):
            tensor.buffer = file.add_buffer(_noise(tensor.shape, DTYPES[tensor.type], number).tobytes())
    noisy = folder / Path(path).name
    noisy.write_bytes(file.packed())
    return noisy


def ort_hops_here(path: str, feeds: str, names: list[list[str]], pairs: list[list[Any]]) -> dict[str, Array]:
    """Inside the worker process: hop by hop in ONNX Runtime, each state from the output at its place before."""
    library = onnxruntime_library()
    library.set_default_logger_severity(4)
    session = open_session(library, path, DEFAULT)
    hops: Runs = []
    states: dict[str, Array] = {}
    try:
        for fed in unpacked(feeds, names):
            hops.append(session_outputs(session, {**fed, **states}))
            states = {name: hops[-1][place] for name, place in pairs}
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(f"ONNX Runtime cannot run {Path(path).name}: {error}") from None
    arrays = {f"{hop}_{index}": value for hop, values in enumerate(hops) for index, value in enumerate(values)}
    return arrays | {"count": np.asarray(max(map(len, hops), default=0))}


def _rounding(
    first: Named, feeds: Feeds, usual: Sequence[Sequence[Array]], theirs: Sequence[Sequence[Array]]
) -> Rounding:
    """How the outputs relate to those of the window at ONNX Runtime's levels of optimisation."""
    levels = {"all": usual}
    for name, settings in LEVELS.items():
        if name != "all":
            try:
                levels[name] = in_ort(first, feeds, settings=settings).outputs
            except UnsupportedError:
                continue
    plain = levels.get("none", usual)
    beyond = ""
    for runs in zip(usual, plain, theirs, strict=True):
        ours, without, others = ({f"output {i}": value for i, value in enumerate(run)} for run in runs)
        beyond = beyond or first_beyond(ours, without, others, last_bits=_LAST_BITS)
    flat = [[value for run in runs for value in run] for runs in (usual, plain)]
    return Rounding(level_of(levels, theirs), compare_arrays(*flat).max_abs_error, TIMES, beyond)
