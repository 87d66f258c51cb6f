"""Limits of time and memory of the processes that parse and run models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from downset.errors import UsageError
from downset.text import format_bytes

__all__ = ["OPERATOR_S", "PARSING_S", "RUNNING_S", "Limits", "limits", "machine_bytes", "worker_bytes", "worker_s"]

PARSING_S = 10.0
"""The smallest time limit of a parser, in seconds. Starting Python and importing a library take part of it."""
RUNNING_S = 30.0
"""The smallest time limit of a run in another project's runtime, in seconds."""
OPERATOR_S = 0.005
"""Seconds by which the limits of workers grow for each operator of a network: what runtimes do while they load a file
grows faster than its operators."""
_LEAST_BYTES = 1 << 28
"""Python and numpy alone take about this much address space."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of every worker of a command. `time_s` None: PARSING_S or RUNNING_S. `memory_bytes` None: half of the
    machine's memory. It limits address space. CUDA reserves far more, so code that uses CUDA runs in no worker.
    `operators`: of the network that workers open, where it is known."""

    time_s: float | None = None
    memory_bytes: int | None = None
    operators: int = 0


_LIMITS: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039  frozen


@contextlib.contextmanager
def limits(
    *, time_s: float | None = None, memory_bytes: int | None = None, operators: int | None = None
) -> Iterator[None]:
    """Set the limits of workers inside this context; None keeps the present limit. Raises UsageError for a memory limit
    that is too small to start a worker."""
    if memory_bytes is not None and memory_bytes < _LEAST_BYTES:
        raise UsageError(f"a worker needs at least {format_bytes(_LEAST_BYTES)} bytes of memory to start")
    values: dict[str, Any] = {"time_s": time_s, "memory_bytes": memory_bytes, "operators": operators}
    token = _LIMITS.set(replace(_LIMITS.get(), **{name: value for name, value in values.items() if value is not None}))
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
    """Seconds that a call in a worker may take: the time limit, or where that is more `floor_s` and `OPERATOR_S` for
    each operator."""
    present = _LIMITS.get()
    return max(present.time_s or 0.0, floor_s + OPERATOR_S * present.operators)


def worker_bytes() -> int:
    """Bytes of address space that a worker may take."""
    return _LIMITS.get().memory_bytes or max(machine_bytes() // 2, _LEAST_BYTES)
