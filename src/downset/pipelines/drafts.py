"""Drafts: what each device computes, as planners of pipelines return it. `judging` computes their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from downset.results.pipelines import FrameTasks, PipelineSchedule

__all__ = ["FoundPipeline", "Split", "StageDraft", "StageDrafts", "Tile", "TimedPlan", "on_cuts", "on_devices"]


@dataclass(frozen=True, slots=True)
class Tile:
    """A device and its part of a block's frame: rows [start, stop), and all columns unless given."""

    device: int
    start: int
    stop: int
    columns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Units [start, stop), fused and divided into tiles. `halo`: devices keep what they made and fetch only missing
    rows (CoEdge, and direct hand-over); otherwise the leader scatters inputs and gathers outputs."""

    start: int
    stop: int
    tiles: tuple[Tile, ...]
    halo: bool = False


@dataclass(frozen=True, slots=True)
class StageDraft:
    """`leader`: a device, or -1 if rows are handed over directly. In that case frames appear at the first stage's
    `entry`, and results stay at the last stage's `exit`; -1 stands for the stage's first device."""

    leader: int
    splits: tuple[Split, ...]
    entry: int = -1
    exit: int = -1


StageDrafts = tuple[StageDraft, ...]


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """Stages with their tasks, orders (None under `paper`), period and latency in seconds."""

    frame: FrameTasks
    schedule: PipelineSchedule | None
    period_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class FoundPipeline:
    """A planner's stages, a lower bound on the period of every plan of the problem, and whether the search met the
    bound."""

    stages: StageDrafts
    bound_s: float
    proven: bool = False
    states: int = 0
    note: str = ""
    stopped: bool = False
    """Whether the planner stopped at a limit before it had tried everything."""
    timed: TimedPlan | None = None
    """The stages with times and orders, if the planner computed them."""
    space: str = ""
    """The space of plans for which bound and proof hold, if the planner states it."""


def on_cuts(stages: StageDrafts, cuts: Sequence[int]) -> StageDrafts:
    """The stages on the whole chain, from stages on a chain that was joined at `cuts` (`problem.joined`)."""
    return tuple(
        replace(stage, splits=tuple(replace(s, start=cuts[s.start], stop=cuts[s.stop]) for s in stage.splits))
        for stage in stages
    )


def on_devices(drafts: StageDrafts, devices: Sequence[int]) -> StageDrafts:
    """The drafts with devices numbered as in the whole cluster, from drafts on some `devices` of it."""

    def named(device: int) -> int:
        return devices[device] if device >= 0 else -1

    return tuple(
        StageDraft(
            named(stage.leader),
            tuple(
                replace(split, tiles=tuple(replace(tile, device=named(tile.device)) for tile in split.tiles))
                for split in stage.splits
            ),
            named(stage.entry),
            named(stage.exit),
        )
        for stage in drafts
    )
