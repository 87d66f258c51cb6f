"""The cost of a message in addition to its time on the link: seconds of processor at both ends, and those of a node at
rest.

    python -m experiments.testbed.message_cost [--quick]        # needs root

Messages of several sizes go from one device to another over their connections at 50 Mbit/s, one after another, each
acknowledged, first with whole cores, then with the shares of the measured experiments. Frames come from the driver
(`entry`), results go back to it (`result`), and calls carry nothing (`call`): these are of no plan, and cost the
device's processor too. `bystander`: what a device without work spends while two others exchange messages, because nodes
tell each other of their resources.
"""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from downset.distributed.profiling.measure import Effort, Measuring
from downset.distributed.serving.ray_fleet import cluster
from experiments.frame import Experiment, fields
from experiments.rows import Row
from experiments.testbed.bed import Bed
from experiments.testbed.driven import Work, driver_rows, error_in_a_line, run
from experiments.testbed.settings import CLUSTERS, Setting

_SIZES = (16 << 10, 512 << 10, 2 << 20)
Spent = Callable[[Callable[[int], object], int], tuple[list[float], float]]
"""(what is done so often, how often) -> by device, milliseconds of processor each time; of the clock."""


def measured(bed: Bed, measuring: Measuring, *, quick: bool) -> Iterator[Row]:
    """Milliseconds of processor a message at both ends, and of the clock."""

    def spent(work: Callable[[int], object], count: int) -> tuple[list[float], float]:
        before, begun = [bed.used_s(device) for device in range(4)], time.monotonic()
        work(count)
        taken = time.monotonic() - begun
        used = [bed.used_s(device) - one for device, one in enumerate(before)]
        return [round(1e3 * one / count, 2) for one in used], round(1e3 * taken / count, 1)

    time.sleep(3)  # what began with the actors ends first
    rest, _ = spent(time.sleep, 5 if quick else 20)
    yield {"what": "at rest", "cpu_ms_per_s": rest, "load": round(os.getloadavg()[0], 2)}
    for shares in (False, True):
        if shares:
            bed.throttle()
        for pair in ((0, 1), (2, 3)) if shares else ((0, 1),):
            for nbytes in _SIZES:
                measuring.sent(*pair, nbytes, 1)
                count = (100 if quick else 1000) if nbytes < 1 << 18 else (4 if quick else 30)
                used, taken = spent(partial(measuring.sent, *pair, nbytes), count)
                row = {"what": "message", "shares": shares, "pair": pair, "bytes": nbytes, "ms": taken}
                row |= {"sender_cpu_ms": used[pair[0]], "receiver_cpu_ms": used[pair[1]]}
                idle_ms = max(used[device] for device in range(4) if device not in pair)
                row["bystander_cpu_ms_per_s"] = round(1e3 * idle_ms / taken, 2)
                yield row | {"load": round(os.getloadavg()[0], 2)}
        yield from _with_driver(measuring, spent, shares=shares, quick=quick)
    bed.release()


def _with_driver(measuring: Measuring, spent: Spent, *, shares: bool, quick: bool) -> Iterator[Row]:
    """Milliseconds of the first device's processor: it is on the driver's machine, and its link carries nothing."""
    for what, nbytes in (("call", 0), *((what, nbytes) for what in ("entry", "result") for nbytes in _SIZES)):

        def work(count: int, what: str = what, nbytes: int = nbytes) -> None:
            if what == "call":
                for _ in range(count):
                    measuring.all("ready")
            else:
                (measuring.frames if what == "entry" else measuring.results)(0, nbytes, count)

        work(1)
        used, taken = spent(work, (10 if quick else 100) if nbytes < 1 << 18 else (4 if quick else 30))
        row = {"what": what, "shares": shares, "bytes": nbytes, "device_cpu_ms": used[0], "ms": taken}
        yield row | {"load": round(os.getloadavg()[0], 2)}


def drive(orders: dict[str, Any]) -> None:
    from experiments.testbed.drive import wait_for_devices

    bed, names = Bed(orders["prefix"], tuple(orders["cpu_shares"])), orders["names"]
    with cluster(names, head=orders["head"], keys=orders["keys"], threads=1) as fleet:
        wait_for_devices(fleet, names)
        with Measuring(fleet, names, Effort()) as measuring, (Path(orders["out"]) / "rows.jsonl").open("w") as file:
            for row in measured(bed, measuring, quick=orders["quick"]):
                file.write(json.dumps(row) + "\n")
                file.flush()


def rows(options: Namespace) -> Iterator[Row]:
    work = Work(quick=options.quick, driver="experiments.testbed.message_cost")
    with error_in_a_line():
        yield from driver_rows(Setting(CLUSTERS[4], "links"), work)


EXPERIMENT = Experiment(
    "testbed_messages",
    rows,
    fields(
        "what",
        "shares",
        "pair",
        "bytes",
        "ms",
        "sender_cpu_ms",
        "receiver_cpu_ms",
        "device_cpu_ms",
        "cpu_ms_per_s",
        "bystander_cpu_ms_per_s",
        "load",
    ),
    quick="fewer messages, nothing written",
)


if __name__ == "__main__":
    run(EXPERIMENT, drive)
