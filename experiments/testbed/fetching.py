"""Time and bytes of rows that a device fetches from another one over a slow network, by two ways to wait for them.

    python -m experiments.testbed.fetching [--quick]        # needs root

An object goes from one device to another through Ray under TLS, in an empty cell of 50 Mbit/s, on whole cores. By
`wait`, as the runtime does, the device waits until the object is there, and looks every half second whether it is still
wanted. By `get` it asks for the object with a time limit of half a second, again and again. An object that has not
arrived after 30 s is given up. `sent` counts all bytes in the cell meanwhile, signs of life of Ray's nodes too; seconds
and bytes are medians.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from downset.distributed.serving.nodes import device_resource
from downset.distributed.serving.ray_fleet import _LOOKS_S, cluster, fetched
from experiments.frame import Experiment, fields
from experiments.rows import Row
from experiments.testbed.bed import Bed
from experiments.testbed.driven import Work, driver_rows, error_in_a_line, run
from experiments.testbed.measured import where_and_when
from experiments.testbed.settings import CLUSTERS, Setting

_SIZES = (512 << 10, 2 << 20, 8_000_000)
_REPEATS = 5
_LONGEST_S = 30.0
_ANSWERS_S = 120.0


class Holder:
    """A device that makes an object, or fetches one."""

    def ready(self) -> bool:
        return True

    def give(self, nbytes: int) -> Any:
        return np.zeros(nbytes, np.uint8)

    def take(self, held: list[Any], way: str) -> tuple[bool, float]:
        """Whether the object arrives, and the seconds until then."""
        import ray

        begun, value = time.monotonic(), None

        def wanted() -> bool:
            return time.monotonic() - begun < _LONGEST_S

        if way == "wait":
            value = fetched(held[0], wanted)
        while value is None and wanted():
            with contextlib.suppress(ray.exceptions.GetTimeoutError):
                value = ray.get(held[0], timeout=_LOOKS_S)
        return value is not None, time.monotonic() - begun


def drive(orders: dict[str, Any]) -> None:
    """The driver inside the testbed."""
    import ray

    from experiments.testbed.drive import wait_for_devices

    bed, names = Bed(orders["prefix"], tuple(orders["cpu_shares"])), orders["names"]
    with cluster(names, head=orders["head"], keys=orders["keys"], store_bytes=256 << 20, threads=1) as fleet:
        wait_for_devices(fleet, names)
        holder = ray.remote(Holder)
        source, target = (
            holder.options(num_cpus=0, resources={device_resource(names[device]): 1}).remote() for device in (1, 2)
        )
        ray.get([source.ready.remote(), target.ready.remote()], timeout=_ANSWERS_S)
        ray.get(target.take.remote([source.give.remote(1 << 20)], "wait"), timeout=_ANSWERS_S)  # connections open
        with (Path(orders["out"]) / "rows.jsonl").open("w") as file:
            for nbytes in _SIZES:
                for way in ("wait", "get"):
                    arrived, seconds, sent = [], [], []
                    for _ in range(1 if orders["quick"] else _REPEATS):
                        held = [source.give.remote(nbytes)]
                        ray.wait(held, fetch_local=False, timeout=_ANSWERS_S)
                        before = bed.cell_bytes()
                        came, took = ray.get(target.take.remote(held, way), timeout=_ANSWERS_S)
                        arrived.append(came)
                        seconds.append(took)
                        sent.append(bed.cell_bytes() - before)
                    row: Row = {"way": way, "bytes": nbytes, "arrived": sum(arrived), "of": len(arrived)}
                    row["limit_s"] = _LONGEST_S
                    row["seconds"] = round(statistics.median(seconds), 2)
                    row |= {"sent_bytes": int(statistics.median(sent)), "load": round(os.getloadavg()[0], 2)}
                    file.write(json.dumps(row | orders["row"]) + "\n")
                    file.flush()


def rows(options: Namespace) -> Iterator[Row]:
    work = Work(row=where_and_when(), quick=options.quick, driver="experiments.testbed.fetching")
    with error_in_a_line():
        yield from driver_rows(Setting(CLUSTERS[4], "shared"), work, limit_s=400.0)


EXPERIMENT = Experiment(
    "testbed_fetching",
    rows,
    (
        *fields("way"),
        *fields("bytes", spec=","),
        ("arrived", "{arrived} of {of}"),
        *fields("seconds", spec=".2f"),
        ("sent", "{sent_bytes:,}"),
        ("times the bytes", lambda row: f"{row['sent_bytes'] / row['bytes']:.1f}"),
        *fields("load"),
    ),
    key=("way", "bytes"),
    quick="each once, nothing written",
)


if __name__ == "__main__":
    run(EXPERIMENT, drive)
