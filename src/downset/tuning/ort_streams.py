"""Writes branches of a network as streams of ONNX Runtime, for its option `session.node_partition_config_file`.

On a CPU the option takes effect in sessions of ORT_PARALLEL only, and a stream is the list of nodes that one thread
runs. On a GPU it is a stream of the device; all nodes of a stream must be on one kind of device, so those that the CPU
runs have a stream of their own. Streams name the nodes of the model that ONNX Runtime has optimised, so the file is for
one model, one version of ONNX Runtime and one kind of processor. Sessions are compared by their latency, since streams
spend no less processor time.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.executor.lane_program import lower
from downset.formats.onnx.bodies import captures
from downset.formats.onnx.model_file import read_unfixed
from downset.results.sessions import SessionSettings
from downset.results.stages import is_steady
from downset.runtimes import ort
from downset.runtimes.versions import package_version
from downset.stages.plan import plan_stages
from downset.stages.problem import StageProblem
from downset.stages.unit_graph import UnitGraph

__all__ = ["StreamsTimed", "by_device", "stream_names", "streams_file", "time_streams"]

DeviceName = Literal["cpu", "cuda"]
CPU, GPU = "0", "1"
"""ONNX Runtime's numbers of kinds of devices."""
_DEVICES = {"CPUExecutionProvider": CPU, "CUDAExecutionProvider": GPU}
_PROVIDERS: Mapping[DeviceName, tuple[str, ...]] = {
    "cpu": (),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
}
_GPU_LANES = 8
"""Streams of a GPU at most, as many as groups in a stage of IOS."""
_SHOWN = ("execution_mode", "intra_op_num_threads", "inter_op_num_threads")
_READERS = "1.14"
"""The first version of ONNX Runtime that reads such a file (JSON; github.com/microsoft/onnxruntime/pull/14169)."""

_WINS = 0.8
"""The share of rounds in which streams must be faster than the sequential session."""
_ALLOWED = 1e-3
OPTION = "session.node_partition_config_file"


@dataclass(frozen=True, slots=True)
class StreamsTimed:
    """`streams`: names of nodes by stream. With one stream the network has no branches, and nothing was timed.
    `options`: those of the fastest session with streams. `seconds`: the latency (sequential, streams) of each round.
    `difference`: the largest difference of their outputs, as a share of the largest value. `devices`: ONNX Runtime's
    number of each stream's kind of device; empty for the CPU."""

    streams: tuple[tuple[str, ...], ...]
    options: Mapping[str, bool | int | str] = field(default_factory=dict)
    seconds: tuple[tuple[float, float], ...] = ()
    difference: float = 0.0
    devices: tuple[str, ...] = ()

    @property
    def wins(self) -> int:
        return sum(streams < sequential for sequential, streams in self.seconds)

    @property
    def losses(self) -> int:
        return sum(streams > sequential for sequential, streams in self.seconds)

    @property
    def steady(self) -> bool:
        return bool(self.seconds) and is_steady([sequential for sequential, _ in self.seconds])

    @property
    def kept(self) -> bool:
        """Whether to write the file: the outputs agree, and streams were faster beyond the spread."""
        return not self.why_not

    @property
    def why_not(self) -> str:
        """Why the file is not written; "" where it is kept."""
        rounds = len(self.seconds)
        if not self.seconds:
            return "the network has no branches"
        if not self.difference <= _ALLOWED:
            return f"the outputs differ by {self.difference:.2g} of the largest value"
        if self.losses >= _WINS * rounds:
            return f"streams were slower in {f'each of {rounds}' if self.losses == rounds else self.losses} rounds"
        if not self.steady:
            return "the repeated times vary too much; use a quiet machine"
        return "" if self.wins >= _WINS * rounds else "streams were not faster beyond the spread"

    def content(self) -> bytes:
        return streams_file(self.streams, self.devices)

    def __str__(self) -> str:
        if not self.seconds:
            return f"ONNX Runtime's streams: {self.why_not}, so nothing was written"
        sequential, streams = (median(column) * 1e3 for column in zip(*self.seconds, strict=True))
        text = (
            f"ONNX Runtime's streams: {streams:.3f} ms, sequential {sequential:.3f} ms in the median, faster in "
            f"{self.wins} of {len(self.seconds)} fresh interleaved rounds"
        )
        if self.kept:
            named = ", ".join(f"{name}={str(value).rpartition('.')[2]}" for name, value in self.options.items())
            provider = " on CUDAExecutionProvider" if GPU in self.devices else ""
            return (
                f"{text}. Open the session{provider} with {named}, and the file as {OPTION}. ONNX Runtime from "
                f"{_READERS} on reads such files; this one names the nodes of {package_version('onnxruntime')}"
            )
        return f"{text}: {self.why_not}, so nothing was written"


def stream_names(nodes: Sequence[Any], lanes: int) -> tuple[tuple[str, ...], ...]:
    """The names of an ONNX graph's nodes, divided into at most `lanes` streams by greedy stages. `nodes` must be in an
    order in which they can run; each stream keeps that order. Raises UnsupportedError if a name is missing or names two
    nodes."""
    if len({node.name for node in nodes} - {""}) < len(nodes):
        raise UnsupportedError("ONNX Runtime's streams are lists of names, and not every node has one of its own")
    made_by = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    before = []
    for node in nodes:
        reads = {made_by[name] for name in (*node.input, *captures(node)) if name in made_by}
        before.append(sum(1 << earlier for earlier in reads))
    units = UnitGraph(tuple((place,) for place in range(len(nodes))), tuple(before))
    stages = plan_stages(StageProblem(units.predecessors), lambda _: 0.0, method="greedy").stages
    program = lower(units, stages, barriers=False, max_lanes=lanes)
    streams: list[list[str]] = [[] for _ in range(program.lanes)]
    for step in program.steps:
        streams[step.lane] += [nodes[unit].name for unit in step.units]
    return tuple(tuple(names) for names in streams)


def by_device(
    streams: Sequence[Sequence[str]], providers: Mapping[str, str]
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """(streams that hold nodes of one device each, the number of each one's device). `providers`: of each node, in an
    order in which they can run; a node that is not in `streams`, such as a copy that ONNX Runtime adds, and one that
    runs on the CPU is in the last stream of its device. Without `providers` everything runs on the CPU, as it is."""
    if not providers:
        return tuple(map(tuple, streams)), (CPU,) * len(streams)
    device_of = {name: _DEVICES.get(provider, CPU) for name, provider in providers.items()}
    lanes = [tuple(name for name in names if device_of.get(name) == GPU) for names in streams]
    lanes = [names for names in lanes if names]
    placed = {name for names in lanes for name in names}
    for device in (GPU, CPU):
        rest = tuple(name for name in device_of if name not in placed and device_of[name] == device)
        if rest:
            lanes.append(rest)
    return tuple(lanes), tuple(device_of[names[0]] for names in lanes)


def streams_file(streams: Sequence[Sequence[str]], devices: Sequence[str] = ()) -> bytes:
    """The content of the file that ONNX Runtime reads: the node names of each stream, and its device, by default the
    CPU."""
    content: dict[str, Any] = {
        "type": "DeviceBasedPartitioner",
        "streams": [list(names) for names in streams],
        "devices": list(devices) or [CPU] * len(streams),
    }
    return json.dumps(content).encode()


def time_streams(
    path: str | os.PathLike[str],
    *,
    threads: int,
    runs: int = 15,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    device: DeviceName = "cpu",
) -> StreamsTimed:
    """Divide the branches of a .onnx file into streams of ONNX Runtime, and time sessions with them against the default
    session on `threads` threads. On a CPU, sessions with one thread for each kernel and with all threads are tried, and
    on a GPU both modes of execution; the fastest takes turns with the default in `runs` further rounds. Raises
    UnsupportedError if ONNX Runtime refuses the file, nodes have no names, or the device's provider is not
    installed."""
    providers = _PROVIDERS[device]
    sequential = SessionSettings("sequential", {"intra_op_num_threads": threads}, providers=providers)
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        optimised, config = Path(folder) / "optimised.onnx", Path(folder) / "streams.json"
        # A missing provider is said before anything is measured.
        placed = ort.placed_nodes(path, sequential, shapes=shapes, seed=seed) if providers else {}
        ort.optimise_as(path, optimised, sequential)
        lanes = max(threads, 2) if device == "cpu" else _GPU_LANES
        nodes = [node for node in read_unfixed(optimised).graph.node if not placed or node.name in placed]
        streams, devices = by_device(stream_names(nodes, lanes), placed)
        if len(streams) < 2 or (placed and devices.count(GPU) < 2):
            return StreamsTimed(streams, devices=devices)
        config.write_bytes(streams_file(streams, devices))
        sessions = _sessions(str(config), threads, lanes, device)
        apart = ort.outputs_apart(path, [sequential, *sessions], shapes=shapes, seed=seed)
        tried = _seconds(path, [sequential, *sessions], runs, shapes, seed)
        best = min(range(len(sessions)), key=lambda index: float(np.median(tried[:, index + 1])))
        # Further rounds, because those in which the faster of two was chosen flatter it.
        fresh = _seconds(path, [sequential, sessions[best]], runs, shapes, seed)
    pairs = tuple((float(one), float(other)) for one, other in fresh)
    options = {name: value for name, value in sessions[best].options.items() if name in _SHOWN}
    return StreamsTimed(streams, options, pairs, apart[best + 1], devices)


def _sessions(config: str, threads: int, lanes: int, device: DeviceName) -> list[SessionSettings]:
    """The sessions with streams that are tried. On a CPU the option takes effect in ORT_PARALLEL only; if there are as
    many threads as streams there, ONNX Runtime runs all streams on one thread."""
    if device == "cpu":
        choices = [("ORT_PARALLEL", each) for each in dict.fromkeys((1, threads))]
    else:
        choices = [("ORT_SEQUENTIAL", threads), ("ORT_PARALLEL", threads)]
    return [
        SessionSettings(
            "streams",
            {
                "execution_mode": f"ExecutionMode.{mode}",
                "intra_op_num_threads": each,
                "inter_op_num_threads": lanes + 1,
            },
            {OPTION: config},
            providers=_PROVIDERS[device],
        )
        for mode, each in choices
    ]


def _seconds(
    path: str | os.PathLike[str],
    settings: Sequence[SessionSettings],
    runs: int,
    shapes: Mapping[str, tuple[int, ...]] | None,
    seed: int,
) -> npt.NDArray[np.float64]:
    return ort.session_seconds(
        [(path, of) for of in settings], shapes=shapes, seed=seed, rounds=(runs, runs), latency=True
    )
