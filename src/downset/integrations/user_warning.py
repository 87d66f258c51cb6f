"""Warns at the line of the user's program, from wherever a compiler calls us."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn_user"]

_BETWEEN = frozenset({"contextlib", "downset", "executorch", "functools", "torch"})
"""Packages between the user's line and ours."""


def warn_user(message: str) -> None:
    """Warn at the innermost line that is neither ours nor of the compiler that calls us."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
