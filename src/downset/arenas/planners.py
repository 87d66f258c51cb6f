"""Planners of memory. Each is a function of records. To add one, add a file and a line here, and run
`python -m docs_site.tables`. That line (`Method`) and the signature state what the planner can do.

`ARENAS` place records at offsets in one arena; `SHARED` give each record an object that others use at other times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from downset.arenas.best import best, best_objects
from downset.arenas.check_records import check_objects, check_placement
from downset.arenas.equality import equality, equality_objects
from downset.arenas.exact import exact
from downset.arenas.exact_objects import exact_objects
from downset.arenas.from_objects import from_objects
from downset.arenas.gaps import height
from downset.arenas.greedy_by_breadth import greedy_by_breadth
from downset.arenas.greedy_by_size import greedy_by_size
from downset.arenas.greedy_in_order import greedy_in_order
from downset.arenas.litert_greedy import litert_greedy
from downset.arenas.local_search import local_search
from downset.arenas.min_cost_flow import min_cost_flow
from downset.arenas.naive import naive, naive_objects
from downset.arenas.objects_by_breadth import objects_by_breadth
from downset.arenas.objects_by_size import objects_by_size
from downset.arenas.objects_by_size_improved import objects_by_size_improved
from downset.arenas.objects_fit import total_bytes
from downset.arenas.objects_in_order import objects_in_order
from downset.arenas.strip_packing import strip_packing
from downset.arenas.tflm_greedy import tflm_greedy
from downset.memory.bounds import objects_bound, offsets_bound
from downset.memory.records import Record
from downset.methods import Contract, Method
from downset.results.plans import Found

__all__ = ["ARENAS", "CONTRACT", "SHARED", "SHARED_CONTRACT", "ArenaOptions", "SharedOptions"]


def _height_and_bound(records: Sequence[Record], result: Found) -> tuple[int, int]:
    check_placement(records, result.solution)
    return height(records, result.solution), offsets_bound(records)


def _total_and_bound(records: Sequence[Record], result: Found) -> tuple[int, int]:
    check_objects(records, result.solution)
    return total_bytes(records, result.solution), objects_bound(records)


CONTRACT = Contract(
    "offsets",
    problem=("records",),
    settings=("ties", "clock", "time_limit_s", "work_limit"),
    returns=Found,
    others=("memory", "capacity_bytes"),
    value_and_bound=_height_and_bound,
)
SHARED_CONTRACT = replace(
    CONTRACT, plans="shared objects", others=("capacity_bytes",), value_and_bound=_total_and_bound
)


class ArenaOptions(TypedDict, total=False):
    """The options that single methods of offsets have of their own."""

    rank: Sequence[int] | None
    rounds: int | None
    seed: int
    capacity: int | None


class SharedOptions(TypedDict, total=False):
    """The options that single methods of shared objects have of their own."""

    capacity: int | None


# An option `capacity` in a planner's signature declares that it stops at the first plan that fits.
ARENAS: Mapping[str, Method] = {
    "naive": Method(naive),
    "equality": Method(equality),
    "greedy_by_size": Method(greedy_by_size),
    "greedy_by_breadth": Method(greedy_by_breadth),
    "greedy_in_order": Method(greedy_in_order),
    "strip_packing": Method(strip_packing),
    "from_objects": Method(from_objects),
    "tflm_greedy": Method(tflm_greedy),
    "litert_greedy": Method(litert_greedy),
    "local_search": Method(local_search),
    "exact": Method(exact, proves=True),
    "best": Method(best),
}

SHARED: Mapping[str, Method] = {
    "naive": Method(naive_objects),
    "equality": Method(equality_objects),
    "greedy_by_size": Method(objects_by_size),
    "greedy_by_size_improved": Method(objects_by_size_improved),
    "greedy_by_breadth": Method(objects_by_breadth),
    "greedy_in_order": Method(objects_in_order),
    "min_cost_flow": Method(min_cost_flow),
    "exact": Method(exact_objects, proves=True),
    "best": Method(best_objects),
}
