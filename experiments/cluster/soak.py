"""Frames for ten minutes on four devices, one of which is killed or stopped every thirty seconds.

    python -m experiments.cluster.soak [--quick]           # on loopback; --quick: one minute, a fault every ten seconds
    python -m experiments.cluster.soak --cell [--quick]    # in the testbed, in a cell of 50 Mbit/s that others fill

Every result is compared with the unsplit model's, in its place; memory of the driver is read when the pipeline is warm
and at the end, and no process is left. A fault is SIGKILL or SIGSTOP of a device's process. In the cell (needs
root) two flows of TCP between the devices take what they can get all the time, devices have shares of a core, Ray runs
under TLS, and who is declared lost without a fault is named.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import downset as ds
from downset.clusters.model import Device as ClusterDevice
from downset.clusters.model import Network
from downset.distributed.serving.deployment import Shards
from downset.distributed.serving.node_guard import session_processes
from downset.distributed.serving.ray_fleet import RayFleet, cluster
from downset.distributed.serving.serve import run_on
from downset.results.serving import ServeEvent
from experiments.frame import Experiment
from experiments.rows import Row
from experiments.testbed.bed import Bed
from experiments.testbed.driven import Work, driver_rows, error_in_a_line, run
from experiments.testbed.settings import CLUSTERS, Setting
from zoo import ZOO

_log = logging.getLogger("downset.serving")
_NAMES = ("d0", "d1", "d2", "d3")
_WARM = 0.2
"""Share of the time after which memory is read for the first time."""
_BLAMED_S = 15.0
"""A device that is lost so soon after its own fault is lost for that."""
_PORT = 7100
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Clock:
    """Frames until the time is over, and a fault from time to time. `processes`: those of a device, by its number."""

    seconds: float
    every_s: float
    processes: Callable[[int], Sequence[int]]
    chance: random.Random
    submitted: int = 0
    warm_mb: int = 0
    end_mb: int = 0
    faults: list[tuple[float, int]] = field(default_factory=list)

    def frames(self, frames: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        begun, next_s = time.monotonic(), self.every_s
        while (at_s := time.monotonic() - begun) < self.seconds:
            if at_s >= next_s:
                next_s += self.every_s
                device = self.chance.randrange(len(_NAMES))
                if self._disturb(device):
                    self.faults.append((time.monotonic(), device))
            if not self.warm_mb and at_s > _WARM * self.seconds:
                self.warm_mb = _rss_mb()
            self.submitted += 1
            yield frames[(self.submitted - 1) % len(frames)]
        self.end_mb = _rss_mb()

    def _disturb(self, device: int) -> bool:
        """Kill or stop the device's process, where it has one just now."""
        for process in self.processes(device):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::RayDevice"):
                    number = self.chance.choice((signal.SIGKILL, signal.SIGSTOP))
                    os.kill(process, number)
                    _log.warning("%s for device %s", number.name, _NAMES[device])
                    return True
        return False

    def unprovoked(self, events: Sequence[ServeEvent], begun_s: float) -> list[str]:
        """Losses of devices that had no fault shortly before; `begun_s`: when the events' time begins."""
        faults = []
        for event in (event for event in events if event.kind == "lost"):
            since_s = [begun_s + event.at_s - at_s for at_s, number in self.faults if _NAMES[number] == event.device]
            if not any(-1 < one < _BLAMED_S for one in since_s):
                faults.append(f"{event.at_s:.1f} s: {event.device}: {event.detail}")
        return faults


def served(fleet: RayFleet, folder: Path, clock: Clock) -> dict[str, Any]:
    """Serve until the time is over and record frames and memory. Raises AssertionError for a result that is wrong or
    missing."""
    path = folder / "squeezenet.onnx"
    onnx.save(ZOO["squeezenet1_0"](image=63), str(path))
    graph = ds.load(path)
    devices = tuple(ClusterDevice(name, 3e8) for name in _NAMES)
    plan = ds.plan_pipeline(graph, ds.Cluster(devices, Network("links", 1e8, overlap=True)), time_limit_s=2.0)
    frames, expected = _frames(path, graph)
    with run_on(fleet, graph, plan, Shards(graph, folder / "shards")) as pipeline:
        begun_s = time.monotonic() - pipeline.report().seconds
        count = 0
        for outputs in pipeline.run(clock.frames(frames)):
            for name, value in outputs.items():
                np.testing.assert_allclose(value, expected[count % len(frames)][name], rtol=1e-3, atol=1e-4)
            count += 1
        report = pipeline.report()
    assert count == clock.submitted, f"{clock.submitted - count} frames are missing"
    changes = [event for event in report.events if event.kind == "replanned"]
    return {
        "seconds": round(report.seconds, 1),
        "frames": count,
        "faults": len(clock.faults),
        "lost": sum(event.kind == "lost" for event in report.events),
        "lost_without_fault": clock.unprovoked(report.events, begun_s),
        "back": sum(event.kind == "back" for event in report.events),
        "replanned": len(changes),
        "replayed": sum(event.replayed for event in changes),
        "slowest_plan_s": round(max((event.plan_s for event in changes), default=0.0), 3),
        "slowest_move_s": round(max((event.move_s for event in changes), default=0.0), 3),
        "longest_latency_s": round(report.latency_s[3], 2) if report.latency_s else None,
        "driver_mb_warm": clock.warm_mb,
        "driver_mb_end": clock.end_mb,
        "most_driver_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "load": round(os.getloadavg()[0], 1),
    }


def on_loopback(seconds: float, every_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        with cluster(_NAMES) as fleet:
            nodes = fleet.local_nodes
            clock = Clock(seconds, every_s, lambda device: session_processes(nodes[device].session), random.Random(0))
            row = served(fleet, Path(folder), clock)
        return {"where": "loopback", **row, "processes_left": sum(len(session_processes(n.session)) for n in nodes)}


def in_cell(seconds: float, every_s: float) -> dict[str, Any]:
    """Ends the script in a line where the testbed cannot be made."""
    setting = Setting(CLUSTERS[4], "shared")
    work = Work(row={"seconds": seconds, "every_s": every_s}, driver="experiments.cluster.soak")
    with error_in_a_line():
        (row,) = driver_rows(setting, work, limit_s=seconds + 200.0, names=_NAMES)
    return {"where": f"a saturated cell of {setting.rate_mbps:g} Mbit/s", **row}


def drive(orders: dict[str, Any]) -> None:
    """The driver inside the testbed."""
    from experiments.testbed.drive import wait_for_devices

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    bed, out = Bed(orders["prefix"], tuple(orders["cpu_shares"])), Path(orders["out"])
    clock = Clock(orders["row"]["seconds"], orders["row"]["every_s"], bed.processes, random.Random(0))
    with cluster(_NAMES, head=orders["head"], keys=orders["keys"], threads=1) as fleet:
        wait_for_devices(fleet, list(_NAMES))
        bed.throttle()
        others = [_flow(bed, ends, number, clock.seconds) for number, ends in enumerate(((1, 0), (3, 2)))]
        before, begun_s = bed.cell_bytes(), time.monotonic()
        row = served(fleet, out, clock)
        row["cell_mbps"] = round((bed.cell_bytes() - before) * 8e-6 / (time.monotonic() - begun_s), 1)
        assert all(flow.poll() is None for flow in others), "the cell was not filled to the end"
    (out / "rows.jsonl").write_text(json.dumps(row) + "\n")


def _flow(bed: Bed, ends: tuple[int, int], number: int, seconds: float) -> Any:
    """TCP from the one device to the other for longer than the time, outside the devices' shares of the processor."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-m", "experiments.testbed.traffic"]
    source, target = ends
    where = (bed.address(target), str(_PORT + number))
    bed.start(target, [*command, "receive", *where], env=environment, free=True)
    time.sleep(2.0)
    return bed.start(source, [*command, "send", *where, str(int(8e6 * seconds))], env=environment, free=True)


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


def rows(options: Namespace) -> Iterator[Row]:
    seconds, every_s = (60.0, 10.0) if options.quick else (600.0, 30.0)
    row = (in_cell if options.cell else on_loopback)(seconds, every_s)
    yield row | {"at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}


EXPERIMENT = Experiment(
    "cluster_soak",
    rows,
    key=("where",),
    quick="one minute, a fault every ten seconds; nothing written",
    options={"--cell": {"action": "store_true", "help": "in the testbed, in a cell that others fill"}},
    lines=lambda row, mark: [f"{row['where']}{mark}", *(f"    {name:24} {value}" for name, value in row.items())],
)


if __name__ == "__main__":
    run(EXPERIMENT, drive)
