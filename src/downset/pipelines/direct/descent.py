"""Coordinate descent on a draft of direct hand-over, priced by the loads that it makes.

Source: ours. One change at a time is kept if the loads, sorted from the largest, become less. A boundary between two
devices moves (alike in all blocks of the stage); a block is divided into two or two blocks are joined; a cut between
two stages moves; a device changes its stage, or two devices change places; another device becomes the entry or the
exit. Stages of the busiest devices are changed first.
Complexity: one price (O(tasks)) for each change tried, until no change helps or the deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from downset import clock
from downset.pipelines.direct.priced import DirectDrafts, Loads
from downset.pipelines.drafts import Drafted, Split, StageDraft
from downset.pipelines.strips import tiles

__all__ = ["descended"]

_CLOSE = 1e-9
_SHIFTS = (1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 0.0)
"""The shares of a stage's rows by which a boundary moves; 0: by one row."""


def descended(drafts: Drafted, priced: DirectDrafts, *, at_least_s: float, deadline: float) -> Drafted:
    """The drafts after all changes that helped. The descent ends early when the loads are down to `at_least_s`."""
    best = priced.loads(drafts)
    while best.bound_s > at_least_s * (1 + _CLOSE):
        changed_drafts = None
        for changed in _changes(drafts, priced, best):
            if clock.now() > deadline:
                return drafts
            loads = priced.loads(changed)
            if _less(loads, best):
                changed_drafts, best = changed, loads
                break
        if changed_drafts is None:
            return drafts
        drafts = changed_drafts
    return drafts


def _less(one: Loads, two: Loads) -> bool:
    if abs(one.bound_s - two.bound_s) > _CLOSE * two.bound_s:
        return one.bound_s < two.bound_s
    for mine, other in zip(one.sorted_s, two.sorted_s, strict=False):
        if abs(mine - other) > _CLOSE * other:
            return mine < other
    return False


def _changes(drafts: Drafted, priced: DirectDrafts, loads: Loads) -> Iterator[Drafted]:
    """All changes, those of the busiest stages first, and small ones before large ones."""

    def busiest(stage: StageDraft) -> float:
        return max(loads.by_device.get(tile.device, 0.0) for split in stage.splits for tile in split.tiles)

    order = sorted(range(len(drafts)), key=lambda place: -busiest(drafts[place]))
    for shift in _SHIFTS:
        for place in order:
            for stage in _shifted(drafts[place], priced, shift):
                yield _with(drafts, place, stage)
    for place in order:
        for stage in _ends(drafts, place, priced):
            yield _with(drafts, place, stage)
    for place in order:
        for stage in _blocks(drafts[place], priced):
            yield _with(drafts, place, stage)
    yield from _cuts(drafts, priced)
    yield from _devices(drafts, priced, order)


def _with(drafts: Drafted, place: int, *stages: StageDraft) -> Drafted:
    return (*drafts[:place], *stages, *drafts[place + len(stages) :])


def _members(stage: StageDraft) -> list[int]:
    return list(dict.fromkeys(tile.device for split in stage.splits for tile in split.tiles))


def _shifted(stage: StageDraft, priced: DirectDrafts, shift: float) -> Iterator[StageDraft]:
    devices = sorted(_members(stage), key=priced.order.index)
    bounds = [_bounds(split, devices) for split in stage.splits]
    if any(one is None for one in bounds):
        return
    for place in range(1, len(devices)):
        for sign in (1, -1):
            splits = []
            for split, own in zip(stage.splits, bounds, strict=True):
                assert own is not None
                moved = list(own)
                moved[place] += sign * max(1, round(shift * own[-1]))
                moved[place] = min(max(moved[place], own[place - 1]), own[place + 1])
                splits.append(replace(split, tiles=tiles(devices, moved)))
            yield replace(stage, splits=tuple(splits))


def _bounds(split: Split, devices: Sequence[int]) -> list[int] | None:
    """Boundaries of a block's rows, by device in the given order; None if its strips lie in another order."""
    own = {tile.device: (tile.start, tile.stop) for tile in split.tiles}
    bounds = [0]
    for device in devices:
        start, stop = own.get(device, (bounds[-1], bounds[-1]))
        if start != bounds[-1]:
            return None
        bounds.append(stop)
    return bounds if len(own) == len(split.tiles) else None


def _blocks(stage: StageDraft, priced: DirectDrafts) -> Iterator[StageDraft]:
    """The stage with one block divided in two of the same rows, or with two blocks joined."""
    devices = sorted(_members(stage), key=priced.order.index)
    if len(devices) < 2:
        return
    for place, split in enumerate(stage.splits):
        bounds = _bounds(split, devices)
        if bounds is None:
            continue
        for cut in range(split.start + 1, split.stop):
            parts = [
                _like(priced, start, stop, devices, bounds) for start, stop in pairwise((split.start, cut, split.stop))
            ]
            yield replace(stage, splits=(*stage.splits[:place], *parts, *stage.splits[place + 1 :]))
    for place, (one, two) in enumerate(pairwise(stage.splits)):
        bounds = _bounds(two, devices)
        if bounds is not None:
            joined = _like(priced, one.start, two.stop, devices, bounds)
            yield replace(stage, splits=(*stage.splits[:place], joined, *stage.splits[place + 2 :]))


def _like(priced: DirectDrafts, start: int, stop: int, devices: Sequence[int], bounds: Sequence[int]) -> Split:
    rows = priced.problem.segment(start, stop).rows
    scaled = [round(bound * rows / bounds[-1]) for bound in bounds]
    return Split(start, stop, tiles(devices, scaled), halo=True)


def _ends(drafts: Drafted, place: int, priced: DirectDrafts) -> Iterator[StageDraft]:
    stage = drafts[place]
    for device in _members(stage) if place == 0 and priced.accounting.source is None else ():
        yield replace(stage, entry=device)
    for device in _members(stage) if place == len(drafts) - 1 and priced.accounting.sink is None else ():
        yield replace(stage, exit=device)


def _cuts(drafts: Drafted, priced: DirectDrafts) -> Iterator[Drafted]:
    """The drafts with a cut between two stages moved; both stages are then one block."""
    for place, (one, two) in enumerate(pairwise(drafts)):
        start, cut, stop = one.splits[0].start, two.splits[0].start, two.splits[-1].stop
        for away in (1, -1, 2, -2):
            if start < cut + away < stop:
                stages = [
                    priced.stage(first, last, _members(stage))
                    for stage, (first, last) in zip((one, two), pairwise((start, cut + away, stop)), strict=True)
                ]
                yield _with(drafts, place, *stages)


def _devices(drafts: Drafted, priced: DirectDrafts, order: Sequence[int]) -> Iterator[Drafted]:
    """The drafts with a device changed: an idle device, or one of another stage, joins; two devices change places; one
    is left out."""
    members = [_members(stage) for stage in drafts]
    used = {device for own in members for device in own}
    idle = [device for device in priced.order if device not in used]
    for place in order:
        for device in idle:
            yield from _reassigned(drafts, priced, {place: [*members[place], device]})
            for other in members[place]:
                yield from _reassigned(
                    drafts, priced, {place: [device if one == other else one for one in members[place]]}
                )
        for away in order[::-1]:
            if away == place:
                continue
            for device in members[away]:
                left = [one for one in members[away] if one != device]
                if left:
                    yield from _reassigned(drafts, priced, {place: [*members[place], device], away: left})
                for other in members[place]:
                    swapped = [device if one == other else one for one in members[place]]
                    yield from _reassigned(drafts, priced, {place: swapped, away: [*left, other]})


def _reassigned(drafts: Drafted, priced: DirectDrafts, members: dict[int, list[int]]) -> Iterator[Drafted]:
    reassigned = list(drafts)
    for place, devices in members.items():
        start, stop = drafts[place].splits[0].start, drafts[place].splits[-1].stop
        if any((start, stop, device) in priced.forbidden for device in devices):
            return
        reassigned[place] = priced.stage(start, stop, devices)
    yield tuple(reassigned)
