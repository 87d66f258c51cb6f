"""Planners of memory. Each is a function of records; adding one is a file, a line here and a README row."""

from collections.abc import Callable

from downset.arenas.best import best
from downset.arenas.greedy_by_breadth import greedy_by_breadth
from downset.arenas.greedy_by_size import greedy_by_size
from downset.arenas.local_search import local_search
from downset.arenas.naive import naive
from downset.arenas.tflm_greedy import tflm_greedy
from downset.plans import Found

__all__ = ["ARENAS", "SHARED"]

ARENAS: dict[str, Callable[..., Found]] = {
    "naive": naive,
    "greedy_by_size": greedy_by_size,
    "greedy_by_breadth": greedy_by_breadth,
    "tflm_greedy": tflm_greedy,
    "local_search": local_search,
    "best": best,
}

SHARED: dict[str, Callable[..., Found]] = {}
