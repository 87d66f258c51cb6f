"""Frames for ten minutes on four devices of this machine, one of which is killed or stopped every thirty seconds.

    python -m experiments.cluster.soak [--quick]           # --quick: one minute, a fault every ten seconds

Every result is compared with the unsplit model's, in its place; memory of the driver is read when the pipeline is warm
and at the end, and no process is left. Loopback, one thread a device; a fault is SIGKILL or SIGSTOP of its process.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import downset as ds
from downset.clusters.model import Device as ClusterDevice
from downset.clusters.model import Network
from downset.distributed.serving.cluster import cluster
from downset.distributed.serving.deployment import Shards
from downset.distributed.serving.node_guard import session_processes
from downset.distributed.serving.nodes import Node
from downset.distributed.serving.serve import run_on
from experiments.rows import save_rows
from zoo import ZOO

_NAMES = ("d0", "d1", "d2", "d3")
_WARM = 0.2
"""Share of the time after which memory is read for the first time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one minute, a fault every ten seconds")
    quick = parser.parse_args().quick
    seconds, every_s = (60.0, 10.0) if quick else (600.0, 30.0)
    row = soak(seconds, every_s, seed=0)
    for name, value in row.items():
        print(f"{name:24} {value}")
    if not quick:
        save_rows("cluster_soak", [row])


def soak(seconds: float, every_s: float, *, seed: int) -> dict[str, Any]:
    """What frames, memory and processes did. Raises AssertionError for a result that is wrong or missing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "squeezenet.onnx"
        onnx.save(ZOO["squeezenet1_0"](image=63), str(path))
        graph = ds.load(path)
        devices = tuple(ClusterDevice(name, 3e8) for name in _NAMES)
        plan = ds.plan_pipeline(graph, ds.Cluster(devices, Network("links", 1e8, overlap=True)), time_limit_s=2.0)
        frames, expected = _frames(path, graph)
        with cluster(_NAMES) as fleet:
            nodes = fleet.local_nodes
            with run_on(fleet, graph, plan, Shards(graph, Path(folder) / "shards")) as pipeline:
                clock = _Clock(seconds, every_s, nodes, random.Random(seed))
                count = 0
                for outputs in pipeline.run(clock.frames(frames)):
                    for name, value in outputs.items():
                        np.testing.assert_allclose(value, expected[count % len(frames)][name], rtol=1e-3, atol=1e-4)
                    count += 1
                report = pipeline.report()
            assert count == clock.submitted, f"{clock.submitted - count} frames are missing"
        left = sum(len(session_processes(node.session)) for node in nodes)
    lost = [event for event in report.events if event.kind == "lost"]
    changes = [event for event in report.events if event.kind == "replanned"]
    return {
        "seconds": round(report.seconds, 1),
        "frames": count,
        "faults": clock.faults,
        "lost": len(lost),
        "back": sum(event.kind == "back" for event in report.events),
        "replanned": len(changes),
        "replayed": sum(event.replayed for event in changes),
        "slowest_plan_s": round(max((event.plan_s for event in changes), default=0.0), 3),
        "slowest_move_s": round(max((event.move_s for event in changes), default=0.0), 3),
        "longest_latency_s": round(report.latency_s[3], 2) if report.latency_s else None,
        "driver_mb_warm": clock.warm_mb,
        "driver_mb_end": clock.end_mb,
        "processes_left": left,
        "load": round(os.getloadavg()[0], 1),
        "most_driver_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


class _Clock:
    """Frames until the time is over, and a fault from time to time."""

    def __init__(self, seconds: float, every_s: float, nodes: tuple[Node, ...], chance: random.Random) -> None:
        self._seconds, self._every_s, self._nodes, self._random = seconds, every_s, nodes, chance
        self.submitted = self.faults = self.warm_mb = self.end_mb = 0

    def frames(self, frames: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        begun, next_s = time.monotonic(), self._every_s
        while (at_s := time.monotonic() - begun) < self._seconds:
            if at_s >= next_s:
                next_s += self._every_s
                self.faults += self._disturb(self._random.choice(self._nodes))
            if not self.warm_mb and at_s > _WARM * self._seconds:
                self.warm_mb = _rss_mb()
            self.submitted += 1
            yield frames[(self.submitted - 1) % len(frames)]
        self.end_mb = _rss_mb()

    def _disturb(self, node: Node) -> bool:
        """Kill or stop the device's process, where it has one just now."""
        for process in session_processes(node.session):
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::RayDevice"):
                os.kill(process, self._random.choice((signal.SIGKILL, signal.SIGSTOP)))
                return True
        return False


def _frames(path: Path, graph: ds.Graph) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    (tensor,) = graph.inputs
    meta, chance = graph.tensors[tensor], np.random.default_rng(0)
    frames = [{meta.name: chance.standard_normal(meta.shape).astype(meta.dtype)} for _ in range(7)]
    names = [output.name for output in session.get_outputs()]
    return frames, [dict(zip(names, session.run(names, frame), strict=True)) for frame in frames]


def _rss_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 1e6)


if __name__ == "__main__":
    main()
