"""Optional libraries, imported when something first needs them; a missing one is an error that names its extra."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from downset.errors import UnsupportedError

__all__ = ["optional_library", "torch_library"]


def optional_library(module: str, *, what: str, extra: str) -> Any:
    """The module of that name. Where it is missing, raises UnsupportedError: `what` needs it, and `extra` installs
    it."""
    try:
        return import_module(module)
    except ImportError:
        raise UnsupportedError(f"{what} needs an extra: pip install 'downset[{extra}]'") from None


@cache
def torch_library(what: str = "executing graphs") -> Any:
    """The torch module. Raises UnsupportedError where it is missing."""
    return optional_library("torch", what=what, extra="torch")
