"""ExecuTorch itself, in both versions that are stated: each in a process of its own, for one process loads one version.

What is checked stands in real_executorch.py. test_executorch_specs.py and test_executorch_order.py need no ExecuTorch.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import LONG
from tests.installed_apart import VERSIONS, executorch_folder

CASES = Path(__file__).with_name("real_executorch.py")
NEWEST = "delegates", "views_and_parts", "sizes_that_change", "suite_keeps"
"""Parts of the names of tests that a short run has in the newest version alone."""


@pytest.mark.parametrize("version", VERSIONS)
def test_it_runs_what_was_ordered_and_planned(version):
    folder = executorch_folder(version)
    if folder is None:
        pytest.skip(f"no package index here has ExecuTorch {version} for this platform")
    few = [] if LONG or version == VERSIONS[-1] else ["-k", f"not ({' or '.join(NEWEST)})"]
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *few, str(CASES)],
        cwd=CASES.parents[2],
        env={**os.environ, "PYTHONPATH": paths, "EXECUTORCH": version},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout
