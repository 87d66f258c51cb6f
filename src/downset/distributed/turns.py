"""The turns of one resource, round after round."""

from __future__ import annotations

from collections.abc import Sequence

from downset.errors import InvalidPlan
from downset.results.pipelines import Turn

__all__ = ["Turns"]

_MOST_BEHIND = 1_000_000
"""The most rounds by which one task of a resource may be behind another; plans of our planners stay far below."""


class Turns:
    """`front`: the (frame number, task) whose turn it is. Turns of frames before number 0 are passed over."""

    def __init__(self, order: Sequence[Turn]) -> None:
        behind = [turn.behind for turn in order]
        if not order or max(behind) - min(behind) > _MOST_BEHIND:
            raise InvalidPlan("an order has no turns, or one that is more than a million rounds behind another")
        self._order = [(turn.task, turn.behind) for turn in order]
        self._place_of = {turn.task: place for place, turn in enumerate(order)}
        self._place, self._round = 0, min(behind)
        self.front = self._at(0, self._round)
        if self.front[0] < 0:
            self.advance()

    def _at(self, place: int, number: int) -> tuple[int, int]:
        task, behind = self._order[place]
        return number - behind, task

    def _following(self, place: int, number: int) -> tuple[int, int]:
        return (place + 1, number) if place + 1 < len(self._order) else (0, number + 1)

    def advance(self) -> None:
        """End the turn in front."""
        while True:
            self._place, self._round = self._following(self._place, self._round)
            self.front = self._at(self._place, self._round)
            if self.front[0] >= 0:
                return

    def before(self, instance: tuple[int, int], below: int) -> tuple[int, int] | None:
        """The last turn before this one, which is still to come, of a frame with a number below `below`; None if there
        is none."""
        place = self._place_of[instance[1]]
        number = instance[0] + self._order[place][1]
        while (number, place) > (self._round, self._place):
            place, number = (place - 1, number) if place else (len(self._order) - 1, number - 1)
            turn = self._at(place, number)
            if 0 <= turn[0] < below:
                return turn
        return None
