"""Planners under a capacity: where a planner's own plan is too large, the exact search looks for one that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from downset.arenas.exact import exact
from downset.arenas.exact_objects import exact_objects
from downset.arenas.gaps import height
from downset.arenas.objects_fit import total_bytes
from downset.arenas.ties import TiesName
from downset.budget import Clock
from downset.errors import InfeasibleError, LimitReached, UsageError
from downset.memory.bounds import check_capacity, objects_bound, positional_maxima
from downset.memory.records import Record
from downset.methods import Chosen
from downset.results.plans import Found

__all__ = ["within", "within_objects"]

Planner = Callable[..., Found]


def within(planner: Chosen, capacity_bytes: int) -> Planner:
    """The planner of offsets, whose placements take no more than the capacity.

    It raises InfeasibleError where it is proven that no placement fits, with the least capacity that is enough where
    that is known; and LimitReached where neither is known in time, with the best placement that was found. A planner
    with an option `capacity` is given it."""
    return _held(planner, capacity_bytes, check_capacity, exact, height)


def within_objects(planner: Chosen, capacity_bytes: int) -> Planner:
    """A planner of objects whose total is at or below the capacity; raises as `within`."""
    return _held(planner, capacity_bytes, _check_objects, exact_objects, total_bytes)


def _held(
    planner: Chosen,
    capacity_bytes: int,
    check: Callable[[Sequence[Record], int], None],
    search: Callable[..., Found],
    measure: Callable[[Sequence[Record], Sequence[int]], int],
) -> Planner:
    """The planner; where its plan does not fit, the search, which finds one that does or proves that there is none.
    `check` raises where a bound shows that no plan fits."""
    knows = _knows_capacity(planner)

    def plan(records: Sequence[Record], *, clock: Clock, ties: TiesName = "tflite") -> Found:
        check(records, capacity_bytes)
        result = planner(records, clock=clock, ties=ties, **({"capacity": capacity_bytes} if knows else {}))
        if measure(records, result.solution) > capacity_bytes and not (result.proven or knows):
            again = replace(clock.budget, seconds=max(clock.left_s(), 0.01)).start()
            searched = search(records, clock=again, capacity=capacity_bytes)
            result = _better(result, searched, records, measure)
        return _judge(result, measure(records, result.solution), capacity_bytes)

    return plan


def _check_objects(records: Sequence[Record], capacity_bytes: int) -> None:
    bound = objects_bound(records)
    if bound > capacity_bytes:
        maxima = ", ".join(map(str, positional_maxima(records)[:4]))
        raise InfeasibleError(
            f"shared objects take at least {bound} bytes (positional maxima {maxima}, …): "
            f"no assignment fits into {capacity_bytes}",
            figures={"limit_bytes": capacity_bytes, "least_bytes": bound},
        )


def _knows_capacity(planner: Chosen) -> bool:
    """Whether the planner itself stops at the first plan that fits. Raises UsageError where it has a limit already."""
    if "capacity" in planner.options:
        raise UsageError("capacity and capacity_bytes both limit the plan; give capacity_bytes alone")
    return "capacity" in planner.method.options


def _better(
    one: Found, other: Found, records: Sequence[Record], measure: Callable[[Sequence[Record], Sequence[int]], int]
) -> Found:
    first, second = measure(records, one.solution), measure(records, other.solution)
    chosen = other.solution if second <= first else one.solution
    bound = max(one.bound, other.bound)
    proven = bound == min(first, second)
    stopped_by = "" if proven else other.stopped_by or one.stopped_by
    return Found(chosen, bound, proven, one.states + other.states, stopped_by)


def _judge(result: Found, value: int, capacity_bytes: int) -> Found:
    if value <= capacity_bytes:
        return result
    figures = {"limit_bytes": capacity_bytes, "least_bytes": result.bound, "best_bytes": value}
    if result.bound > capacity_bytes:
        least = f"{value} is the least" if result.bound == value else f"it takes between {result.bound} and {value}"
        raise InfeasibleError(
            f"proven: nothing fits into {capacity_bytes} bytes; {least}", figures=figures, result=result
        )
    raise LimitReached(
        f"no assignment into {capacity_bytes} bytes was found in time: best {value}, bound {result.bound}; "
        "give the search more time or work",
        figures=figures,
        result=result,
    )
