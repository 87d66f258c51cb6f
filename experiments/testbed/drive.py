"""The driver inside the testbed: measures the cluster, plans by each method, runs the plans, writes rows.

    python -m experiments.testbed.drive ORDERS.json        # started by experiments.testbed.driven

It runs where device 0 is, unlimited: frames come from there and results go back there (`source` and `sink`).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from downset import Graph, Pipeline, load, plan_pipeline
from downset.clusters.model import Cluster
from downset.distributed.profiling.measure import Effort, Measuring, measure_cluster
from downset.distributed.profiling.measured import MeasuredCluster, cluster_text, measured_cluster
from downset.distributed.profiling.probes import model_probes
from downset.distributed.serving.deployment import Shards, with_spare_frames
from downset.distributed.serving.ray_fleet import RayFleet, cluster
from downset.distributed.serving.serve import RunningPipeline, ServingSettings, run_on
from downset.distributed.simulator import simulate
from downset.errors import DownsetError
from downset.results.task_times import device_seconds, plan_seconds
from experiments.testbed.bed import Bed
from experiments.testbed.faults import faulty_run, place

__all__ = ["wait_for_devices"]

_WINDOWS = 3
"""A run ends when so many times what is inside has come out, and a few results more, or after `_LONGEST` times its
time: while a pipeline fills and drains, its results do not come at its period."""
_PARTS, _IN_A_PART = 9, 5
_FEWEST = 4
"""Results of a pipeline that is full, without which no period is measured."""
_LONGEST = 12.0
_PLANS_S = 5.0
_JOINS_S = 150.0


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    bed = Bed(orders["prefix"], tuple(orders["cpu_shares"]))
    names, out = orders["names"], Path(orders["out"])
    with cluster(names, head=orders["head"], keys=orders["keys"], threads=1) as fleet:
        wait_for_devices(fleet, names)
        profile: MeasuredCluster | None = None
        for model in orders["models"]:
            path = Path(model)
            graph = load(path)
            if profile is None:
                bed.release()
                measured = measure_cluster(
                    fleet,
                    names,
                    model_probes(graph),
                    effort=Effort(**orders["effort"]),
                    progress=_say,
                    ready=bed.throttle,
                )
                profile = replace(measured, what=path.stem, kind=orders["medium"])
            else:  # the network is the same for all models
                profile = replace(_timed_anew(bed, fleet, graph, profile, names), what=path.stem)
            (out / f"{path.stem}.toml").write_text(cluster_text(profile))
            for method in orders["methods"]:
                row = {"network": path.stem, "method": method, **orders["row"]}
                if not orders["steady"]:
                    profile = _timed_anew(bed, fleet, graph, profile, names)
                _keep(out, row | _run(bed, fleet, graph, profile, method, orders))
            for fault, device, prepares in orders["faults"]:
                plan = _plan(graph, measured_cluster(profile), "pico", orders)  # it uses every device
                row = {"network": path.stem, "method": "pico", **orders["row"]}
                _keep(out, row | faulty_run(bed, fleet, graph, plan, fault, device, out, prepares=prepares))
                for name in names:
                    fleet.stop(name)


def _timed_anew(bed: Bed, fleet: RayFleet, graph: Graph, profile: MeasuredCluster, names: list[str]) -> MeasuredCluster:
    """The cluster with the computing rates of now: what else runs on the machine changes them from minute to minute."""
    bed.release()
    with Measuring(fleet, names, Effort(least_s=0.2, batches=2)) as measuring:
        bed.throttle()
        rates = measuring.computing(model_probes(graph))
    devices = (replace(device, rates=one) for device, one in zip(profile.devices, rates, strict=True))
    return replace(profile, devices=tuple(devices))


def _keep(out: Path, row: dict[str, Any]) -> None:
    row["load"] = round(os.getloadavg()[0], 2)
    with (out / "rows.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    _say(json.dumps(row))


def _plan(graph: Graph, devices: Cluster, method: str, orders: dict[str, Any]) -> Pipeline:
    """`exact_direct` is `exact` with rows handed from device to device, without leaders."""
    ends = orders["names"][0]
    return plan_pipeline(
        graph,
        devices,
        method=method.removesuffix("_direct"),
        source=ends,
        sink=ends,
        time_limit_s=_PLANS_S,
        topology="direct" if method.endswith("_direct") else "leader",
    )


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def wait_for_devices(fleet: RayFleet, names: list[str]) -> None:
    """Until all have joined; ends the driver where they do not."""
    until = time.monotonic() + _JOINS_S
    while lacks := set(names) - set(fleet.present()):
        if time.monotonic() > until:
            raise SystemExit(f"did not join: {sorted(lacks)}")
        time.sleep(0.5)


def _run(
    bed: Bed, fleet: RayFleet, graph: Graph, profile: MeasuredCluster, method: str, orders: dict[str, Any]
) -> dict[str, Any]:
    """One plan: what it counts on, and what it did."""
    devices = measured_cluster(profile)
    try:
        plan = _plan(graph, devices, method, orders)
        simulated = simulate(plan, frames=200)
        bed.release()
        with ExitStack() as stack:
            for name in orders["names"]:
                stack.callback(fleet.stop, name)
            return _measured(bed, fleet, graph, plan, orders) | {
                "planned_s": round(plan.period_s, 4),
                "simulated_s": round(simulated.sustained_period_s or 0, 4),
                "bound_s": round(plan.evidence.bound, 4),
                "window": plan.schedule.window if plan.schedule else 1,
                "stages": len(plan.stages),
                "overlap": devices.network.overlap,
                "gmac_per_s": [round(device.rates.mac_per_s / 1e9, 2) for device in profile.devices],
            }
    except DownsetError as error:
        return {"error": str(error)}


def _measured(bed: Bed, fleet: RayFleet, graph: Graph, plan: Pipeline, orders: dict[str, Any]) -> dict[str, Any]:
    inside = with_spare_frames(plan, orders["spare_frames"]).schedule
    window = inside.window if inside is not None else 1
    shards = Shards(graph, Path(orders["out"]) / f"shards-{graph.name}")
    place(plan, shards, Path(orders["out"]))
    settings = ServingSettings(gather_s=_JOINS_S, ahead=False, spare_frames=orders["spare_frames"])
    with run_on(fleet, graph, plan, shards, settings) as pipeline:
        bed.throttle()
        used = [bed.used_s(device) for device in range(len(bed.cpu_shares))]
        carried, dropped = _carried_bytes(bed, orders), bed.dropped_packets()
        begun = time.monotonic()
        times = _streamed(pipeline, graph, window, orders["most_s"])
        report = pipeline.report()
        took = time.monotonic() - begun
        used = [bed.used_s(device) - before for device, before in enumerate(used)]
        carried, dropped = _carried_bytes(bed, orders) - carried, bed.dropped_packets() - dropped
        bed.release()
    return {
        "cell_bytes": carried // max(report.completed, 1),
        "dropped_packets": dropped,
        "spare_frames": window - (plan.schedule.window if plan.schedule is not None else 1),
        "frames": len(times),
        "measured_s": _period_s(times, window),
        "mean_s": _mean_s(times, window),
        "latency_s": round(report.latency_s[0], 3) if report.latency_s else None,
        "planned_latency_s": round(plan.latency_s, 3),
        "replans": report.replans,
        "events": [asdict(event) for event in report.events],
        "cpu_of_share": [round(one / took / share, 3) for one, share in zip(used, bed.cpu_shares, strict=True)],
        "by_device": _by_device(graph, plan, report),
    }


def _carried_bytes(bed: Bed, orders: dict[str, Any]) -> int:
    return bed.cell_bytes() if orders["medium"] == "shared" else 0


def _bytes_of(graph: Graph, tensors: Sequence[int]) -> int:
    return sum(graph.tensors[tensor].nbytes for tensor in tensors)


def _by_device(graph: Graph, plan: Pipeline, report: Any) -> list[dict[str, Any]]:
    """Planned against measured, in seconds a frame; messages of the plan, and what comes from and goes to the driver
    beside it."""
    planned = device_seconds(plan, plan_seconds(plan))
    macs = [[0, 0] for _ in plan.cluster.devices]
    for stage in plan.stages:
        for block in stage.blocks:
            for strip in block.strips:
                macs[strip.device][0] += strip.macs
                macs[strip.device][1] += strip.redundant_macs
    rows = []
    for number, use in enumerate(report.devices):
        row: dict[str, Any] = {"name": use.name, "rss_mb": round(use.rss_bytes / 1e6, 1)}
        sent = [task.transfer.nbytes for task in plan.tasks if task.transfer and task.transfer.source == number]
        received = [task.transfer.nbytes for task in plan.tasks if task.transfer and task.transfer.target == number]
        row |= {"sends": len(sent), "sent_bytes": sum(sent), "receives": len(received), "received_bytes": sum(received)}
        row["entry_bytes"] = _bytes_of(graph, graph.inputs) if number == plan.entry else 0
        row["result_bytes"] = _bytes_of(graph, graph.outputs) if number == plan.exit else 0
        row["redundancy"] = round(macs[number][1] / macs[number][0], 4) if macs[number][0] else 0.0
        for what in ("computing", "sending", "receiving"):
            row[f"planned_{what}_s"] = round(getattr(planned[number], what), 4)
            row[f"{what}_s"] = round(getattr(use, what) * report.seconds / max(report.completed, 1), 4)
        rows.append(row)
    return rows


def _streamed(pipeline: RunningPipeline, graph: Graph, window: int, most_s: float) -> list[float]:
    """When results came: one frame more than the window is inside or waits, until the time is over and enough came."""
    random, begun = np.random.default_rng(0), time.monotonic()
    frame = random.standard_normal(graph.tensors[graph.inputs[0]].shape).astype(np.float32)
    for _ in range(window + 1):
        pipeline.submit(frame)
    times = []
    for _ in pipeline.results():
        times.append(time.monotonic())
        took = times[-1] - begun
        enough = len(times) >= (_WINDOWS - 1) * window + _FEWEST  # one window more comes when it drains
        if took < most_s or (not enough and took < _LONGEST * most_s):
            pipeline.submit(frame)
    return times


def _steady(times: list[float], window: int) -> list[float]:
    """Seconds between results, without those of the first window and the last one; none where too few are left. All
    that are inside at the end come in one burst, which says nothing of the period."""
    kept = times[window : len(times) - window]
    return [float(one) for one in np.diff(kept)] if len(kept) >= _FEWEST else []


def _mean_s(times: list[float], window: int) -> float | None:
    between = _steady(times, window)
    return round(statistics.mean(between), 4) if between else None


def _period_s(times: list[float], window: int) -> float | None:
    """Median over parts of the run of the mean time between results: in some of them other work has the machine."""
    between = _steady(times, window)
    if not between:
        return None
    cuts = np.array_split(between, max(3, min(_PARTS, len(between) // _IN_A_PART)))
    return round(statistics.median(float(part.mean()) for part in cuts if len(part)), 4)


if __name__ == "__main__":
    main()
