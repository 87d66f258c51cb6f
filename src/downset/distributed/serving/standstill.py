"""Logs what a pipeline waits for if no step has ended for a while."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["STANDSTILL_S", "Standstill", "Wait", "function_of"]

STANDSTILL_S = 10.0
_MOST_WAITS = 6
"""The most waits in one line of the log; those that began first are listed."""
_log = logging.getLogger("downset.serving")


@dataclass(frozen=True, slots=True)
class Wait:
    """A step of the pipeline that has begun and not ended. `device`: the device to blame if the step takes more than
    `allowed_s`, for the reason `blame`. `allowed_s` is infinite if the device has another deadline."""

    what: str
    begun_s: float
    device: str
    allowed_s: float = float("inf")
    blame: str = ""


class Standstill:
    """Logs once for each `STANDSTILL_S` seconds in which no step began or ended, and once when the pipeline goes on."""

    def __init__(self) -> None:
        self._waits: tuple[Wait, ...] = ()
        self._since_s = 0.0
        self._said = False

    def look(self, waits: Sequence[Wait], now: float) -> None:
        """Compare `waits`, the present waits of the pipeline, with those of the last call."""
        seen = tuple(sorted(waits, key=lambda wait: (wait.begun_s, wait.what)))
        if seen != self._waits:
            if self._said:
                _log.warning("the pipeline goes on after %.0f s", now - self._since_s)
            self._waits, self._since_s, self._said = seen, now, False
        elif seen and not self._said and now - self._since_s >= STANDSTILL_S:
            self._said = True
            listed = [f"{wait.what} (since {now - wait.begun_s:.0f} s)" for wait in seen[:_MOST_WAITS]]
            if len(seen) > _MOST_WAITS:
                listed.append(f"{len(seen) - _MOST_WAITS} more")
            _log.warning(
                "no step of the pipeline has ended for %.0f s; it waits for: %s", now - self._since_s, "; ".join(listed)
            )


def function_of(thread: threading.Thread) -> str:
    """The three innermost functions in which a thread is, the innermost first."""
    frame, names = sys._current_frames().get(thread.ident or 0), list[str]()
    while frame is not None and len(names) < 3:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return " of ".join(names)
