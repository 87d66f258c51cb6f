"""Tells where a training step in several graphs holds more than its limit: each of them was planned by itself.

Only a processor's allocations are watched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from downset.integrations.call_workspaces import most_allocated
from downset.integrations.planned_sizes import form_and_sizes
from downset.integrations.user_warning import warn_user
from downset.text import format_bytes

__all__ = ["MeasuredLimit"]

_MOST_SIZES = 8
"""The most sizes of batches that are watched."""


class MeasuredLimit:
    """Holds the steps of one training loop against a limit of bytes."""

    def __init__(self, peak_bytes: int) -> None:
        self._peak_bytes = peak_bytes
        self._calls = Counter[Any]()
        self._told = False

    def watched(self, step: Callable[[], Any], batch: Any) -> Any:
        """Run a step on a batch; the third one of each size is watched: the first compiles, and in the second one
        DistributedDataParallel moves its buckets."""
        import torch

        sizes = form_and_sizes(batch)
        if self._told or (sizes not in self._calls and len(self._calls) >= _MOST_SIZES):
            return step()
        self._calls[sizes] += 1
        if self._calls[sizes] != 3 or torch.autograd._profiler_enabled():
            return step()
        result, most = most_allocated(step)
        if most > self._peak_bytes:
            self._told = True
            limit = format_bytes(self._peak_bytes)
            warn_user(
                f"this training step was measured to hold {format_bytes(most)} B, above the {limit} B that were asked "
                f"for, which downset plans for each of its graphs: peak_bytes={self._peak_bytes**2 // most} may keep "
                f"the step within {limit} B"
            )
        return result
