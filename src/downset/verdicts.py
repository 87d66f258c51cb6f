"""Whether a network fits a memory limit, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["RamVerdict"]


@dataclass(frozen=True, slots=True)
class RamVerdict:
    """`needed_bytes`: what ships takes, measured where its runtime was asked, and what the runtime keeps beside the
    arena included then. `least_bytes`: what every order of the network takes, by the same measure. "does not fit" is
    proven: `least_bytes` is above the limit."""

    state: Literal["fits", "does not fit", "not known"]
    limit_bytes: int
    needed_bytes: int
    least_bytes: int
    reason: str = ""

    @property
    def free_bytes(self) -> int:
        """Bytes that the limit leaves; negative where it is too low."""
        return self.limit_bytes - self.needed_bytes
