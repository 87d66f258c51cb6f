"""Strip packing by best fit: fill the lowest stretch of time with the longest-lived tensor that fits into it.

Source: Sekiyama et al. 2018, "Profile-guided memory optimization for deep neural networks", as compared in "Efficient
    Memory Management for Deep Neural Net Inference", table 2.
Names: the strip's width is time, its height the arena; a *segment* is a stretch of time with the height reached there.
Complexity: O(n) segments visited, O(log n) each as a rule.
Deviations: the choice is by longest lifetime only, ties to the earliest produced, which gives the paper's figures;
    equal segments are visited from the left. The paper does not know alignment, pins or gaps: a record is raised to
    its alignment and above the pinned records in its way, and its gaps are left unused.
The search is native/arenas/strip.hpp; tests/arenas/oracles/strip.py is its plain form.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset import native
from downset.arenas.gaps import completed
from downset.arenas.native_form import native_records
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.records import Record
from downset.results.plans import Found

__all__ = ["strip_packing"]


def strip_packing(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
    """Place records by best fit into a strip."""
    check_ties(ties)
    offsets = native.compiled.fill_strip(native_records(records), clock.timed().left_s())
    return completed(records, offsets, clock)
