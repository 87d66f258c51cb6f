"""The one policy of what ships by default: the least memory at about the same speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from downset.results.sessions import Latency

__all__ = ["LARGER", "LARGER_MAPPED", "NO_LIMITS", "SLOWER", "Policy", "Standing"]

SLOWER = 1.1
"""The time of a run, in times of the original's, that a file may take without being asked."""
LARGER = 1.25
"""The bytes on disk, in times of the original's, that a file may take without being asked."""
LARGER_MAPPED = 2.2
"""`LARGER` where a runtime maps the bytes from the file and leaves them clean: they take no memory that the system
cannot take back."""

Standing = Literal["within", "near", "above"]
"""Where a file stands to the limit of time: surely within, or surely above it, or neither is known."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits of a file, against the original: `slower` times the processor time of a run, `larger` times the bytes
    on disk; None: no limit. Of the files within both, the one that takes least memory ships. A larger limit never
    leaves out more."""

    slower: float | None = SLOWER
    larger: float | None = LARGER

    def standing(self, latency: Latency | None) -> Standing:
        """Where a file with this latency stands, by the ends of the confidence interval of its ratio. What was not
        timed is not known to keep a limit."""
        if self.slower is None:
            return "within"
        if latency is None:
            return "near"
        if latency.ratio_high <= self.slower:
            return "within"
        return "above" if latency.ratio_low > self.slower else "near"

    def is_near(self, latency: Latency) -> bool:
        """Whether there is a limit of time, and it is near the ratio."""
        return self.slower is not None and latency.is_near(self.slower)

    def keeps_size(self, before: int, after: int) -> bool:
        """Whether files of `after` bytes may take the place of those of `before` bytes."""
        return self.larger is None or after <= max(self.larger * before, before)


NO_LIMITS = Policy(None, None)
