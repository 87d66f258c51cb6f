"""A hash of the code that decides how a graph is compiled, for the caches of PyTorch's compiler."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

from downset import native

__all__ = ["code_files", "code_fingerprint"]


def code_files() -> list[Path]:
    """The files of the integrations, of the planners of orders, of liveness and of the search for what runs again."""
    package = Path(__file__).parents[1]
    patterns = ("integrations/*.py", "memory/*.py", "orders/*.py", "rewrites/recompute_*.py")
    return [path for pattern in patterns for path in sorted(package.glob(pattern))]


@cache
def code_fingerprint() -> str:
    """A hash of downset's version, of `code_files` and of the compiled searches. If any changes, cached results are not
    used again."""
    digest = hashlib.sha256(version("downset").encode())
    for path in [*code_files(), Path(native.compiled.__file__)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
