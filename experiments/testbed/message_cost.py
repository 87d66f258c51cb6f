"""The cost of a message beside its time on the link: seconds of processor at both ends, and those of a node at rest.

    python -m experiments.testbed.message_cost [--quick]        # needs root

Messages of several sizes go from one device to another through Ray under TLS over 50 Mbit/s, first with whole cores,
then with the shares of the measured experiments. Frames come from the driver (`entry`), results go back to it
(`result`), and calls carry nothing (`call`): these are of no plan, and cost the device's processor too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from downset.distributed.profiling.measure import Effort, Measuring
from downset.distributed.serving.cluster import cluster
from experiments.rows import save_rows
from experiments.testbed.bed import Bed, TestbedError
from experiments.testbed.settings import CLUSTERS, Setting

NAME = "testbed_messages"
_SIZES = (16 << 10, 512 << 10, 2 << 20)
Spent = Callable[[Callable[[], object], int], tuple[list[float], float]]
"""(what is done, how often) -> by device, milliseconds of processor each time; of the clock."""


def rows(bed: Bed, at: Measuring, *, quick: bool) -> list[dict[str, Any]]:
    """Milliseconds of processor a message at both ends, and of the clock."""

    def spent(work: Callable[[], object], count: int) -> tuple[list[float], float]:
        before, begun = [bed.used_s(device) for device in range(4)], time.monotonic()
        for _ in range(count):
            work()
        taken = time.monotonic() - begun
        used = [bed.used_s(device) - one for device, one in enumerate(before)]
        return [round(1e3 * one / count, 2) for one in used], round(1e3 * taken / count, 1)

    time.sleep(3)  # what began with the actors ends first
    rest, _ = spent(lambda: time.sleep(1), 5 if quick else 20)
    found: list[dict[str, Any]] = [{"what": "at rest", "cpu_ms_per_s": rest, "load": round(os.getloadavg()[0], 2)}]
    for shares in (False, True):
        if shares:
            bed.throttle()
        for pair in ((0, 1), (2, 3)) if shares else ((0, 1),):
            for nbytes in _SIZES:
                at.messages([pair], nbytes)
                count = (10 if quick else 40) if nbytes < 1 << 18 else (4 if quick else 12)
                used, taken = spent(lambda pair=pair, nbytes=nbytes: at.messages([pair], nbytes), count)
                row = {"what": "message", "shares": shares, "pair": pair, "bytes": nbytes, "ms": taken}
                row |= {"sender_cpu_ms": used[pair[0]], "receiver_cpu_ms": used[pair[1]]}
                found.append(row | {"load": round(os.getloadavg()[0], 2)})
        found += _with_driver(at, spent, shares=shares, quick=quick)
    bed.release()
    return found


def _with_driver(at: Measuring, spent: Spent, *, shares: bool, quick: bool) -> list[dict[str, Any]]:
    """Milliseconds of the first device's processor: it is on the driver's machine, and its link carries nothing."""
    import ray

    found: list[dict[str, Any]] = []
    for what, nbytes in (("call", 0), *((what, nbytes) for what in ("entry", "result") for nbytes in _SIZES)):

        def work(what: str = what, nbytes: int = nbytes) -> None:
            if what == "call":
                at.all("ready")
            elif what == "entry":
                at.all("take", [ray.put(np.zeros(nbytes, np.uint8))])
            else:
                at.all("give", nbytes)

        work()
        used, taken = spent(work, (10 if quick else 40) if nbytes < 1 << 18 else (4 if quick else 12))
        found.append(
            {"what": what, "shares": shares, "bytes": nbytes, "device_cpu_ms": used[0], "ms": taken,
             "load": round(os.getloadavg()[0], 2)}
        )  # fmt: skip
    return found


def drive(orders: dict[str, Any]) -> None:
    from experiments.testbed.drive import wait_for_devices

    bed, names = Bed(orders["prefix"], tuple(orders["cpu_shares"])), orders["names"]
    with cluster(names, head=orders["head"], keys=orders["keys"], store_bytes=256 << 20, threads=1) as fleet:
        wait_for_devices(fleet, names)
        with Measuring(names, Effort()) as at, (Path(orders["out"]) / "rows.jsonl").open("w") as file:
            for row in rows(bed, at, quick=orders["quick"]):
                file.write(json.dumps(row) + "\n")


def main() -> None:
    from experiments.testbed.measured import Work, run

    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        drive(json.loads(Path(sys.argv[1]).read_text()))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer messages, nothing written")
    options = parser.parse_args()
    try:
        found = run(Setting(CLUSTERS[4], "links"), Work(quick=options.quick, driver="experiments.testbed.message_cost"))
    except TestbedError as error:
        sys.exit(f"testbed: {error}")
    for row in found:
        print(row)
    if found and not options.quick:
        print("written:", save_rows(NAME, found))


if __name__ == "__main__":
    main()
