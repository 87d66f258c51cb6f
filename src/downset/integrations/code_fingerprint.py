"""A hash of the code that decides how a graph is compiled, for the caches of PyTorch's compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from downset import native

__all__ = ["code_fingerprint"]


def code_fingerprint(files: Iterable[Path]) -> str:
    """A hash of downset's version, of these files, of the planners of orders and of the compiled searches. If any
    changes, cached results are not used again."""
    digest = hashlib.sha256(version("downset").encode())
    for path in [*files, *sorted((Path(__file__).parents[1] / "orders").glob("*.py"))]:
        digest.update(path.read_bytes())
    digest.update(Path(native.compiled.__file__).read_bytes())
    return digest.hexdigest()[:16]
