"""Planners of memory. Each is a function of records; adding one is a file, a line here and a README row.

`ARENAS` place records at offsets in one arena; `SHARED` give each record an object that others use at other times.
"""

from collections.abc import Callable

from downset.arenas.best import best, best_objects
from downset.arenas.equality import equality, equality_objects
from downset.arenas.exact import exact
from downset.arenas.exact_objects import exact_objects
from downset.arenas.from_objects import from_objects
from downset.arenas.greedy_by_breadth import greedy_by_breadth
from downset.arenas.greedy_by_size import greedy_by_size
from downset.arenas.greedy_in_order import greedy_in_order
from downset.arenas.local_search import local_search
from downset.arenas.min_cost_flow import min_cost_flow
from downset.arenas.naive import naive, naive_objects
from downset.arenas.objects_by_breadth import objects_by_breadth
from downset.arenas.objects_by_size import objects_by_size
from downset.arenas.objects_by_size_improved import objects_by_size_improved
from downset.arenas.objects_in_order import objects_in_order
from downset.arenas.strip_packing import strip_packing
from downset.arenas.tflm_greedy import tflm_greedy
from downset.plans import Found

__all__ = ["ARENAS", "SHARED"]

ARENAS: dict[str, Callable[..., Found]] = {
    "naive": naive,
    "equality": equality,
    "greedy_by_size": greedy_by_size,
    "greedy_by_breadth": greedy_by_breadth,
    "greedy_in_order": greedy_in_order,
    "strip_packing": strip_packing,
    "from_objects": from_objects,
    "tflm_greedy": tflm_greedy,
    "local_search": local_search,
    "exact": exact,
    "best": best,
}

SHARED: dict[str, Callable[..., Found]] = {
    "naive": naive_objects,
    "equality": equality_objects,
    "greedy_by_size": objects_by_size,
    "greedy_by_size_improved": objects_by_size_improved,
    "greedy_by_breadth": objects_by_breadth,
    "greedy_in_order": objects_in_order,
    "min_cost_flow": min_cost_flow,
    "exact": exact_objects,
    "best": best_objects,
}
