"""Committed rows: an experiment writes what it printed, and prints the committed rows where its inputs are absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["load_rows", "save_rows"]

FOLDER = Path(__file__).resolve().parent / "results"


def save_rows(name: str, rows: list[dict[str, Any]]) -> Path:
    """Write the rows to experiments/results/NAME.json, one row a line."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    return path


def load_rows(name: str) -> list[dict[str, Any]]:
    """The committed rows of an experiment; empty where there are none."""
    path = FOLDER / f"{name}.json"
    return list(json.loads(path.read_text())) if path.exists() else []
