"""The bytes that one operator's kernel asks of TFLite Micro's arena beyond what the reference kernel asks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes that one operator asks for: `buffers` of scratch, and what it keeps from one run to the next. `overruns`:
    whether its kernel may write beyond these buffers."""

    buffers: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    overruns: bool = False
