"""Loops that other packages own, from the packages themselves: a compiled step leaves the weights, losses, norms and
rates of their own loop. They run in one process of their own, as graphs without generated code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed_apart import trainers_folder

ROOT = Path(__file__).resolve().parents[2]
NEAR = 1e-6


def test_trainers_with_a_compiled_step_end_where_their_own_loops_end():
    folder = trainers_folder()
    if folder is None:
        pytest.skip("no package index here has the trainers for this platform")
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ran = subprocess.run(
        [sys.executable, "-m", "experiments.inductor.loops"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"loop"')]
    loops = {row.pop("loop"): row for row in told}
    optimizers = loops.pop("optimizers")
    assert set(loops) == {"trainer", "lightning", "accelerate"}
    for name, row in {**loops, **optimizers}.items():
        near = 1e-3 if name == "torch.optim.Muon" else NEAR  # it computes in bfloat16
        assert (row["rung"], row["why"]) == ("one graph", ""), name
        assert row["weights differ by"] < near, name
    assert loops["trainer"]["logs differ by"] < NEAR
    theirs, ours = loops["lightning"]["steps and rate"]
    assert theirs == ours
    assert theirs[0] == 8
