"""Drafts: what each device computes, as planners of pipelines return it; `paper_timing` derives the times."""

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
    """Units [start, stop), fused, by tiles. `halo`: devices keep what they made and fetch only rows they lack (CoEdge,
    and direct hand-over); else the leader scatters inputs and gathers outputs."""

    start: int
    stop: int
    tiles: tuple[Tile, ...]
    halo: bool = False


@dataclass(frozen=True, slots=True)
class StageDraft:
    """`leader`: -1 where rows are handed over directly. Then frames appear at the first stage's `entry`, and results
    stay at the last one's `exit`; -1: its first device."""

    leader: int
    splits: tuple[Split, ...]
    entry: int = -1
    exit: int = -1


Drafted = tuple[StageDraft, ...]


@dataclass(frozen=True, slots=True)
class FrameTasks:
    """The tasks of every frame, in an order in which one frame can do them. The frame, of `frame_bytes`, appears at
    `entry`, its result, of `result_bytes`, stays at `exit`."""

    stages: tuple[PipelineStage, ...]
    tasks: tuple[Task, ...]
    entry: int
    exit: int
    frame_bytes: int = 0
    result_bytes: int = 0


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
    """Whether the planner stopped at a limit, before it had tried everything."""
    judged: Judged | None = None
    """The stages as the planner had them priced, where it did."""
    space: str = ""
    """The plans of which the bound and the proof speak, where the planner says."""


def on_cuts(stages: Drafted, cuts: Sequence[int]) -> Drafted:
    """Stages planned on a joined chain (`problem.joined`), on the chain it was joined from."""
    return tuple(
        replace(stage, splits=tuple(replace(s, start=cuts[s.start], stop=cuts[s.stop]) for s in stage.splits))
        for stage in stages
    )


def on_devices(drafts: Drafted, devices: Sequence[int]) -> Drafted:
    """Stages planned on some of the devices, numbered as among all."""

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
