"""Results of compiling with PyTorch: plain values that `ds.inductor` passes to the receivers of its reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from downset.results.inspections import StepNeed
from downset.results.plans import Evidence, Order
from downset.text import abridged, counted, format_bytes

__all__ = [
    "LiveBuffer",
    "ModulePeak",
    "OperatorPlan",
    "OrderReport",
    "PeakReport",
    "RecomputeReport",
    "RepeatedOperator",
    "StepPlan",
]

Action = Literal["keep", "recompute", "chunk", "offload"]


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer that is live at the peak. `source`: the line of the model that made it; if all of that code is
    PyTorch's, the module (`module 0.2 (Linear)`); "" where neither is known."""

    name: str
    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class OrderReport:
    """The gain of ordering one compiled graph. Bytes are peaks as Inductor estimates them, without what fused kernels
    keep in registers. They do not count inputs that it may not free: parameters and the state of an optimiser."""

    graph: str
    """Inductor's name of the graph and what it computes: forward, backward, inference or a training step."""
    nodes: int
    given_bytes: int
    """The peak of the order after fusion."""
    inductor_bytes: int
    """The peak of the best of that order and those of Inductor's three heuristics."""
    order: Order
    """downset's order; its evidence holds the bound, and whether the peak is proven least."""
    chosen: bool
    """Whether the graph runs in downset's order. It does if that peak is below Inductor's best and no device's peak
    rises; on a CPU also at an equal peak, if the calls that kernels share then hold fewer bytes."""
    peak_node: str
    """The node that runs at the peak of the order that is used."""
    peak_live: tuple[LiveBuffer, ...]
    """The buffers that are live at that peak, the largest first."""
    before: tuple[StepNeed, ...] = ()
    """The nodes in the best of Inductor's orders, by step, with the bytes live while each runs."""
    after: tuple[StepNeed, ...] = ()
    """The same in the order that is used."""
    devices: str = ""
    """The devices, where the graph is on several, and whether it keeps Inductor's order for that reason; else ""."""

    __repr__ = abridged

    @property
    def peak_bytes(self) -> int:
        """The peak of the order that is used."""
        return self.order.peak_bytes if self.chosen else self.inductor_bytes

    def __str__(self) -> str:
        """A summary for users, on several lines."""
        before, after = self.inductor_bytes, self.peak_bytes
        lines = [
            f"{self.graph}, {self.nodes} nodes: peak {format_bytes(before)} -> {format_bytes(after)} B "
            f"({(after - before) / max(before, 1):+.1%}); {self.order.evidence.in_bytes()}; "
            f"planned in {self.order.evidence.seconds:.3f} s",
            *([self.devices] if self.devices else []),
            f"peak at {self.peak_node}:",
        ]
        live = [f"  {format_bytes(b.nbytes):>12} {b.name} {b.source}".rstrip() for b in self.peak_live[:10]]
        return "\n".join(lines + live)


@dataclass(frozen=True, slots=True)
class RepeatedOperator:
    """An operator that runs again, by PyTorch's name. `source`: the line or module of the model that it comes from, as
    of `LiveBuffer`; `nbytes`: of its result; `cost_s`: the seconds that it takes again, analytic."""

    name: str
    source: str
    nbytes: int
    cost_s: float


@dataclass(frozen=True, slots=True)
class RecomputeReport:
    """The operators of one training step that run again. Peaks are estimates from the graph before the compiler fuses
    it. They do not count parameters, the state of an optimiser or the batch."""

    limit_bytes: int
    peak_bytes: int
    """The peak under the best order of the chosen operators."""
    cost_s: float
    """An analytic estimate of the seconds that the operators take to run again."""
    none_bytes: int
    """The peak if no operator runs again."""
    pytorch: tuple[float, int] | None
    """(cost in seconds, peak in bytes) of PyTorch's choice; None unless forward and backward are two graphs."""
    operators: tuple[RepeatedOperator, ...]
    """The operators that run again."""
    front: tuple[tuple[float, int], ...]
    """(cost in seconds, peak in bytes) of the choices that no other beats in both, the cheapest first."""
    tried: int
    seconds: float
    """The seconds that the search took. Its effort is limited in sets, so the choice does not depend on them."""
    chunks: int = 1
    """The number of chunks of rows in which the widest layer and the loss behind it run, one after another."""
    moved: tuple[RepeatedOperator, ...] = ()
    """The operators whose results move to the host and back; `cost_s` is the time of the operator, not of the move."""

    __repr__ = abridged

    def __str__(self) -> str:
        within = "within" if self.peak_bytes <= self.limit_bytes else "above the limit of"
        again = f"{counted(len(self.operators), 'operator')} run{'s' if len(self.operators) == 1 else ''} again"
        line = (
            f"recomputation: peak {format_bytes(self.none_bytes)} -> {format_bytes(self.peak_bytes)} B, estimated "
            f"before kernels are fused, {within} {format_bytes(self.limit_bytes)} B; {again}, "
            + (f"the widest layer and its loss run in {self.chunks} chunks, " if self.chunks > 1 else "")
            + (f"{counted(len(self.moved), 'result')} move to the host and back, " if self.moved else "")
            + f"about {self.cost_s:.2g} s"
        )
        if self.pytorch is not None:
            line += f"; PyTorch's own choice {format_bytes(self.pytorch[1])} B, {self.pytorch[0]:.2g} s"
        return line


@dataclass(frozen=True, slots=True)
class ModulePeak:
    """The tensors of a module that are live at the peak.

    `module`: its path in the model, "" outside of all modules, or "gradient of" a parameter; `kind`: the module's
    class, outside of all modules also the operator; `part`: where it was made: forward, backward or update."""

    module: str
    kind: str
    part: str
    nbytes: int
    count: int
    """How many tensors."""


@dataclass(frozen=True, slots=True)
class PeakReport:
    """The tensors that were live at the peak of one plain training step.

    Bytes do not count parameters, the state of an optimiser
    and the batch, nor what a library allocates inside an operator."""

    peak_bytes: int
    peak_operator: str
    """The module and the operator that ran at the peak."""
    modules: tuple[ModulePeak, ...]
    """The parts of the peak, the most bytes first."""
    operators: tuple[StepNeed, ...]
    """The operators as they ran, with the bytes live when each ended."""

    __repr__ = abridged

    def __str__(self) -> str:
        """A summary for users, on several lines."""
        lines = [f"peak {format_bytes(self.peak_bytes)} B at {self.peak_operator or 'no operator'}:"]
        for of in self.modules[:10]:
            name = f"{of.module or 'outside of modules'} ({of.kind})" if of.kind else of.module or "outside of modules"
            lines.append(f"  {format_bytes(of.nbytes):>12} {name}, {of.part}, {counted(of.count, 'tensor')}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """The plan of one operator's result (`name`: its fx node) until the backward pass reads it: it is kept,
    computed again, computed in chunks of rows, or moved to the host and back. `nbytes`: of its result."""

    name: str
    action: Action
    nbytes: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A plan of one training step's memory, as `plan_step` returns it."""

    operators: tuple[OperatorPlan, ...]
    """Every operator of the forward pass that makes a result, and of the regions in chunks, in the graph's order."""
    chunks: int
    """The number of chunks of rows in which the regions run; 1 where none does."""
    peak_bytes: int
    """The peak under the best order of what is planned."""
    none_bytes: int
    """The peak where everything is kept."""
    within: bool
    """Whether the peak is at most the limit; otherwise it is the least that was found."""
    least_bytes: int
    """A lower bound on the peak of every plan of this kind."""
    evidence: Evidence
    """The seconds that the plan adds by an analytic estimate; proven only where it adds none."""
    front: tuple[tuple[float, int], ...]
    """(seconds, peak in bytes) of the plans that no other beats in both, the cheapest first."""

    __repr__ = abridged
