"""Rates and shares that the testbed really gives, against those that were set.

    python -m experiments.testbed.shaping [--quick]

Flows are plain TCP between disjoint pairs of devices: on links they do not meet, in a shared cell they share one rate.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.testbed.bed import Bed, TestbedError, open_bed
from experiments.testbed.driven import error_in_a_line

ROOT = Path(__file__).resolve().parents[2]
_PORT = 7000


def flows_mbps(bed: Bed, pairs: list[tuple[int, int]], nbytes: int) -> tuple[list[float], float]:
    """Mbit/s of flows that are started together, one for each pair (from, to); and of all of them, from the first byte
    of any to the last."""
    receivers = []
    for number, (_, to) in enumerate(pairs):
        receivers.append(_start(bed, to, "receive", bed.address(to), str(_PORT + number)))
    for receiver in receivers:
        assert receiver.stdout is not None
        receiver.stdout.readline()
    senders = [
        _start(bed, sender, "send", bed.address(to), str(_PORT + number), str(nbytes))
        for number, (sender, to) in enumerate(pairs)
    ]
    spans = []
    for receiver in receivers:
        said, _ = receiver.communicate(timeout=300)
        taken, begun, ended = said.split()
        if int(taken) != nbytes:
            raise TestbedError(f"{taken.decode()} of {nbytes} bytes came")
        spans.append((float(begun), float(ended)))
    for sender in senders:
        sender.communicate(timeout=60)
    megabits = nbytes * 8 / 1e6
    whole = max(ended for _, ended in spans) - min(begun for begun, _ in spans)
    return [megabits / (ended - begun) for begun, ended in spans], megabits * len(spans) / whole


def shares(bed: Bed, seconds: float) -> list[float]:
    """The share of one core that a busy process gets on each device while all are busy."""
    bed.throttle()
    running = [_start(bed, device, "spin", str(seconds)) for device in range(len(bed.cpu_shares))]
    measured = []
    for process in running:
        said, _ = process.communicate(timeout=300)
        used, clock = map(float, said.split())
        measured.append(used / clock)
    bed.release()
    return measured


def _start(bed: Bed, device: int, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "experiments.testbed.traffic", *words]
    return bed.start(device, command, env={**os.environ, "PYTHONPATH": str(ROOT)}, output=subprocess.PIPE)


def rows(options: Namespace) -> Iterator[Row]:
    with error_in_a_line():
        yield from _rates(quick=options.quick)
        told = [0.22, 0.22, 0.15, 0.15, 0.12, 0.12, 0.08, 0.08]
        with open_bed(told, rate_mbps=50.0, medium="shared") as bed:
            got = shares(bed, 2.0 if options.quick else 6.0)
    yield {"what": "share", "told": told, "got": [round(one, 3) for one in got], "load": os.getloadavg()[0]}


def _rates(*, quick: bool) -> Iterator[Row]:
    mediums: tuple[Literal["links", "shared"], ...] = ("links", "shared")
    for medium in mediums:
        for rate in (50.0,) if quick else (10.0, 50.0):
            with open_bed([0.1] * 4, rate_mbps=rate, medium=medium) as bed:
                for pairs in ([(0, 1)], [(0, 1), (2, 3)]):
                    got, _ = flows_mbps(bed, pairs, int(rate * 1e6 / 8 * (1 if quick else 4)))
                    row = {"what": "rate", "medium": medium, "told_mbps": rate, "flows": len(pairs)}
                    row |= {"mbps": [round(one, 2) for one in got], "together_mbps": round(sum(got), 2)}
                    yield row | {"dropped_packets": bed.dropped_packets(), "load": round(os.getloadavg()[0], 2)}


EXPERIMENT = Experiment(
    "testbed_shaping",
    rows,
    fields("what", "medium", "told_mbps", "flows", "mbps", "together_mbps", "dropped_packets", "told", "got", "load"),
    quick="shorter flows, nothing written",
)


if __name__ == "__main__":
    run(EXPERIMENT)
