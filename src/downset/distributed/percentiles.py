"""Percentiles of latencies for reports of simulated and of running pipelines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["PERCENTILES", "percentiles"]

PERCENTILES = (0.5, 0.9, 0.99, 1.0)
"""The shares of frames: half, nine in ten, 99 in a hundred, and all."""


def percentiles(latencies_s: Sequence[float]) -> tuple[float, float, float, float] | None:
    """The least latencies that the shares of `PERCENTILES` do not exceed, in seconds; None for an empty list."""
    if not latencies_s:
        return None
    half, most, nearly_all, longest = np.quantile(latencies_s, PERCENTILES, method="inverted_cdf")
    return float(half), float(most), float(nearly_all), float(longest)
