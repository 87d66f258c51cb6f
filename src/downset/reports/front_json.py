"""The JSON form of a row of a front."""

from __future__ import annotations

from typing import Any

from downset.results import FrontRow

__all__ = ["front_json"]


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
        "after_s": row.after_s,
        "ships": row.ships,
    }
