"""Whole training steps as ordering problems: what Inductor would order, from the networks of experiments.inductor.

    python -m experiments.speed.steps.generate [NAME …]

writes NAME.json.gz here. Nothing is compiled: a compile ends once its nodes are scheduled.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from downset import OrderProblem, Storage

__all__ = ["load_steps", "save_step"]

FOLDER = Path(__file__).resolve().parent


def save_step(name: str, problem: OrderProblem) -> Path:
    """Predecessors by operator; storages as bytes, producers, consumers, whether kept. The same bytes every time."""
    storages = [[s.nbytes, s.producers, s.consumers, int(s.kept)] for s in problem.storages]
    content = json.dumps({"predecessors": problem.predecessors, "storages": storages}, separators=(",", ":"))
    path = FOLDER / f"{name}.json.gz"
    path.write_bytes(gzip.compress(content.encode(), mtime=0))
    return path


def load_steps() -> list[tuple[str, OrderProblem]]:
    """The committed ones, by name and size."""
    steps = []
    for path in FOLDER.glob("*.json.gz"):
        content = json.loads(gzip.decompress(path.read_bytes()))
        storages = tuple(Storage(n, tuple(p), tuple(c), bool(kept)) for n, p, c, kept in content["storages"])
        problem = OrderProblem(tuple(tuple(before) for before in content["predecessors"]), storages)
        steps.append((f"step_{path.name.removesuffix('.json.gz')}", problem))
    return sorted(steps, key=lambda item: len(item[1].predecessors))
