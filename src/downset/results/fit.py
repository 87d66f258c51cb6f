"""Results that jobs return besides their plans: plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from downset.graph.core import Graph
from downset.memory.models import memory_model
from downset.messages import Call
from downset.results.comparisons import Comparison
from downset.results.inspections import end_of
from downset.results.next_step import NextStep
from downset.results.open_axes import AxisGrowth, OpenAxis
from downset.results.plans import Arena, Evidence, Order, Together
from downset.results.policy import NO_LIMITS, Policy
from downset.results.processes import LitertProcess, ProcessFit
from downset.results.sessions import Latency, SessionSettings, SessionTaken
from downset.results.stream_fit import StreamFit
from downset.text import abridged, format_bytes

__all__ = [
    "ExportedProgram",
    "Figure",
    "Fit",
    "FrontRow",
    "Measured",
    "RamVerdict",
    "Recomputation",
]


@runtime_checkable
class ExportedProgram(Protocol):
    """A program of PyTorch, as `torch.export.export` returns it."""

    @property
    def graph_module(self) -> Any: ...
    @property
    def graph_signature(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A concatenation taken apart (`name`: its operator), or a segment in strips (`name` describes it). `readers`: the
    operators that were split, in order. `kind`: channel-wise where partial results are added up, row-wise for strips,
    else kernel-wise. `bytes_gained`: how many bytes higher the peak would be without it. `short_name`: a segment's name
    for a line, with the names of its operators shortened."""

    name: str
    readers: tuple[str, ...]
    kind: str
    bytes_gained: int
    short_name: str = ""

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class Figure:
    """Bytes before and after, and a lower bound for every order and placement."""

    before: int
    after: int
    bound: int
    proven: bool


@dataclass(frozen=True, slots=True)
class LoadsHeld:
    """The program that opens the shipped file, run in `processes` fresh processes. `least_bytes` and `most_bytes`: what
    the session's arena held in one of them or in the measurement. `at_every_load`: every load holds the same bytes: the
    settings fix the order of the nodes, and no process held more than was measured."""

    processes: int
    least_bytes: int
    most_bytes: int
    at_every_load: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes that the runtime reports: in TFLite Micro the arena's head and tail, in ONNX Runtime what the arena of a
    session holds, in PyTorch the most that its profiler reports as allocated at once. `details`: the runtime's
    figures by candidate.

    In ONNX Runtime only: `rows` separate the gain of the file from that of the session's settings (the original by
    default, the original with these settings, the shipped file by default, the shipped file with these settings).
    `front`: the measured files and settings that no other beats in both bytes held and time. `loads`: what the written
    program held, the most of which is `after`; None where it could not be run.

    In TFLite Micro and LiteRT only: `before_s` are the seconds of a run of the original, and `latency` is that of the
    shipped file with its ratio to the original: processor time, medians of interleaved rounds on this host, in TFLite
    Micro with the wheel's reference kernels, in LiteRT with its optimised kernels on one thread. They are None where
    they were not timed."""

    runtime: str
    before: int
    after: int
    details: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rows: tuple[SessionTaken, ...] = ()
    front: tuple[SessionTaken, ...] = ()
    loads: LoadsHeld | None = None
    before_s: float | None = None
    latency: Latency | None = None
    processes: tuple[LitertProcess, ...] = ()
    """The growth of new processes in LiteRT with the original and the shipped file, each by the kernels that run it;
    empty where the system does not report it. Files are chosen by the arena alone."""
    kernel_bytes: tuple[int, int] = (0, 0)
    """Bytes that the named kernels take beyond `before` and `after`, by formula."""

    @property
    def needed(self) -> tuple[int, int]:
        """Bytes that the original and the shipped file need with the named kernels: measured, and by formula."""
        return self.before + self.kernel_bytes[0], self.after + self.kernel_bytes[1]

    def is_least(self) -> bool:
        """Whether no candidate took less than the shipped file."""
        return self.after <= min((parts["total_bytes"] for parts in self.details.values()), default=self.after)

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class FrontRow:
    """A plan that computes `segments` in strips.

    `peak_bytes` and `arena_bytes` are planned. `extra_macs` is also given as a share of the network's MACs. `measured`:
    bytes that the runtime took, by part; empty where they were not measured. `before_s`: seconds of a run of the
    original; `latency`: that of this file with its ratio to the original; medians of interleaved rounds on this host;
    None where they were not timed.
    `ships`: whether this is the shipped file."""

    segments: tuple[str, ...]
    peak_bytes: int
    arena_bytes: int
    extra_macs: int
    extra_share: float
    operators: int
    file_bytes: int
    measured: Mapping[str, int] = field(default_factory=dict)
    before_s: float | None = None
    latency: Latency | None = None

    ships: bool = False

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class RamVerdict:
    """Whether a network fits a memory limit.

    `needed_bytes`: what the shipped file takes. If it was measured, this includes what the runtime keeps outside the
    arena, and `scratch_bytes`, what the kernels named need in addition to those that were run (analytic).
    `least_bytes`: a lower bound in the same terms. `least_of` says for what it holds: every order of the network, or
    its inputs or outputs alone where segments may be computed in strips. `least_in_order_bytes`: a lower bound of every
    plan in the planned order, also in strips; None where none were searched or none needs less. "does not fit" is
    proven: `least_bytes` is above the limit. `remedies`: ways to make it fit, unsorted. `setting`: the option
    that gave the limit. `of`: what the bytes are of: of what was planned, or of the growth of a whole process, of which
    no bound is known (`least_bytes` is 0) and which is judged by the most that was measured."""

    state: Literal["fits", "does not fit", "not known"]
    limit_bytes: int
    needed_bytes: int
    least_bytes: int
    reason: str = ""
    least_of: Literal["every order", "inputs or outputs alone"] = "every order"
    remedies: tuple[NextStep, ...] = ()
    scratch_bytes: int = 0
    least_in_order_bytes: int | None = None
    setting: str = "ram_bytes"
    of: Literal["plan", "process"] = "plan"

    __repr__ = abridged

    @property
    def free_bytes(self) -> int:
        """Bytes of the limit that are left; negative where the limit is too low."""
        return self.limit_bytes - self.needed_bytes


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of `fit`. `shipped`: the name of the shipped candidate: original, optimised, order, order+offsets,
    rewritten, rewritten+offsets, strips, "strips 2" (of fewer operators) or strips+offsets; "mapped" where weights lie
    in a file of their own, in the runtime's order "mapped, not ordered", and where that form was given to another
    candidate its name with ", mapped".
    `graph` and `together`: the network and plan of the shipped file, or the best plan if a file without a plan ships.
    `before`: the arena of the original; `original`: the network that it places. `rewrites`: those in the shipped file.
    `session`: the settings with which ONNX Runtime takes the measured memory; None for other targets, and where nothing
    was measured. `not_measured`: why the target's runtime did not measure the files, if it could have. `not_in_tflm`:
    why TFLite Micro does not run the file; then the target became LiteRT, as nobody named one. `policy`: the limits of
    time and file size within which a file ships, and `beyond_policy`: they did not count, as nothing within them fits
    the memory limit. `disk_bytes`: of the original and of the shipped file. `ram`: the verdict about a memory limit;
    None where none was given. `front`: plans in strips, if they were asked for. `in_strips`: how to ask for segments in
    strips, where nobody did and they may need less. `int8_form`: TFLite Micro does not run the file, which computes on
    uint8, and `int8` fits an exact form that it runs. `kernels`: the library whose kernels may overlap results and
    inputs; None where nothing overlaps. `time_limit_s` and `work_limit`: the limits of the searches. `versions`: of the
    packages that took part, by name. `command`: the call that asks for this result, with target, time limit and
    rewriting also where they are the defaults; `seed`: of random choices. `interrupted`: a user ended the search early.
    `open_axes`: the sizes that the original leaves open, as planned, for which alone figures and proofs of them hold;
    `growth`: how the bytes in use grow with each. `process`: what was measured of processes, where these decided what
    ships. `stream`: the stream that ships beside its window, where one was asked for; all other figures are then of the
    stream as it was written and as it was fitted. `program`: the fitted ExportedProgram, where one was fitted that was
    in memory, and not a file."""

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
    not_measured: str = ""
    not_in_tflm: str = ""
    policy: Policy = NO_LIMITS
    beyond_policy: bool = False
    disk_bytes: tuple[int, int] = (0, 0)
    session: SessionSettings | None = None
    session_path: str | None = None
    original: Graph | None = None
    ram: RamVerdict | None = None
    front: tuple[FrontRow, ...] = ()
    in_strips: NextStep | None = None
    int8_form: bool = False
    kernels: str | None = None
    time_limit_s: float = math.inf
    work_limit: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    command: Call | None = None
    seed: int = 0
    interrupted: bool = False
    open_axes: tuple[OpenAxis, ...] = ()
    growth: tuple[AxisGrowth, ...] = ()
    process: ProcessFit | None = None
    stream: StreamFit | None = None
    program: Any = None

    @property
    def memory(self) -> str:
        """The memory model of the plan."""
        return self.together.arena.memory

    @property
    def assumed_kernels(self) -> str | None:
        """The library of kernels that the shipped file needs, because its tensors may overlap; None where it needs no
        particular one."""
        overlapping = self.ships_offsets and memory_model(self.memory).kernels is not None
        return self.kernels if overlapping else None

    @property
    def ships_offsets(self) -> bool:
        """Whether the shipped file states the places that the plan gives its tensors."""
        return self.ships_plan and self.shipped not in ("order", "rewritten", "strips")

    @property
    def taken(self) -> SessionTaken | None:
        """The measurement of the shipped file with the settings in `session`; None where there is none."""
        rows = self.measured.rows if self.measured is not None else ()
        return next((row for row in rows[::-1] if (row.file, row.settings) == (self.shipped, self.session)), None)

    @property
    def ships_plan(self) -> bool:
        """Whether the shipped file follows `together`; else it is the original, or the runtime's optimised form of
        it."""
        return self.shipped not in ("original", "optimised", "optimised, mapped", "mapped, not ordered")

    @property
    def shipped_steps(self) -> tuple[int, ...]:
        """The order of the shipped file's operators."""
        return self.together.order.steps if self.ships_plan else tuple(range(len(self.graph.ops)))

    @property
    def shipped_memory(self) -> str:
        """The memory model of the shipped file: with overlaps only where the file follows the plan."""
        return self.memory if self.ships_plan else self.target

    def __repr__(self) -> str:
        peak, arena = (
            f"{format_bytes(figure.before)} -> {format_bytes(figure.after)} B{' (proven)' if figure.proven else ''}"
            for figure in (self.peak, self.arena)
        )
        return f"<Fit of {end_of(self.model)!r} to {self.target}: peak {peak}, arena {arena}, shipped {self.shipped}>"


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The result of `plan_recompute`. `graph`: the network in which the operators `recomputed` (their names) run a
    second time; the copies have other names. `order`: its best order. `cost`: the sum of the costs of the copies.
    `evidence`: whether no other choice with one split of the network's best order costs less within the limit. `front`:
    (cost, peak in bytes) of the choices that no other beats in both, the cheapest first."""

    graph: Graph
    order: Order
    recomputed: tuple[str, ...]
    cost: float
    evidence: Evidence
    front: tuple[tuple[float, int], ...]

    def __repr__(self) -> str:
        return f"<Recomputation of {len(self.recomputed)} operators: {self.order!r}, cost {self.cost:g}>"
