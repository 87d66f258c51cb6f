"""ExecuTorch with the tests' own torch: each version in a folder of build/, installed once from locks/, by hash.

Its metadata asks for a torch of its own, so pip installs without dependencies; torch and all else that it imports come
from the environment that runs the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["VERSIONS", "executorch_folder"]

VERSIONS = ("1.4.1", "1.5.1")
ROOT = Path(__file__).resolve().parents[1]


def executorch_folder(version: str) -> Path | None:
    """A folder for PYTHONPATH; None where no package index answers, or has a wheel for this platform. Raises
    RuntimeError where pip fails for another reason."""
    lock = ROOT / "locks" / f"executorch-{version}.txt"
    home = ROOT / "build" / "executorch"
    home.mkdir(parents=True, exist_ok=True)
    folder, wanted = home / version, hashlib.sha256(lock.read_bytes()).hexdigest()
    done = folder / "locked"
    with (home / f"{version}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if done.exists() and done.read_text() == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--require-hashes"]
        found = subprocess.run(
            [*command, "--only-binary", ":all:", "--target", str(folder), "-r", str(lock)],
            capture_output=True,
            text=True,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        if found.returncode:
            if "No matching distribution found" in found.stderr:
                return None
            raise RuntimeError(f"ExecuTorch {version} was not installed: {found.stderr[-2000:]}")
        done.write_text(wanted)
    return folder
