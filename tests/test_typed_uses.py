"""A user's program is checked against the types that downset states; part of `make lint`, as mypy is."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import downset as ds

ROOT = Path(__file__).resolve().parents[1]
USES = ROOT / "tests" / "typed_uses.py"
CACHE = ROOT / "build" / "mypy"
"""What mypy keeps: without it, it reads the whole package and numpy again, for ten seconds."""


def test_mypy_finds_a_wrong_name_and_a_wrong_keyword_and_nothing_else(tmp_path):
    """As a user's program is checked: strict, without this repository's settings."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={CACHE}", str(USES)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        cwd=tmp_path,
    )
    lines = USES.read_text().splitlines()
    wrong = [at for at, line in enumerate(lines, 1) if "plan_everything" in line or "methd" in line]
    assert len(wrong) == 2
    found = re.findall(r"typed_uses\.py:(\d+): error: (.*)", done.stdout)
    assert [(int(at), said.split(";")[0]) for at, said in found] == [
        (wrong[0], 'Module has no attribute "plan_everything"  [attr-defined]'),
        (wrong[1], 'Unexpected keyword argument "methd" for "plan_order"'),
    ], done.stdout + done.stderr


def test_the_uses_name_every_public_function():
    used = set(re.findall(r"\bds\.(\w+)", USES.read_text()))
    functions = {name for name in ds.__all__ if inspect.isfunction(getattr(ds, name))}
    assert functions - used <= {"lifetimes", "order_problem", "peak_bytes", "plan_stages", "read_records"}
