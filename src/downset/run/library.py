"""PyTorch, imported when a kernel first needs it."""

from __future__ import annotations

from functools import cache
from typing import Any

from downset.errors import UnsupportedError

__all__ = ["torch_library"]


@cache
def torch_library(what: str = "executing graphs") -> Any:
    """The torch module. Raises UnsupportedError naming the extra where it is missing."""
    try:
        import torch
    except ImportError:
        raise UnsupportedError(f"{what} needs an extra: pip install 'downset[torch]'") from None
    return torch
