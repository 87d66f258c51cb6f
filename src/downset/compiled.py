"""Results of compiling with PyTorch: plain values, which `ds.inductor` hands to receivers of reports and pages draw."""

from __future__ import annotations

from dataclasses import dataclass

from downset.plans import Order
from downset.results import StepNeed
from downset.text import abridged, format_bytes

__all__ = ["LiveBuffer", "OrderReport", "RecomputeReport"]


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer that is live where memory peaks. `source`: the line of the model that made it; where all the code is
    PyTorch's own, the module (`module 0.2 (Linear)`); "" where neither is known."""

    name: str
    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class OrderReport:
    """The gain of ordering one compiled graph. Bytes are Inductor's own estimate of a peak, which leaves out the
    inputs that it may not free: parameters and the state of an optimiser."""

    graph: str
    """Inductor's name of the graph and what it computes: forward, backward, inference or a training step."""
    nodes: int
    given_bytes: int
    """Peak of the order that fusion left."""
    inductor_bytes: int
    """Peak of the best of that order and Inductor's three heuristics: what compiles without us."""
    order: Order
    """Ours; its evidence holds the bound, and whether the peak is proven least."""
    chosen: bool
    """Whether the graph runs in our order: it does where the peak is below Inductor's best, and rises on no device; on
    a processor also at the same peak, where the calls that kernels share hold less."""
    peak_node: str
    """The node that runs when memory peaks in the order that runs."""
    peak_live: tuple[LiveBuffer, ...]
    """Buffers that are live then, the largest first."""
    before: tuple[StepNeed, ...] = ()
    """The nodes in the best of Inductor's orders, by step, with the bytes that live while each runs."""
    after: tuple[StepNeed, ...] = ()
    """The same in the order that runs."""
    devices: str = ""
    """Where the graph is on several devices: which, and whether that is why it keeps Inductor's order."""

    __repr__ = abridged

    @property
    def peak_bytes(self) -> int:
        """The peak of the order that runs."""
        return self.order.peak_bytes if self.chosen else self.inductor_bytes

    def __str__(self) -> str:
        """Some lines for people."""
        before, after = self.inductor_bytes, self.peak_bytes
        lines = [
            f"{self.graph}, {self.nodes} nodes: peak {format_bytes(before)} -> {format_bytes(after)} B "
            f"({(after - before) / max(before, 1):+.1%}); {self.order.evidence.in_bytes()}; "
            f"planned in {self.order.evidence.seconds:.3f} s",
            *([self.devices] if self.devices else []),
            f"peak at {self.peak_node}:",
        ]
        return "\n".join(lines + [f"  {format_bytes(b.nbytes):>12} {b.name} {b.source}" for b in self.peak_live[:10]])


@dataclass(frozen=True, slots=True)
class RecomputeReport:
    """The operators of one step that run again. Peaks are estimates from the graph before the compiler fuses it. They
    leave parameters, the state of an optimiser and the batch out."""

    limit_bytes: int
    peak_bytes: int
    """The peak under the best order of the chosen operators."""
    cost_s: float
    """Analytic estimate of what runs again."""
    none_bytes: int
    """Peak where nothing runs again."""
    pytorch: tuple[float, int] | None
    """Cost and peak of PyTorch's own choice, where forward and backward are two graphs."""
    operators: tuple[str, ...]
    """The operators that run again, by PyTorch's names."""
    front: tuple[tuple[float, int], ...]
    """(cost, peak bytes) of the choices that no other beats, the cheapest first."""
    tried: int
    seconds: float
    """How long the search took; its effort is counted in sets, so the choice does not depend on it."""

    __repr__ = abridged

    def __str__(self) -> str:
        line = (
            f"peak {format_bytes(self.none_bytes)} -> {format_bytes(self.peak_bytes)} B within "
            f"{format_bytes(self.limit_bytes)}; {len(self.operators)} operators run again, about {self.cost_s:.2g} s"
        )
        if self.pytorch is not None:
            line += f"; PyTorch's own choice {format_bytes(self.pytorch[1])} B, {self.pytorch[0]:.2g} s"
        return line
