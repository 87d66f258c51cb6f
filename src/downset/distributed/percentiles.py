"""Percentiles of latencies, as reports of simulated and of running pipelines give them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["PERCENTILES", "percentiles"]

PERCENTILES = (0.5, 0.9, 0.99, 1.0)
"""The shares of frames: half of them, nine in ten, 99 in a hundred, and all."""


def percentiles(latencies_s: Sequence[float]) -> tuple[float, float, float, float] | None:
    """The least of these latencies that each share of `PERCENTILES` does not exceed; None where there are none."""
    if not latencies_s:
        return None
    half, most, nearly_all, longest = np.quantile(latencies_s, PERCENTILES, method="inverted_cdf")
    return float(half), float(most), float(nearly_all), float(longest)
