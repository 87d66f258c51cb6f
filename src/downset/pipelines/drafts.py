"""What planners of pipelines return: who computes what, without the times that `paper_timing` derives from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from downset.plans import PipelineSchedule, PipelineStage, Task

__all__ = ["Drafted", "FoundPipeline", "FrameTasks", "Judged", "Split", "StageDraft", "Tile", "on_cuts"]


@dataclass(frozen=True, slots=True)
class Tile:
    """A device and its part of a block's frame: rows [start, stop), all columns unless given."""

    device: int
    start: int
    stop: int
    columns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Units [start, stop), fused, by tiles. `halo`: devices keep what they made and fetch only rows they lack (CoEdge);
    else the leader scatters inputs and gathers outputs."""

    start: int
    stop: int
    tiles: tuple[Tile, ...]
    halo: bool = False


@dataclass(frozen=True, slots=True)
class StageDraft:
    leader: int
    splits: tuple[Split, ...]


Drafted = tuple[StageDraft, ...]


@dataclass(frozen=True, slots=True)
class FrameTasks:
    """What every frame needs, in an order in which one frame can do it. `rounds`: the tasks that the equations take
    side by side, transfers or strips of one block. The frame appears at `entry`, its result stays at `exit`."""

    stages: tuple[PipelineStage, ...]
    tasks: tuple[Task, ...]
    rounds: tuple[tuple[int, ...], ...]
    entry: int
    exit: int


@dataclass(frozen=True, slots=True)
class Judged:
    """Stages with their tasks, orders (None under `paper`), period and latency."""

    frame: FrameTasks
    schedule: PipelineSchedule | None
    period_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class FoundPipeline:
    """A planner's stages, a bound on the period of every plan of the problem, whether the search met it."""

    stages: Drafted
    bound_s: float
    proven: bool = False
    states: int = 0
    note: str = ""
    stopped: bool = False
    """At a limit, before it had tried everything."""
    judged: Judged | None = None
    """The stages as the planner had them priced, where it did."""


def on_cuts(stages: Drafted, cuts: Sequence[int]) -> Drafted:
    """Stages planned on a joined chain (`problem.joined`), on the chain it was joined from."""
    return tuple(
        StageDraft(stage.leader, tuple(replace(s, start=cuts[s.start], stop=cuts[s.stop]) for s in stage.splits))
        for stage in stages
    )


def on_devices(drafts: Drafted, devices: Sequence[int]) -> Drafted:
    """Stages planned on some of the devices, numbered as among all."""
    return tuple(
        StageDraft(
            devices[stage.leader],
            tuple(
                replace(split, tiles=tuple(replace(tile, device=devices[tile.device]) for tile in split.tiles))
                for split in stage.splits
            ),
        )
        for stage in drafts
    )
