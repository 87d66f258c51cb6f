"""Processes that an experiment starts, each the leader of a session of its own, and what they print at their end."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import IO, Any

__all__ = ["last_line", "stop"]


def stop(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its children, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(printed: IO[str]) -> str:
    """The last line that is not blank of what was printed into a file, at most 300 characters of it."""
    printed.seek(0)
    lines = [line.strip() for line in printed if line.strip()]
    return lines[-1][:300] if lines else "nothing printed"
