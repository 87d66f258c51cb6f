"""Committed rows: an experiment writes what it printed, and prints the committed rows where its inputs are absent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["load_rows", "rest_of_rows", "save_rows"]

FOLDER = Path(__file__).resolve().parent / "results"
Row = dict[str, Any]


def save_rows(name: str, rows: Sequence[Row], *, by: Sequence[str] = ()) -> Path:
    """Write the rows to experiments/results/NAME.json, one row a line.

    With the columns `by` that tell rows apart, what is committed and not among these stays, each row in its place.
    """
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    kept = {_key(row, by): row for row in load_rows(name)} if by else {}
    whole = list({**kept, **{_key(row, by): row for row in rows}}.values()) if by else rows
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in whole) + "\n]\n")
    return path


def load_rows(name: str) -> list[Row]:
    """The committed rows of an experiment; empty where there are none."""
    path = FOLDER / f"{name}.json"
    return list(json.loads(path.read_text())) if path.exists() else []


def rest_of_rows(name: str, rows: Sequence[Row], *, by: Sequence[str]) -> list[Row]:
    """The committed rows that this run did not make again; the columns `by` tell rows apart."""
    fresh = {_key(row, by) for row in rows}
    return [row for row in load_rows(name) if _key(row, by) not in fresh]


def _key(row: Row, by: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.get(column) for column in by)
