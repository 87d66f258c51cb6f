"""Exact shared objects: the least total size, proven, by a best-first search over the objects' sizes.

Source: our own. The memory-management paper gives heuristics (section 4) and the bound the search starts from, the
    positional maxima (section 4.1); integer programs need seconds to minutes for the same instances.
Names: objects are chosen largest first; the *threshold* of objects s1 ≥ … ≥ sj is the largest record size above which
    they hold all records and at which they no longer do, so that the next object is at least that large. Every choice
    costs its sizes plus the remaining positional maxima at least: the bound of the search.
Complexity: a search state is until when each object is busy while time goes by, so the work is exponential in the
    number of records live at once, not in their number. Stops at the time or state limit with the bound reached.
Deviations: none. Starts from the portfolio, so it is never above `best`.
"""

from __future__ import annotations

from collections.abc import Sequence

from downset import native
from downset.arenas.best import best_objects, quick_objects
from downset.arenas.native_form import native_records
from downset.arenas.objects_fit import total_bytes
from downset.arenas.ties import TiesName, check_ties
from downset.budget import Clock
from downset.memory.bounds import positional_maxima
from downset.memory.records import Record
from downset.methods import check_whole
from downset.results.plans import Found, StoppedBy

__all__ = ["exact_objects"]

_MOST_RECORDS = 5000  # the search nests one call a record
_STATES = 5_000_000  # about half a gigabyte of remembered failures


def exact_objects(
    records: Sequence[Record],
    *,
    clock: Clock,
    ties: TiesName = "tflite",
    capacity: int | None = None,
) -> Found:
    """Objects of least total; proven unless a limit ends the search, then with the bound it had reached. With
    `capacity`, the portfolio's where they fit it: then nothing is searched."""
    if capacity is not None:
        check_whole("capacity", capacity)
    check_ties(ties)
    start = quick_objects(records, clock)
    if start.proven or (capacity is not None and total_bytes(records, start.solution) <= capacity):
        return start
    if len(records) > _MOST_RECORDS:
        return best_objects(records, clock=clock)
    total = total_bytes(records, start.solution)
    seconds, state_limit = clock.native(_STATES)
    object_of, bound, states = native.compiled.shared_objects(
        native_records(records), positional_maxima(records), total, seconds, state_limit
    )
    clock.count(states)
    solution = tuple(object_of) if object_of else start.solution
    if bound < total_bytes(records, solution):  # a limit ended the search: the rest of the portfolio may do better
        solution = min(
            solution, best_objects(records, clock=clock).solution, key=lambda objects: total_bytes(records, objects)
        )
    stopped_by: StoppedBy = ""
    if bound < total_bytes(records, solution):
        stopped_by = "time" if states < state_limit else "memory" if state_limit == _STATES else "work"
    return Found(solution, bound, not stopped_by, states, stopped_by)
