"""Branches as streams of ONNX Runtime, by its option `session.node_partition_config_file`, against its own schedules.

    python -m experiments.ort.streams [--quick] [--networks A,B] [--keep FOLDER]

Each network is optimised offline (EXTENDED), so that names of nodes stay, and its branches are laid on lanes as the
greedy stages have them. The option takes effect in sessions of ORT_PARALLEL only: a stream is a thread's list of nodes.
All sessions run one file on the same cores, in turns: `sequential` (all cores in a kernel), `parallel` (ORT_PARALLEL,
its own streams), and `streams` (ours); each of the last two with one core and with all cores in a kernel. `threads`:
those that ran nodes, from ONNX Runtime's profile. `kept`: whether streams won four fifths of the rounds on a quiet
machine; only then `--keep` leaves the file of options. Measured, medians in ms.
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from downset import load
from downset.executor.arena import seeded_inputs
from downset.results.stages import is_steady
from downset.runtimes import ort
from downset.tuning.ort_streams import OPTION, stream_names, streams_file
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from zoo import ZOO

ALL = ("squeezenet", "inception_v3")
_WINS = 0.8


def optimised(name: str, folder: Path) -> Path:
    """The network as ONNX Runtime's portable optimisations leave it, every node with a name of its own."""
    given, path = folder / f"{name}.onnx", folder / f"{name}.optimised.onnx"
    onnx.save(ZOO[name](), str(given))
    ort.optimise_offline(given, path)
    model = onnx.load(str(path))
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    onnx.save(model, str(path))
    return path


def session(path: Path, threads: int, *, lanes: int = 0, config: Path | None = None, profile: bool = False) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if lanes:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = lanes
    if config is not None:
        options.add_session_config_entry(OPTION, str(config))
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, str(path.with_suffix(""))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def threads_of(path: Path, config: Path, lanes: int, feeds: dict[str, Any]) -> int:
    """How many threads ran nodes, by the profile of one run."""
    opened = session(path, 1, lanes=lanes, config=config, profile=True)
    opened.run(None, feeds)
    events = json.loads(Path(opened.end_profiling()).read_text())
    return len({event["tid"] for event in events if event.get("cat") == "Node"})


def row_of(name: str, folder: Path, *, rounds: int, cores: int, keep: str | None) -> Row:
    path = optimised(name, folder)
    graph = load(path)
    feeds = {graph.tensors[t].name: v for t, v in zip(graph.inputs, seeded_inputs(graph), strict=True)}
    names = stream_names(onnx.load(str(path)).graph.node, cores)
    config = folder / f"{name}.streams.json"
    config.write_bytes(streams_file(names))
    lanes = cores + 1  # with as many as cores ONNX Runtime runs all streams on one thread
    sessions = {"sequential": session(path, cores)}
    for threads in (1, cores):
        sessions[f"parallel, {threads}"] = session(path, threads, lanes=lanes)
        sessions[f"streams, {threads}"] = session(path, threads, lanes=lanes, config=config)
    expected = sessions["sequential"].run(None, feeds)
    worst = 0.0
    taken: dict[str, list[float]] = {what: [] for what in sessions}
    for turn in range(-2, rounds):
        for what, opened in sessions.items():
            begin = time.perf_counter()
            results = opened.run(None, feeds)
            if turn >= 0:
                taken[what].append(time.perf_counter() - begin)
            worst = max(worst, *(float(np.abs(a - b).max()) for a, b in zip(results, expected, strict=True)))
    ours = min((what for what in taken if what.startswith("streams")), key=lambda what: median(taken[what]))
    wins = sum(one < other for one, other in zip(taken[ours], taken["sequential"], strict=True))
    steady = is_steady(taken["sequential"])
    kept = steady and wins >= _WINS * rounds
    if kept and keep is not None:
        Path(keep).mkdir(parents=True, exist_ok=True)
        (Path(keep) / config.name).write_text(config.read_text())
    return {
        "network": name,
        "streams": [len(lane) for lane in names],
        "threads": threads_of(path, config, lanes, feeds),
        "p50_s": {what: median(times) for what, times in taken.items()},
        "wins": wins,
        "rounds": rounds,
        "steady": steady,
        "kept": kept,
        "difference": worst,
    }


def rows(options: Namespace) -> Iterator[Row]:
    names = ["squeezenet"] if options.quick else options.networks.split(",")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            yield row_of(name, Path(folder), rounds=3 if options.quick else 25, cores=2, keep=options.keep)


EXPERIMENT = Experiment(
    "ort_streams",
    rows,
    (
        *fields("network"),
        ("nodes by stream", lambda row: " + ".join(map(str, row["streams"]))),
        *fields("threads"),
        *(
            (what, f"{{p50_s[{what}]!m:.1f}}")
            for what in ("sequential", "parallel, 1", "streams, 1", "parallel, 2", "streams, 2")
        ),
        ("streams won", "{wins} of {rounds}"),
        *fields("steady", "kept"),
    ),
    key=("network",),
    quick="SqueezeNet, three rounds; nothing is written",
    options={"--networks": {"default": ",".join(ALL)}, "--keep": {"help": "folder for option files that won"}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
