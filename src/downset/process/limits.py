"""Limits of time and memory of the processes that parse and run models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from downset.errors import UsageError
from downset.text import format_bytes

__all__ = ["PARSING_S", "RUNNING_S", "Limits", "limits", "machine_bytes", "worker_bytes", "worker_s"]

PARSING_S = 10.0
"""The smallest time limit of a parser, in seconds. Starting Python and importing a library take part of it."""
RUNNING_S = 30.0
"""The smallest time limit of a run in another project's runtime, in seconds."""
_LEAST_BYTES = 1 << 28
"""Python and numpy alone take about this much address space."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of every worker of a command. `time_s` None: PARSING_S or RUNNING_S. `memory_bytes` None: half of the
    machine's memory. It limits address space. CUDA reserves far more, so code that uses CUDA runs in no worker."""

    time_s: float | None = None
    memory_bytes: int | None = None


_LIMITS: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039  frozen


@contextlib.contextmanager
def limits(*, time_s: float | None = None, memory_bytes: int | None = None) -> Iterator[None]:
    """Set the limits of workers inside this context; None keeps the present limit. Raises UsageError for a memory limit
    that is too small to start a worker."""
    if memory_bytes is not None and memory_bytes < _LEAST_BYTES:
        raise UsageError(f"a worker needs at least {format_bytes(_LEAST_BYTES)} bytes of memory to start")
    before = _LIMITS.get()
    token = _LIMITS.set(
        Limits(
            before.time_s if time_s is None else time_s, before.memory_bytes if memory_bytes is None else memory_bytes
        )
    )
    try:
        yield
    finally:
        _LIMITS.reset(token)


def machine_bytes() -> int:
    """Bytes of memory of this machine, or of the container if that has less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as file:  # noqa: PTH123
        limits.append(int(file.read()))
    return min(limits)


def worker_s(floor_s: float) -> float:
    """Seconds that a call in a worker may take: the limit, or `floor_s` where that is more."""
    return max(_LIMITS.get().time_s or 0.0, floor_s)


def worker_bytes() -> int:
    """Bytes of address space that a worker may take."""
    return _LIMITS.get().memory_bytes or max(machine_bytes() // 2, _LEAST_BYTES)
