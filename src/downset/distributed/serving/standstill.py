"""The log of a standstill: what a pipeline waits for when nothing has ended for a while."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["STANDSTILL_S", "Standstill", "Wait", "function_of"]

STANDSTILL_S = 10.0
_MOST_WAITS = 6
"""How many waits one line of the log has at most, those that began first."""
_log = logging.getLogger("downset.serving")


@dataclass(frozen=True, slots=True)
class Wait:
    """A step of the pipeline that has begun and not ended. `device`: who is to blame when it takes more than
    `allowed_s`, and `blame` says for what; infinite where the device's own deadline holds."""

    what: str
    begun_s: float
    device: str
    allowed_s: float = float("inf")
    blame: str = ""


class Standstill:
    """Logs once for each time of `STANDSTILL_S` in which no step began or ended, and once when it is over."""

    def __init__(self) -> None:
        self._waits: tuple[Wait, ...] = ()
        self._since_s = 0.0
        self._said = False

    def look(self, waits: Sequence[Wait], now: float) -> None:
        """Compare `waits`, all that the pipeline waits for now, with what it waited for at the last call."""
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
    """The functions that a thread is in, the innermost first: three of them."""
    frame, names = sys._current_frames().get(thread.ident or 0), list[str]()
    while frame is not None and len(names) < 3:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return " of ".join(names)
