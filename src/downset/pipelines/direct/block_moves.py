"""Changes of a stage whose blocks lie on different devices (`nested`): each keeps all other blocks as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from downset.pipelines.drafts import Split, StageDraft, Tile
from downset.pipelines.prices import PricedChain
from downset.pipelines.strips import fastest_on_top

__all__ = ["block_moves"]

Group = tuple[int, ...]
"""The devices of a block, from the top row down."""


def block_moves(
    stage: StageDraft, problem: PricedChain, speeds: Sequence[float], shifts: Sequence[float]
) -> Iterator[StageDraft]:
    """The stage with a border between two devices moved in all blocks that have it, or in one of them; with a cut
    between two blocks moved; with a device in another group, or two devices of two groups exchanged. `speeds`: by
    device, for the rows of a block that changes its devices. `shifts`: the shares of a block's rows by which borders
    move; 0: by one row."""
    if len(stage.splits) < 2:
        return
    for shift in shifts:
        yield from _border_moved(stage, shift)
    yield from _cut_moved(stage, problem)
    yield from _regrouped(stage, speeds)


def _group(split: Split) -> Group:
    return tuple(tile.device for tile in split.tiles)


def _border_moved(stage: StageDraft, shift: float) -> Iterator[StageDraft]:
    having: dict[tuple[int, int], list[int]] = {}
    for place, split in enumerate(stage.splits):
        for pair in pairwise(_group(split)):
            having.setdefault(pair, []).append(place)
    for pair, places in having.items():
        for chosen in (places, *([place] for place in places if len(places) > 1)):
            for sign in (1, -1):
                splits = list(stage.splits)
                for place in chosen:
                    splits[place] = _shifted(splits[place], pair, shift, sign)
                yield replace(stage, splits=tuple(splits))


def _shifted(split: Split, pair: tuple[int, int], shift: float, sign: int) -> Split:
    """The block with the border between two devices moved; each keeps at least one row."""
    upper = _group(split).index(pair[0])
    one, two = split.tiles[upper : upper + 2]
    rows = split.tiles[-1].stop
    border = min(max(one.stop + sign * max(1, round(shift * rows)), one.start + 1), two.stop - 1)
    moved = (replace(one, stop=border), replace(two, start=border))
    return replace(split, tiles=(*split.tiles[:upper], *moved, *split.tiles[upper + 2 :]))


def _cut_moved(stage: StageDraft, problem: PricedChain) -> Iterator[StageDraft]:
    for place, (one, two) in enumerate(pairwise(stage.splits)):
        for away in (1, -1, 2, -2):
            cut = one.stop + away
            if one.start < cut < two.stop:
                moved = (_with_rows(problem, one, one.start, cut), _with_rows(problem, two, cut, two.stop))
                yield replace(stage, splits=(*stage.splits[:place], *moved, *stage.splits[place + 2 :]))


def _with_rows(problem: PricedChain, split: Split, start: int, stop: int) -> Split:
    """The block on other units, with the same shares of their rows."""
    rows, before = problem.segment(start, stop).rows, split.tiles[-1].stop
    scaled = (Tile(tile.device, tile.start * rows // before, tile.stop * rows // before) for tile in split.tiles)
    return Split(start, stop, tuple(tile for tile in scaled if tile.start < tile.stop), halo=True)


def _regrouped(stage: StageDraft, speeds: Sequence[float]) -> Iterator[StageDraft]:
    groups = list(dict.fromkeys(_group(split) for split in stage.splits))
    for one in groups:
        for two in (group for group in groups if group != one):
            for device in (device for device in one if device not in two):
                less = tuple(other for other in one if other != device)
                if less:
                    yield _on_groups(stage, {one: less, two: (*two, device)}, speeds)
                for other in (other for other in two if other not in one):
                    rest = tuple(member for member in two if member != other)
                    yield _on_groups(stage, {one: (*less, other), two: (*rest, device)}, speeds)


def _on_groups(stage: StageDraft, changed: dict[Group, Group], speeds: Sequence[float]) -> StageDraft:
    splits = []
    for split in stage.splits:
        group = changed.get(_group(split))
        if group is not None:
            split = replace(split, tiles=fastest_on_top(split.tiles[-1].stop, group, speeds))
        splits.append(split)
    ends = [end if end in _group(split) else -1 for end, split in ((stage.entry, splits[0]), (stage.exit, splits[-1]))]
    return StageDraft(-1, tuple(splits), *ends)
