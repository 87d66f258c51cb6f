"""The JSON forms of a row of a front and of a latency."""

from __future__ import annotations

from typing import Any

from downset.results import FrontRow
from downset.sessions import Latency

__all__ = ["front_json", "latency_json"]


def front_json(row: FrontRow) -> dict[str, Any]:
    """An item of `front` in docs/schemas/fit.json."""
    return {
        "segments": list(row.segments),
        "peak_bytes": row.peak_bytes,
        "arena_bytes": row.arena_bytes,
        "extra_macs": row.extra_macs,
        "extra_share": row.extra_share,
        "operators": row.operators,
        "file_bytes": row.file_bytes,
        "measured": dict(row.measured),
        "before_s": row.before_s,
        "after_s": None if row.latency is None else row.latency.run_s,
        "latency": latency_json(row.latency),
        "ships": row.ships,
    }


def latency_json(latency: Latency | None) -> dict[str, Any] | None:
    """`latency` in docs/schemas/fit.json."""
    if latency is None:
        return None
    return {
        name: getattr(latency, name) for name in ("run_s", "median_s", "rounds", "ratio", "ratio_low", "ratio_high")
    }
