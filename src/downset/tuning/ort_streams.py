"""Writes branches of a network as streams of ONNX Runtime, for its option `session.node_partition_config_file`.

The option takes effect in sessions of ORT_PARALLEL only. A stream is the list of nodes that one thread runs. Streams
name the nodes of the model that ONNX Runtime has optimised, so the file is for one model, one version of ONNX Runtime
and one kind of processor.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import UnsupportedError
from downset.executor.lane_program import lower
from downset.formats.onnx.bodies import captures
from downset.formats.onnx.model_file import read_unfixed
from downset.results.sessions import SessionSettings
from downset.results.stages import is_steady
from downset.runtimes import ort
from downset.stages.plan import plan_stages
from downset.stages.problem import StageProblem
from downset.stages.unit_graph import UnitGraph

__all__ = ["StreamsTimed", "stream_names", "streams_file", "time_streams"]

_WINS = 0.8
"""The share of rounds in which streams must be faster than the sequential session."""
_ALLOWED = 1e-3
OPTION = "session.node_partition_config_file"


@dataclass(frozen=True, slots=True)
class StreamsTimed:
    """`streams`: names of nodes by stream. With one stream the network has no branches, and nothing was timed.
    `threads` and `lanes`: threads of a kernel, and streams side by side, in the fastest session with streams.
    `seconds`: measured seconds (sequential, streams) of each round. `difference`: the largest difference of their
    outputs, as a share of the largest value."""

    streams: tuple[tuple[str, ...], ...]
    threads: int = 0
    lanes: int = 0
    seconds: tuple[tuple[float, float], ...] = ()
    difference: float = 0.0

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
        if len(self.streams) < 2:
            return "the network has no branches"
        if not self.difference <= _ALLOWED:
            return f"the outputs differ by {self.difference:.2g} of the largest value"
        if self.losses >= _WINS * rounds:
            return f"streams were slower in {f'each of {rounds}' if self.losses == rounds else self.losses} rounds"
        if not self.steady:
            return "the repeated times vary too much; use a quiet machine"
        return "" if self.wins >= _WINS * rounds else "streams were not faster beyond the spread"

    def content(self) -> bytes:
        return streams_file(self.streams)

    def __str__(self) -> str:
        if len(self.streams) < 2:
            return f"ONNX Runtime's streams: {self.why_not}, so nothing was written"
        sequential, streams = (median(column) * 1e3 for column in zip(*self.seconds, strict=True))
        text = (
            f"ONNX Runtime's streams: {streams:.3f} ms, sequential {sequential:.3f} ms in the median, faster in "
            f"{self.wins} of {len(self.seconds)} fresh interleaved rounds"
        )
        if self.kept:
            return (
                f"{text}. Open the session with execution_mode=ORT_PARALLEL, intra_op_num_threads={self.threads}, "
                f"inter_op_num_threads={self.lanes}, and the file as {OPTION}"
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


def streams_file(streams: Sequence[Sequence[str]]) -> bytes:
    """The content of the file that ONNX Runtime reads: the node names of each stream, and its device, 0 for the CPU."""
    content: dict[str, Any] = {
        "type": "DeviceBasedPartitioner",
        "streams": [list(names) for names in streams],
        "devices": ["0"] * len(streams),
    }
    return json.dumps(content).encode()


def time_streams(
    path: str | os.PathLike[str],
    *,
    threads: int,
    runs: int = 15,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> StreamsTimed:
    """Divide the branches of a .onnx file into streams of ONNX Runtime, and time sessions with them against the default
    session on `threads` threads. Sessions with one thread for each kernel and with all threads are tried; the faster
    one takes turns with the default in `runs` further rounds. Raises UnsupportedError if ONNX Runtime refuses the file
    or nodes have no names."""
    sequential = SessionSettings("sequential", {"intra_op_num_threads": threads})
    with tempfile.TemporaryDirectory(prefix="downset-") as folder:
        optimised, config = Path(folder) / "optimised.onnx", Path(folder) / "streams.json"
        ort.optimise_as(path, optimised, sequential)
        lanes = max(threads, 2)
        streams = stream_names(read_unfixed(optimised).graph.node, lanes)
        if len(streams) < 2:
            return StreamsTimed(streams)
        config.write_bytes(streams_file(streams))
        # If there are as many threads as streams, ONNX Runtime runs all streams on one thread.
        sessions = [
            SessionSettings(
                "streams",
                {
                    "execution_mode": "ExecutionMode.ORT_PARALLEL",
                    "intra_op_num_threads": each,
                    "inter_op_num_threads": lanes + 1,
                },
                {OPTION: str(config)},
            )
            for each in dict.fromkeys((1, threads))
        ]
        apart = ort.outputs_apart(path, [sequential, *sessions], shapes=shapes, seed=seed)
        tried = _seconds(path, [sequential, *sessions], runs, shapes, seed)
        best = min(range(len(sessions)), key=lambda index: float(np.median(tried[:, index + 1])))
        # Further rounds, because those in which the faster of two was chosen flatter it.
        fresh = _seconds(path, [sequential, sessions[best]], runs, shapes, seed)
    pairs = tuple((float(one), float(other)) for one, other in fresh)
    each = int(sessions[best].options["intra_op_num_threads"])
    return StreamsTimed(streams, each, lanes + 1, pairs, apart[best + 1])


def _seconds(
    path: str | os.PathLike[str],
    settings: Sequence[SessionSettings],
    runs: int,
    shapes: Mapping[str, tuple[int, ...]] | None,
    seed: int,
) -> npt.NDArray[np.float64]:
    return ort.session_seconds([(path, of) for of in settings], shapes=shapes, seed=seed, rounds=(runs, runs))
