"""What the jobs return beside their plans: plain values that reports draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from downset.graph.core import Graph
from downset.memory.traffic import Traffic
from downset.plans import Arena, Rewrite, Together

__all__ = ["Comparison", "Figure", "Fit", "Measured", "OnChip", "Simulation"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`equal`: bit for bit; None where no runtime here could run the models. `max_abs_error`: over all outputs.
    `largest`: the largest absolute value among the first's, `floats`: whether they all are floats."""

    equal: bool | None
    max_abs_error: float | None
    runtime: str
    note: str = ""
    largest: float = 0.0
    floats: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """Bytes before and after, and the proven bound that no order and placement can pass."""

    before: int
    after: int
    bound: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """What the runtime itself says it took, in bytes. `details`: its own breakdown by candidate."""

    runtime: str
    before: int
    after: int
    details: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OnChip:
    """Off-chip traffic, simulated, of the file before and after, with so much memory on chip."""

    on_chip_bytes: int
    before: Traffic
    after: Traffic


@dataclass(frozen=True, slots=True)
class Fit:
    """What `fit` found. `shipped`: original, optimised, order, order+offsets, rewritten or rewritten+offsets. `graph`
    and `together` are what is shipped, or would be if the runtime had not taken less for another file; `before` is the
    arena of the original. `rewrites` were made in what is shipped."""

    model: str
    target: str
    graph: Graph
    before: Arena
    together: Together
    peak: Figure
    arena: Figure
    shipped: str
    measured: Measured | None
    outputs: Comparison
    output_path: str | None
    notes: tuple[str, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    traffic: tuple[OnChip, ...] = ()


@dataclass(frozen=True, slots=True)
class Simulation:
    """Simulated, not measured. `period_s`: mean time between frames that left, without the first fifth and while the
    pipeline fills or drains (`window` frames each; fewer than three times that many frames tell little).
    `latency_s`: the 50th, 90th, 99th percentile and the largest, from when the first stage begins with a frame. By
    device: share of the time that it computed, share of its MACs that were redundant. `energy_j`: for a frame, where
    every device states its powers (else None). `stalled_at_s`: when a dead device stopped the pipeline; frames after
    that never left."""

    frames: int
    completed: int
    period_s: float
    latency_s: tuple[float, float, float, float]
    utilisation: tuple[float, ...]
    redundancy: tuple[float, ...]
    energy_j: float | None
    seconds: float
    stalled_at_s: float | None = None
    window: int = 1
