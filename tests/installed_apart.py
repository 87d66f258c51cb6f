"""Installs packages that use the tests' own torch: each set once, into a folder of build/, from locks/, by hash.

Their metadata asks for a torch of its own, or for much that the tests do not use, so pip installs without dependencies;
torch and all else that they import come from the environment that runs the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["VERSIONS", "executorch_folder", "trainers_folder"]

VERSIONS = ("1.4.1", "1.5.1")
"""Those of ExecuTorch."""
ROOT = Path(__file__).resolve().parents[1]


def executorch_folder(version: str) -> Path | None:
    """The folder of one version of ExecuTorch, as `_folder` says."""
    return _folder(f"executorch-{version}", ROOT / "build" / "executorch" / version)


def trainers_folder() -> Path | None:
    """The folder of transformers, Lightning, accelerate and lion-pytorch, as `_folder` says."""
    return _folder("trainers", ROOT / "build" / "trainers")


def _folder(name: str, folder: Path) -> Path | None:
    """A folder for PYTHONPATH with what a lock names; None where no package index answers, or has a wheel for this
    platform. Raises RuntimeError where pip fails for another reason."""
    lock = ROOT / "locks" / f"{name}.txt"
    folder.parent.mkdir(parents=True, exist_ok=True)
    wanted, done = hashlib.sha256(lock.read_bytes()).hexdigest(), folder / "locked"
    with folder.with_name(f"{folder.name}.lock").open("w") as held:
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
            raise RuntimeError(f"{name} was not installed: {found.stderr[-2000:]}")
        done.write_text(wanted)
    return folder
