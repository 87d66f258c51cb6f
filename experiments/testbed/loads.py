"""Periods by what processors and the network do for a frame, where plans count a message at its ends for all its time.

A message takes both ends' processors for a part of its time, and the network for its bytes. What it costs a processor
is measured (`message_cost`); frames that arrive from the driver, results that go back to it and the calls of
computations cost as well, and are in no plan. The longest of these loads is the period that devices could reach if
nothing ever waited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.rows import load_rows
from experiments.testbed.message_cost import NAME as MESSAGES
from experiments.testbed.settings import CLUSTERS, EQUAL, RATE_MBPS, Setting
from experiments.testbed.shaping import NAME as SHAPING

__all__ = ["Costs", "loads_s", "measured_costs"]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a whole core: so many a message, and so many a byte."""

    each_s: float
    byte_s: float

    def of(self, messages: int, nbytes: int) -> float:
        return messages * self.each_s + nbytes * self.byte_s


@dataclass(frozen=True, slots=True)
class Costs:
    """`call_s`: of a computation's call. `network_bytes_s`: bytes of data a second that a link or the cell carries."""

    sender: Line
    receiver: Line
    entry: Line
    result: Line
    call_s: float
    network_bytes_s: float


def measured_costs() -> Costs | None:
    """The costs by the committed rows; None where they have none of entries and results."""
    rows = _beyond_rest(load_rows(MESSAGES))
    calls = [row["device_cpu_ms"] for row in rows if row["what"] == "call"]
    rates = [
        row["together_mbps"]
        for row in load_rows(SHAPING)
        if row["what"] == "rate" and row["told_mbps"] == RATE_MBPS and row["flows"] == 1
    ]
    if not calls or not rates:
        return None
    return Costs(
        _line(rows, "message", "sender_cpu_ms"), _line(rows, "message", "receiver_cpu_ms"),
        _line(rows, "entry", "device_cpu_ms"), _line(rows, "result", "device_cpu_ms"), 1e-3 * min(calls),
        min(rates) * 1e6 / 8,
    )  # fmt: skip


def _beyond_rest(rows: Sequence[Row]) -> list[Row]:
    """The rows without what a node at rest takes in the same time: rates of computing are measured beside that."""
    rest = [float(np.mean(row["cpu_ms_per_s"])) * 1e-3 for row in rows if row["what"] == "at rest"]
    found: list[Row] = []
    for row in rows:
        cpu = {name: value - rest[0] * row["ms"] for name, value in row.items() if name.endswith("_cpu_ms")}
        found.append({**row, **cpu})
    return found


def _line(rows: Sequence[Row], what: str, column: str) -> Line:
    """Least squares relative to what was measured."""
    samples = [(row["bytes"], 1e-3 * row[column]) for row in rows if row["what"] == what]
    seconds = np.array([one for _, one in samples])
    work = np.array([[1.0, nbytes] for nbytes, _ in samples])
    found, *_ = np.linalg.lstsq(work / seconds[:, None], np.ones(len(seconds)), rcond=None)
    return Line(float(found[0]), float(found[1]))


def loads_s(row: Row, costs: Costs) -> tuple[list[float], float] | None:
    """(seconds of each device's processor for a frame, those of the network); None for rows that do not say what was
    sent. A link's load is the busier way of the busiest one."""
    devices = row["by_device"]
    if any("sent_bytes" not in one for one in devices):
        return None
    shares = _shares(row)
    processors = []
    for one in devices:
        beside = costs.sender.of(one["sends"], one["sent_bytes"])
        beside += costs.receiver.of(one["receives"], one["received_bytes"])
        beside += costs.entry.of(1, one["entry_bytes"]) if one["entry_bytes"] else 0.0
        beside += costs.result.of(1, one["result_bytes"]) if one["result_bytes"] else 0.0
        beside += costs.call_s if one["planned_computing_s"] else 0.0
        processors.append(one["planned_computing_s"] + beside / shares[one["name"]])
    sent = [one["sent_bytes"] for one in devices]
    received = [one["received_bytes"] for one in devices]
    carried = sum(sent) if row["medium"] == "shared" else max(*sent, *received)
    return processors, carried / costs.network_bytes_s


def _shares(row: Row) -> dict[str, float]:
    """By a device's name: its share of a core."""
    ghz = (EQUAL if row["equal"] else CLUSTERS)[row["devices"]]
    shares = Setting(ghz, row["medium"]).cpu_shares
    return {f"d{number}@{one:g}": share for number, (one, share) in enumerate(zip(ghz, shares, strict=True))}
