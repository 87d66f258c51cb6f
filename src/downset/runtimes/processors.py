"""The instructions of this processor, by which it is told whether a file that was made for one runs here."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["processor"]


def processor(listing: Path = Path("/proc/cpuinfo")) -> str:
    """A digest of the instructions that this processor has, as Linux lists them; empty where it does not."""
    try:
        lines = listing.read_text().splitlines()
    except OSError:
        return ""
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return hashlib.sha256(" ".join(sorted(flags)).encode()).hexdigest()[:16] if flags else ""
