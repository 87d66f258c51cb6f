"""Results that jobs return besides their plans: plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from downset.graph.core import Graph, Tensor
from downset.memory.overlaps import KernelsName
from downset.memory.traffic import Traffic
from downset.messages import Call
from downset.results.plans import Arena, Evidence, Order, Together
from downset.results.sessions import Latency, SessionSettings, SessionTaken
from downset.text import abridged, format_bytes

__all__ = [
    "ROUNDING",
    "Comparison",
    "Figure",
    "Fit",
    "FrontRow",
    "Inspection",
    "Measured",
    "NextStep",
    "OnChip",
    "Proof",
    "RamVerdict",
    "Recomputation",
    "StepNeed",
]


ROUNDING = 1e-4
"""The largest difference that counts as rounding, as a share of the largest value."""


Verdict = Literal["proven", "not proven", "differ"]

BY_RUNTIME = (
    "ONNX Runtime's own optimisation of the original is not proven; the file is proven to hold what that makes of it"
)
"""Why a file is not proven that is made from ONNX Runtime's optimised form of the original."""


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
class Proof:
    """The outcome of comparing two files without running them. `proven`: the second file holds the same network as the
    first, or with `optimised` the network that ONNX Runtime's optimisation makes of the first; that optimisation is
    checked by runs only. `exact`: every element is computed as before; False where sums are added in another sequence.
    `rewrites`: the number of tensors that are proven to hold parts of others, in a rewritten network. `placed`: the
    second file holds offsets that keep apart all tensors live at the same time. `reason`: why there is no proof."""

    proven: bool
    exact: bool = True
    optimised: bool = False
    rewrites: int = 0
    placed: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of running two files on the same inputs. `equal`: whether the outputs are equal bit for bit; None
    where no runtime here could run the files. `max_abs_error`: the largest difference in all outputs. `largest`: the
    largest absolute value in the first file's float outputs, or in its integers if it has no floats. `floats`: whether
    all outputs that differ are floats; `quantized`: whether all are integers of at most 16 bits.

    `proof`: the result without running. `runs`: the number of inputs. `varies`: whether any output differed from one
    input to the next (None: there was one input). `inside`: the number of tensors inside both files that were compared;
    `inside_note`: how they differ, if they do. `placed`: whether the outputs are equal in TFLite Micro, too,
    with the offsets of the second file; None where no such run was made in addition to the others. Where nothing is
    proven, `tried` says by which further inputs a difference was looked for, and `reached` how the files differ on one
    of them. `unshown`: a difference of the files that no run shows, such as other values of a constant in a branch."""

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
    placed: bool | None = None
    unshown: str = ""
    tried: tuple[str, ...] = ()
    reached: str = ""

    @property
    def proven(self) -> bool:
        """Whether the second file is proven to hold the first's network, without a part that only runs check."""
        return self.proof is not None and self.proof.proven and not self.proof.optimised

    @property
    def reason(self) -> str:
        """Why it is not proven; "" where it is."""
        if self.proven:
            return ""
        if self.proof is None:
            return self.note
        return BY_RUNTIME if self.proof.proven else self.proof.reason

    def agrees(self, tolerance: float | None = None) -> bool:
        """Whether all runs agree: up to rounding, or where a tolerance is given, to within it. True where nothing was
        run."""
        if self.reached:
            return False
        if tolerance is not None:
            return self.equal is None or self.within(tolerance)
        return self.equal is None or (self.rounds_alike and not self.inside_note)

    def verdict(self, tolerance: float | None = None) -> Verdict:
        """The answer. Runs that differ outweigh a proof, which says nothing about runtimes."""
        if not self.agrees(tolerance):
            return "differ"
        return "proven" if self.proven else "not proven"

    @property
    def telling(self) -> bool:
        """Whether runs were made that could have shown a difference: outputs that are the same for all inputs cannot,
        and a difference that is known and not shown was not."""
        return self.equal is not None and self.varies is not False and not self.unshown

    @property
    def exact(self) -> bool:
        """Whether the outputs must be equal bit for bit: the second file is proven to compute every element as the
        first does, and the runtime computes operator by operator. ONNX Runtime may fuse the two files differently."""
        return self.proven and self.proof is not None and self.proof.exact and self.runtime != "ort"

    @property
    def rounds_alike(self) -> bool:
        """Whether the outputs are equal, or floats that differ by no more than rounding. If ONNX Runtime's optimisation
        made the second file from the first, quantized outputs may differ by one step."""
        if self.equal or self.max_abs_error is None:
            return bool(self.equal)
        if self.quantized and self.proof is not None and self.proof.optimised:
            return self.max_abs_error <= 1
        return self.floats and not self.exact and self.max_abs_error <= ROUNDING * max(self.largest, 1e-6)

    def within(self, tolerance: float) -> bool:
        """Whether the outputs are equal, or no value differs by more than `tolerance`."""
        return bool(self.equal) or (self.max_abs_error is not None and self.max_abs_error <= tolerance)


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

    In TFLite Micro only: `before_s` are the seconds of a run of the original, and `latency` is that of the shipped
    file with its ratio to the original: medians of interleaved rounds on this host with the wheel's reference kernels.
    They are None where they were not timed."""

    runtime: str
    before: int
    after: int
    details: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rows: tuple[SessionTaken, ...] = ()
    front: tuple[SessionTaken, ...] = ()
    loads: LoadsHeld | None = None
    before_s: float | None = None
    latency: Latency | None = None

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class OnChip:
    """Simulated off-chip traffic before and after, with this much memory on chip."""

    on_chip_bytes: int
    before: Traffic
    after: Traffic


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
class NextStep:
    """Something that a user can do next, with its numbers. `gained_bytes` and `gained_s`: the most memory or time that
    it saves; None where it saves none, or that is not known. `suffices`: whether the network then fits the memory limit
    that was given."""

    text: str
    gained_bytes: int | None = None
    gained_s: float | None = None
    suffices: bool = False


@dataclass(frozen=True, slots=True)
class RamVerdict:
    """Whether a network fits a memory limit.

    `needed_bytes`: what the shipped file takes. If it was measured, this includes what the runtime keeps outside the
    arena, and `scratch_bytes`, what the kernels named need in addition to those that were run (analytic).
    `least_bytes`: a lower bound in the same terms. `least_of` says for what it holds: every order of the network, or
    its inputs or outputs alone where segments may be computed in strips. `least_in_order_bytes`: a lower bound of every
    plan in the planned order, also in strips; None where none were searched or none needs less. "does not fit" is
    proven: `least_bytes` is above the limit. `remedies`: ways to make it fit, unsorted."""

    state: Literal["fits", "does not fit", "not known"]
    limit_bytes: int
    needed_bytes: int
    least_bytes: int
    reason: str = ""
    least_of: Literal["every order", "inputs or outputs alone"] = "every order"
    remedies: tuple[NextStep, ...] = ()
    scratch_bytes: int = 0
    least_in_order_bytes: int | None = None

    __repr__ = abridged

    @property
    def free_bytes(self) -> int:
        """Bytes of the limit that are left; negative where the limit is too low."""
        return self.limit_bytes - self.needed_bytes


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of `fit`. `shipped`: the name of the shipped candidate: original, optimised, order, order+offsets,
    rewritten, rewritten+offsets, strips or strips+offsets. `graph` and `together`: the network and plan of the shipped
    file, or the best plan if a file without a plan ships. `before`: the arena of the original; `original`: the network
    that it places. `rewrites`: those in the shipped file. `session`: the settings with which ONNX Runtime takes the
    measured memory; None for other targets, and where nothing was measured. `not_measured`: why the target's runtime
    did not measure the files, if it could have. `ram`: the verdict about a memory limit; None where none was given.
    `front`: plans in strips, if they were asked for. `in_strips`: how to ask for segments in strips, where nobody did
    and they may need less. `int8_form`: TFLite Micro does not run the file, which computes on uint8, and `int8` fits an
    exact form that it runs. `kernels`: the library whose kernels may overlap results and inputs; None where nothing
    overlaps. `time_limit_s` and `work_limit`: the limits of the searches. `versions`: of the packages that took part,
    by name. `command`: the call that asks for this result, with target, time limit and rewriting also where they are
    the defaults; `seed`: of random choices. `interrupted`: a user ended the search early."""

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
    in_strips: NextStep | None = None
    int8_form: bool = False
    kernels: KernelsName | None = None
    time_limit_s: float = math.inf
    work_limit: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    command: Call | None = None
    seed: int = 0
    interrupted: bool = False

    @property
    def memory(self) -> str:
        """The memory model of the plan."""
        return self.together.arena.memory

    @property
    def assumed_kernels(self) -> KernelsName | None:
        """The library of kernels that the shipped file needs, because its tensors may overlap; None where it needs no
        particular one."""
        offsets = self.ships_plan and self.shipped not in ("order", "rewritten", "strips")
        return self.kernels if offsets and self.memory.endswith(f"-{self.kernels}") else None

    @property
    def taken(self) -> SessionTaken | None:
        """The measurement of the shipped file with the settings in `session`; None where there is none."""
        rows = self.measured.rows if self.measured is not None else ()
        return next((row for row in rows[::-1] if (row.file, row.settings) == (self.shipped, self.session)), None)

    @property
    def ships_plan(self) -> bool:
        """Whether the shipped file follows `together`; else it is the original, or the runtime's optimised form of
        it."""
        return self.shipped not in ("original", "optimised")

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
        return f"<Fit of {_end(self.model)!r} to {self.target}: peak {peak}, arena {arena}, shipped {self.shipped}>"


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


@dataclass(frozen=True, slots=True)
class StepNeed:
    """One operator of an order, and the bytes live while it runs."""

    step: int
    kind: str
    name: str
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """A summary of a network, and the memory that its file's order needs under the memory model `memory`.

    `tensors` counts activations. `width`: the most operators of which none needs another's result. `downsets`: the
    number of downsets, counted where `downsets_exact`, else estimated. An estimate is at most the largest float;
    `downsets_log10` is its logarithm. `peak_bytes`: the peak of the file's order."""

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
