"""Results that the jobs return beside their plans: plain values that reports draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from downset.graph.core import Graph, Tensor
from downset.memory.overlaps import KernelsName
from downset.memory.traffic import Traffic
from downset.plans import Arena, Evidence, Order, Rewrite, Together
from downset.sessions import SessionSettings, SessionTaken
from downset.text import abridged, format_bytes

__all__ = [
    "ROUNDING", "Comparison", "Figure", "Fit", "FrontRow", "Inspection", "Measured", "NextStep", "OnChip",
    "Proof",
    "RamVerdict", "Recomputation", "StepNeed",
]  # fmt: skip


ROUNDING = 1e-4
"""The largest difference that counts as rounding, as a share of the largest value."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome of comparing two files without running them. `proven`: the second holds the same network as the
    first, or (`optimised`) as what ONNX Runtime's own optimisation makes of the first, which only runs compare.
    `rewrites`: how many tensors are proven to hold parts of others, where the network is rewritten. `exact`: every
    element is computed as before; False where sums are added up in another order. `placed`: the second carries offsets,
    which keep apart what lives at the same time. `reason`: why there is no proof."""

    proven: bool
    exact: bool = True
    optimised: bool = False
    rewrites: int = 0
    placed: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """`equal`: bit for bit; None where no runtime here could run the models. `max_abs_error`: over all outputs.
    `largest`: the largest absolute value among the first's floats (among its integers, where it has no floats).
    `floats`: whether all that differ are floats, `quantized`: integers of at most 16 bits.

    `proof`: what was found without running. `runs`: on how many inputs, `varies`: whether any output differed from one
    to the next (None: there was one input). `inside`: how many tensors that both files have were compared inside, and
    `inside_note`: how they differ, where they do. `placed`: the outputs are also equal in TFLite Micro, with the
    offsets of the second file in force."""

    equal: bool | None
    max_abs_error: float | None
    runtime: str
    note: str = ""
    largest: float = 0.0
    floats: bool = False
    quantized: bool = False
    proof: Proof | None = None
    runs: int = 1
    varies: bool | None = None
    inside: int = 0
    inside_note: str = ""
    placed: bool = False

    @property
    def proven(self) -> bool:
        """Whether the second file is proven to hold the first's network, with nothing left to runs."""
        return self.proof is not None and self.proof.proven and not self.proof.optimised

    @property
    def telling(self) -> bool:
        """Whether runs could have shown a difference: outputs that never change show none."""
        return self.varies is not False

    @property
    def exact(self) -> bool:
        """Whether there may be no difference at all: the second is proven to compute every element as the first does,
        in a runtime that computes operator by operator. ONNX Runtime may fuse the one otherwise than the other."""
        return self.proven and self.proof is not None and self.proof.exact and self.runtime != "ort"

    @property
    def rounds_alike(self) -> bool:
        """Whether the outputs are equal, or floats that differ by no more than rounding does; where ONNX Runtime's own
        optimisation lies between the files, quantized outputs may differ by one step."""
        if self.equal or self.max_abs_error is None:
            return bool(self.equal)
        if self.quantized and self.proof is not None and self.proof.optimised:
            return self.max_abs_error <= 1
        return self.floats and not self.exact and self.max_abs_error <= ROUNDING * max(self.largest, 1e-6)

    def within(self, tolerance: float) -> bool:
        """Whether the outputs are equal, or differ by no more than this anywhere."""
        return bool(self.equal) or (self.max_abs_error is not None and self.max_abs_error <= tolerance)


@dataclass(frozen=True, slots=True)
class Figure:
    """Bytes before and after, and a lower bound that holds for every order and placement."""

    before: int
    after: int
    bound: int
    proven: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes that the runtime itself reports: in TFLite Micro the arena's head and tail, in ONNX Runtime what
    the arena of a session holds. `details`: its own breakdown by candidate.

    In ONNX Runtime only: `rows` tell apart what the file gains and what the session's settings gain (the original by
    default, the original by these settings, the shipped file by default, the shipped file by these settings). `front`:
    the files and settings that were measured and that no other beats in bytes held and time together.

    In TFLite Micro only: `before_s` and `after_s`, seconds of a run of the original and of what ships, medians of
    interleaved rounds on this host with the wheel's reference kernels; None where they were not timed."""

    runtime: str
    before: int
    after: int
    details: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rows: tuple[SessionTaken, ...] = ()
    front: tuple[SessionTaken, ...] = ()
    before_s: float | None = None
    after_s: float | None = None

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class OnChip:
    """Off-chip traffic, simulated, of the file before and after, with so much memory on chip."""

    on_chip_bytes: int
    before: Traffic
    after: Traffic


@dataclass(frozen=True, slots=True)
class FrontRow:
    """A plan that computes `segments` in strips.

    `peak_bytes` and `arena_bytes` are planned; `extra_macs` is also given as a share of the network's. `measured`: what
    the runtime took, by part; empty where it was not asked. `before_s` and `after_s`: a run of the original and of this
    file, medians of interleaved rounds on this host; None where it was not timed. `ships`: whether it is what ships."""

    segments: tuple[str, ...]
    peak_bytes: int
    arena_bytes: int
    extra_macs: int
    extra_share: float
    operators: int
    file_bytes: int
    measured: Mapping[str, int] = field(default_factory=dict)
    before_s: float | None = None
    after_s: float | None = None
    ships: bool = False

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class NextStep:
    """Something that a user can do next, with its numbers. `gained_bytes` and `gained_s`: how much less memory or time
    is needed then, at most; None where the step gains none of it, or nothing is known. `suffices`: the network then
    fits the memory limit that was asked for."""

    text: str
    gained_bytes: int | None = None
    gained_s: float | None = None
    suffices: bool = False


@dataclass(frozen=True, slots=True)
class RamVerdict:
    """Whether a network fits a memory limit.

    `needed_bytes`: what ships takes, measured where its runtime was asked, and what the runtime keeps beside the arena
    included then. `least_bytes`: what `least_of` takes, by the same measure: every order of the network, or its inputs
    or outputs alone where segments may be computed in strips. "does not fit" is proven: `least_bytes` is above the
    limit. `remedies`: what would make it fit, in no order."""

    state: Literal["fits", "does not fit", "not known"]
    limit_bytes: int
    needed_bytes: int
    least_bytes: int
    reason: str = ""
    least_of: Literal["every order", "inputs or outputs alone"] = "every order"
    remedies: tuple[NextStep, ...] = ()

    __repr__ = abridged

    @property
    def free_bytes(self) -> int:
        """Bytes that the limit leaves; negative where it is too low."""
        return self.limit_bytes - self.needed_bytes


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of `fit`. `shipped`: original, optimised, order, order+offsets, rewritten, rewritten+offsets or
    strips. `graph` and `together` are what is shipped, or would be if the runtime had not taken less for another file;
    `before` is the arena of the original. `rewrites` were made in what is shipped. `session`: how ONNX Runtime opens
    what is shipped so that it takes what was measured; None for other targets, and where nothing was measured.
    `not_measured`: why the target's runtime was not asked what the files take, where it could have been.
    `original`: the network that `before` places. `ram`: whether a memory limit is kept; None where none was given.
    `front`: plans in strips, where they were asked for. `kernels`: the library whose kernels may overlap results and
    inputs; None where nothing overlaps."""

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
    not_measured: str = ""
    session: SessionSettings | None = None
    session_path: str | None = None
    original: Graph | None = None
    ram: RamVerdict | None = None
    front: tuple[FrontRow, ...] = ()
    kernels: KernelsName | None = None

    @property
    def memory(self) -> str:
        """The memory model of the plan."""
        return self.together.arena.memory

    @property
    def assumed_kernels(self) -> KernelsName | None:
        """The library that what is shipped is right with, where its offsets may overlap: None where any is."""
        offsets = self.ships_plan and self.shipped not in ("order", "rewritten", "strips")
        return self.kernels if offsets and self.memory.endswith(f"-{self.kernels}") else None

    @property
    def taken(self) -> SessionTaken | None:
        """The measurement of the shipped file, by the settings in `session`; None where that was not measured."""
        rows = self.measured.rows if self.measured is not None else ()
        return next((row for row in rows[::-1] if (row.file, row.settings) == (self.shipped, self.session)), None)

    @property
    def ships_plan(self) -> bool:
        """Whether what is shipped runs by `together`; else it is the file, or the runtime's own form of it."""
        return self.shipped not in ("original", "optimised")

    def __repr__(self) -> str:
        peak, arena = (
            f"{format_bytes(figure.before)} -> {format_bytes(figure.after)} B{' (proven)' if figure.proven else ''}"
            for figure in (self.peak, self.arena)
        )
        return f"<Fit of {_end(self.model)!r} to {self.target}: peak {peak}, arena {arena}, shipped {self.shipped}>"


@dataclass(frozen=True, slots=True)
class Recomputation:
    """`graph`: the network in which `recomputed` (names of its operators) run a second time, under names of their own;
    `order`: its best order. `cost`: what runs twice; its `evidence` says whether no other choice of one split of the
    network's own best order costs less within the limit. `front`: (cost, peak bytes) of the choices that no other
    beats, the cheapest first."""

    graph: Graph
    order: Order
    recomputed: tuple[str, ...]
    cost: float
    evidence: Evidence
    front: tuple[tuple[float, int], ...]

    def __repr__(self) -> str:
        return f"<Recomputation of {len(self.recomputed)} operators: {self.order!r}, cost {self.cost:g}>"


@dataclass(frozen=True, slots=True)
class StepNeed:
    """One operator of an order, and the bytes that live while it runs."""

    step: int
    kind: str
    name: str
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """A summary of a network, and the memory that its file's order needs under the memory model `memory`.

    `tensors` counts activations. `width`: the most operators of which none waits for another. `downsets`: how many sets
    of operators are closed under predecessors, counted where `downsets_exact`, else estimated; then at most the largest
    float, and `downsets_log10` is the logarithm of the estimate. `peak_bytes` is that of the file's order."""

    model: str
    format: str
    memory: str
    operators: int
    tensors: int
    activation_bytes: int
    weight_bytes: int
    width: int
    downsets: int
    downsets_log10: float
    downsets_exact: bool
    peak_bytes: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    steps: tuple[StepNeed, ...]

    def __repr__(self) -> str:
        peak = f"peak {format_bytes(self.peak_bytes)} B, memory {self.memory}"
        return f"<Inspection of {_end(self.model)!r}: {self.operators} operators, {self.tensors} activations, {peak}>"


def _end(path: str) -> str:
    """The end of a long path, where a model's name stands."""
    return path if len(path) <= 60 else f"...{path[-57:]}"
