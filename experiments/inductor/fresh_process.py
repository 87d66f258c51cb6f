"""Measures one way of one network in a process of its own, with compiled code of its own under build/inductor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from experiments.rows import Row

__all__ = ["CACHES", "check_losses", "row_of_process"]

CACHES = Path(__file__).resolve().parents[2] / "build" / "inductor"
TOLERANCE = 1e-3
"""The largest relative difference of losses; with norms of convolutions they agree to three digits."""


def row_of_process(module: str, network: str, way: str, *options: str, fresh: bool, caches: str = "") -> Row:
    """The row that a module of this package prints. `fresh`: without what was compiled there before. `caches`: the
    folder of compiled code, where it is not the network's and the way's own."""
    folder = CACHES / caches if caches else CACHES / network / way.replace(" ", "_")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    # One compile thread, so that compilers are children of the process that is measured.
    settings = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.inductor.{module}", network, way, *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **settings},
    )
    if done.returncode:
        raise SystemExit(f"{network}, {way}: {done.stderr[-2000:]}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def check_losses(row: Row, eager: Row) -> None:
    if any(abs(a - b) > TOLERANCE * abs(b) for a, b in zip(row["losses"], eager["losses"], strict=True)):
        how = row["rung"] if "rung" in row else row["way"]
        raise SystemExit(f"{row['network']}: losses differ: {how} {row['losses']}, eager {eager['losses']}")
