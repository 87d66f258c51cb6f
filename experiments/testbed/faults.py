"""How the time of a re-plan splits: a device dies or stalls while frames flow; noticed, planned, moved, replayed.

Part of experiments.testbed.drive, for experiments.testbed.replans.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from downset import Graph, Pipeline
from downset.distributed.serving.deployment import Shards
from downset.distributed.serving.ray_fleet import RayFleet
from downset.distributed.serving.serve import RunningPipeline, ServingSettings, run_on
from experiments.testbed.bed import Bed

__all__ = ["FAULTS", "faulty_run", "place"]

FAULTS = ("process killed", "device stopped", "machine dead")
_BEFORE_S, _AFTER_S = 20.0, 20.0
_MOST_BEFORE_S = 180.0
"""The longest wait for shards that travel ahead."""


def faulty_run(
    bed: Bed, fleet: RayFleet, graph: Graph, plan: Pipeline, fault: str, device: int, out: Path, *, prepares: bool
) -> dict[str, Any]:
    """Frames flow, the device has its fault, frames flow on. `prepares`: plans for a loss are made before, and the
    fault waits until their shards are where they may be needed."""
    shards = Shards(graph, out / f"shards-{graph.name}")
    place(plan, shards, out)
    bed.release()
    with run_on(fleet, graph, plan, shards, ServingSettings(gather_s=120.0, ahead=prepares)) as pipeline:
        bed.throttle()
        begun = time.monotonic()
        window = plan.schedule.window if plan.schedule is not None else 1
        random = np.random.default_rng(0)
        shape = graph.tensors[graph.inputs[0]].shape
        frames = [random.standard_normal(shape).astype(np.float32) for _ in range(3)]
        number, fault_time, struck_s, placed, left, outputs = 0, None, 0.0, False, [], []
        for _ in range(window + 1):
            pipeline.submit(frames[number % 3])
            number += 1
        for output in pipeline.results():
            left.append(time.monotonic())
            outputs.append(next(iter(output.values())))
            before_s = left[-1] - begun
            if (
                fault_time is None
                and before_s > _BEFORE_S
                and (not prepares or _placed(pipeline) or before_s > _MOST_BEFORE_S)
            ):
                fault_time, struck_s, placed = time.monotonic(), pipeline.report().seconds, _placed(pipeline)
                _strike(bed, fault, device)
            if fault_time is None or left[-1] - fault_time < _AFTER_S:
                pipeline.submit(frames[number % 3])
                number += 1
        report = pipeline.report()
        bed.release()
    with contextlib.suppress(OSError):
        for process in bed.processes(device):
            os.kill(process, signal.SIGCONT)
    after = [one for one in left if fault_time is not None and one > fault_time]
    lost = next((event for event in report.events if event.kind == "lost"), None)
    again = next((event for event in report.events if event.kind == "replanned" and event.at_s > struck_s), None)
    row: dict[str, Any] = {
        "fault": fault,
        "device": plan.cluster.devices[device].name,
        "prepared": prepares,
        "placed": prepares and placed,
        "submitted": number,
        "came": len(outputs),
        "in_order": _in_order(outputs),
        "events": [f"{event.at_s - struck_s:+.1f} s {event.kind} {event.device}" for event in report.events],
    }
    if lost is not None:
        row["noticed_s"] = round(lost.at_s - struck_s, 2)
    if again is not None:
        row |= {
            "planning_s": round(again.plan_s, 3),
            "moving_s": round(again.move_s, 2),
            "moved_bytes": again.moved_bytes,
            "replayed": again.replayed,
            "running_again_s": round(again.at_s - struck_s, 2),
        }
    if len(after) > 1:
        gaps = np.diff([fault_time, *after])
        row["longest_gap_s"] = round(float(gaps.max()), 2)
        row["period_after_s"] = (
            round(float(np.median(gaps[int(gaps.argmax()) + 1 :])), 3) if gaps.argmax() + 1 < len(gaps) else None
        )
    row |= {
        "planned_before_s": round(report.first_planned_period_s, 3),
        "planned_after_s": round(report.planned_period_s, 3),
    }
    return row


def _placed(pipeline: RunningPipeline) -> bool:
    """Whether no shard is on its way to where another plan would need it."""
    return pipeline._driver._carrier.idle


def place(plan: Pipeline, shards: Shards, out: Path) -> None:
    """Put the shards of a plan where the devices keep theirs, and leave no others there: how long they travel at first
    is not what is measured."""
    for number, device in enumerate(plan.cluster.devices):
        folder = out / f"n{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for shard in shards.deployment(plan).shards.get(device.name, ()):
            (folder / f"{shard}.onnx").write_bytes(shards.data(shard))


def _in_order(outputs: list[Any]) -> bool:
    """Frames repeat every three: result k is that of frame k mod 3, up to rounding; the first three differ."""
    close = [np.allclose(one, outputs[place % 3], rtol=1e-3, atol=1e-4) for place, one in enumerate(outputs)]
    return all(close) and not np.allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-4)


def _strike(bed: Bed, fault: str, device: int) -> None:
    for process in bed.processes(device):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{process}/cmdline").read_bytes()
            if fault == "process killed" and not name.startswith(b"ray::RayDevice"):
                continue
            os.kill(process, signal.SIGSTOP if fault == "device stopped" else signal.SIGKILL)
