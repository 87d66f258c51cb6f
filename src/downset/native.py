"""The compiled module, where it is built."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from downset.errors import UnsupportedError

__all__ = ["native_module"]


def native_module() -> Any:
    """The compiled module. There is no silent fallback: raises UnsupportedError that says how to get it."""
    try:
        _native = import_module("downset._native")
    except ImportError as error:
        raise UnsupportedError(
            f"the native module is not built ({error}); reinstall downset where a C++20 compiler is, or pass "
            "engine='python'"
        ) from None
    return _native
