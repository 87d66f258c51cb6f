"""The order of Inductor's scheduler nodes of least peak memory, decided alike in every process.

A search that ends by the clock may end elsewhere on another machine, and ranks of one job must agree. So effort is
counted in states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from downset.memory.liveness import OrderProblem, Storage, peak_bytes, profile
from downset.orders.plan import plan_order
from downset.plans import Order
from downset.text import abridged, format_bytes

__all__ = ["LiveBuffer", "OrderReport", "least_peak_order", "live_at", "rise_by_device"]


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer that is live where memory peaks, and the line of the model that made it ("" where none is known)."""

    name: str
    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class OrderReport:
    """The gain of ordering one compiled graph. Bytes are Inductor's own estimate of a peak, which leaves out the
    inputs that it may not free: parameters and the state of an optimiser."""

    graph: str
    """Inductor's name of the graph and what it computes: "forward", "backward" or "inference"."""
    nodes: int
    given_bytes: int
    """Peak of the order that fusion left."""
    inductor_bytes: int
    """Peak of the best of that order and Inductor's three heuristics: what compiles without us."""
    order: Order
    """Ours; its evidence holds the bound, and whether the peak is proven least."""
    chosen: bool
    """Whether the graph runs in our order: it does where the peak is below Inductor's best."""
    peak_node: str
    """The node that runs when memory peaks in the order that runs."""
    peak_live: tuple[LiveBuffer, ...]
    """Buffers that are live then, the largest first."""

    __repr__ = abridged

    def __str__(self) -> str:
        """Some lines for people."""
        before, after = self.inductor_bytes, min(self.order.peak_bytes, self.inductor_bytes)
        lines = [
            f"{self.graph}, {self.nodes} nodes: peak {format_bytes(before)} -> {format_bytes(after)} B "
            f"({(after - before) / max(before, 1):+.1%}); {self.order.evidence.in_bytes()}; "
            f"planned in {self.order.evidence.seconds:.3f} s",
            f"peak at {self.peak_node}:",
        ]
        return "\n".join(lines + [f"  {format_bytes(b.nbytes):>12} {b.name} {b.source}" for b in self.peak_live[:10]])


def least_peak_order(problem: OrderProblem, *, work_limit: int) -> Order:
    """The best order that so many states find, with its bound: the same one in every process. Never above the given
    order."""
    return plan_order(problem, method="optimal", work_limit=work_limit, time_limit_s=math.inf)


def live_at(problem: OrderProblem, steps: Sequence[int]) -> tuple[int, list[int]]:
    """The operator at which an order first peaks, and the storages live then, the largest first."""
    transients = profile(problem, steps)
    step = transients.index(max(transients))
    at = {operator: when for when, operator in enumerate(steps)}

    def live(storage: Storage) -> bool:
        begun = not storage.producers or min(at[v] for v in storage.producers) <= step
        return begun and (storage.kept or max(at[v] for v in storage.consumers) >= step)

    held = [index for index, storage in enumerate(problem.storages) if live(storage)]
    return steps[step], sorted(held, key=lambda index: (-problem.storages[index].nbytes, index))


def rise_by_device(
    problem: OrderProblem, devices: Sequence[str], before: Sequence[int], after: Sequence[int]
) -> dict[str, int]:
    """The devices on which `after` peaks above `before`, and by how many bytes. `devices[i]` holds storage i.

    One peak summed over devices may fall while that of one of them rises. O(devices * problem)."""
    risen = {}
    for device in dict.fromkeys(devices):
        storages = tuple(s for s, held in zip(problem.storages, devices, strict=True) if held == device)
        own = OrderProblem(problem.predecessors, storages)
        if (more := peak_bytes(own, after) - peak_bytes(own, before)) > 0:
            risen[device] = more
    return risen
