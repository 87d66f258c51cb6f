"""The free times of resources in a period that repeats: arcs on a circle."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

__all__ = ["Circle"]


class Circle:
    """The taken arcs of each resource, disjoint and sorted, on circles of `length`. An arc may run past the end."""

    def __init__(self, resources: int, length: float) -> None:
        self.length = length
        self._slack = 1e-11 * length
        self._starts: list[list[float]] = [[] for _ in range(resources)]
        self._stops: list[list[float]] = [[] for _ in range(resources)]

    def first_free(self, resources: Iterable[int], seconds: float, wanted: float) -> float | None:
        """The first place, at or behind `wanted` and at most once round, where an arc of `seconds` is free on all
        resources. It is in [wanted, wanted + length). None if there is no such place."""
        if seconds > self.length + self._slack:
            return None
        start_s, wanted_resources = wanted, tuple(resources)
        while start_s < wanted + self.length - self._slack or start_s == wanted:
            clash = max((self._clash(resource, start_s, seconds) for resource in wanted_resources), default=0.0)
            if clash <= 0:
                return start_s
            start_s += clash
        return None

    def take(self, resources: Iterable[int], seconds: float, start_s: float) -> float:
        """Take the arc; returns its place in [0, length)."""
        phase = start_s % self.length
        if phase >= self.length - self._slack:
            phase = 0.0
        for resource in resources:
            for start, stop in self._parts(phase, seconds):
                place = bisect_left(self._starts[resource], start)
                self._starts[resource].insert(place, start)
                self._stops[resource].insert(place, stop)
        return phase

    def _parts(self, phase: float, seconds: float) -> list[tuple[float, float]]:
        if seconds <= self._slack:
            return []
        stop = phase + seconds
        if stop <= self.length + self._slack:
            return [(phase, min(stop, self.length))]
        return [(phase, self.length), (0.0, stop - self.length)]

    def _clash(self, resource: int, start_s: float, seconds: float) -> float:
        """The seconds by which the arc must begin later to be free of the last taken arc that it meets; 0 if it is
        free."""
        starts, stops = self._starts[resource], self._stops[resource]
        phase = start_s % self.length
        later = 0.0
        base = 0.0
        for start, stop in self._parts(phase, seconds):
            low = bisect_right(stops, start + self._slack)
            high = bisect_left(starts, stop - self._slack)
            if low < high:
                later = base + stops[high - 1] - start
            base += self.length - start
        return later
