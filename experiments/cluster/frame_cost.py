"""Processor time of a frame of a small network over four devices of this machine, and who spends it.

    python -m experiments.cluster.frame_cost [--quick]        # --quick: 300 frames in place of 2,000

A vision transformer of some 150 million MACs goes through `serve` on four devices, each a node of Ray with one thread
of ONNX Runtime. Frames are let in as fast as they come out. Milliseconds of processor are those of all processes of the
run, over the frames: of the driver (this process), of the devices' processes, and of Ray's nodes, from which what nodes
take at rest, for as long, is not taken away. `alone`: ONNX Runtime in this process, one thread, unsplit.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import downset as ds
from downset.clusters.model import Cluster, Device, Network
from experiments.frame import Experiment, fields, run
from experiments.rows import Row

_CLUSTER = Cluster(tuple(Device(f"d{k}", 5e10) for k in range(4)), Network("links", 5e8, overlap=True))
_REST_S = 5.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def vision_transformer(path: Path) -> None:
    import torch

    from experiments.partial.networks import Transformer

    torch.manual_seed(0)
    net = Transformer(160).eval()
    torch.onnx.export(net, (torch.zeros(1, 3, 160, 160),), str(path), dynamo=False, input_names=["x"])


def _used_s() -> dict[str, float]:
    """Seconds of processor so far of this process, of devices, and of all other processes below this one."""
    children: dict[int, list[int]] = {}
    spent: dict[int, tuple[str, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            words = rest.split()
            children.setdefault(int(words[1]), []).append(int(folder.name))
            spent[int(folder.name)] = (name, (int(words[11]) + int(words[12])) * _TICK_S)
    used_s = dict.fromkeys(("driver", "devices", "nodes"), 0.0)
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        name, seconds = spent.get(pid, ("", 0.0))
        whose = "driver" if pid == os.getpid() else "devices" if name.startswith("ray::RayDevice") else "nodes"
        used_s[whose] += seconds
    return used_s


def _spent(work: Callable[[], Any]) -> tuple[dict[str, float], float]:
    """Seconds of processor by whose they are, and of the clock."""
    before, begun_s = _used_s(), time.monotonic()
    work()
    return {whose: seconds - before[whose] for whose, seconds in _used_s().items()}, time.monotonic() - begun_s


def _alone(path: Path, frames: list[Any]) -> tuple[list[Any], Row]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    expected: list[Any] = []
    session.run(None, {name: frames[0]})
    used, seconds = _spent(lambda: expected.extend(session.run(None, {name: frame})[0] for frame in frames))
    total = sum(used.values())
    return expected, {"what": "alone", "frames": len(frames)} | _figures(total, used, seconds, len(frames))


def _figures(total: float, used: dict[str, float], seconds: float, frames: int) -> Row:
    row = {"cpu_ms": round(1e3 * total / frames, 2), "frames_per_s": round(frames / seconds, 1)}
    row |= {f"{whose}_cpu_ms": round(1e3 * one / frames, 2) for whose, one in used.items()}
    return row | {"load": round(os.getloadavg()[0], 2)}


def rows(options: Namespace) -> Iterator[Row]:
    count = 300 if options.quick else 2_000
    with tempfile.TemporaryDirectory(prefix="ds-") as folder:
        path = Path(folder) / "vit.onnx"
        vision_transformer(path)
        graph = ds.load(path)
        drawn = np.random.default_rng(0)
        shape = graph.tensors[graph.inputs[0]].shape
        frames = [drawn.standard_normal(shape).astype(np.float32) for _ in range(50)]
        expected, row = _alone(path, frames)
        yield row
        plan = ds.plan_pipeline(graph, _CLUSTER, time_limit_s=5)
        moved = [task.transfer.nbytes for task in plan.tasks if task.transfer is not None]
        with ds.serve(path, plan, ahead=False, gather_s=300.0) as pipeline:
            for _ in pipeline.run(frames):
                pass
            rest, _ = _spent(lambda: time.sleep(_REST_S))
            given = (frames[number % len(frames)] for number in range(count))
            differences: list[float] = []

            def stream() -> None:
                for number, outputs in enumerate(pipeline.run(given)):
                    (value,) = outputs.values()
                    differences.append(float(np.abs(value - expected[number % len(frames)]).max()))

            used, seconds = _spent(stream)
            report = pipeline.report()
        row = {"what": "serve", "frames": count} | _figures(sum(used.values()), used, seconds, count)
        row |= {"at_rest_cpu_ms_per_s": round(1e3 * sum(rest.values()) / _REST_S, 1), "messages": len(moved)}
        row |= {"moved_bytes": sum(moved), "devices": sum(use.computing > 0 for use in report.devices)}
        yield row | {
            "most_difference": max(differences),
            "device_mb": round(max(u.rss_bytes for u in report.devices) / 1e6),
        }


EXPERIMENT = Experiment(
    "cluster_frame_cost",
    rows,
    fields(
        "what",
        "frames",
        "cpu_ms",
        "frames_per_s",
        "driver_cpu_ms",
        "devices_cpu_ms",
        "nodes_cpu_ms",
        "at_rest_cpu_ms_per_s",
        "messages",
        "moved_bytes",
        "devices",
        "device_mb",
        "most_difference",
        "load",
    ),
    quick="300 frames, nothing written",
)


if __name__ == "__main__":
    run(EXPERIMENT)
