"""Libraries that start threads when they are imported, imported without these."""

from __future__ import annotations

import os
from importlib import import_module

__all__ = ["import_numpy"]


def import_numpy() -> None:
    """Import numpy without threads for products of matrices, which are small here: to start them takes longer than the
    rest of the import, and a process that has threads cannot be forked. Libraries that are imported later find the
    environment as it was."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import_module("numpy")
    if before is None:
        del os.environ["OPENBLAS_NUM_THREADS"]
    else:
        os.environ["OPENBLAS_NUM_THREADS"] = before
