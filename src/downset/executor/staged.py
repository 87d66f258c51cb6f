"""A plan of stages and the graph it is for: preparing the graph, checking that they fit, and running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from downset.errors import InvalidPlan
from downset.executor.binder import Binder
from downset.executor.device import Device
from downset.executor.program import lower
from downset.graph.core import Graph
from downset.graph.fingerprint import fingerprint
from downset.kernels.known_values import with_known_values
from downset.plans import StagePlan
from downset.rewrites.fold_batch_norm import fold_batch_norm
from downset.rewrites.rebatch import batch_or_one, rebatch
from downset.runtimes.agreement import as_array
from downset.stages.check import verify_stages
from downset.stages.unit_graph import UnitGraph, unit_predecessors
from downset.stages.variants import VARIANTS

__all__ = ["PlannedEngine", "check_plan", "planned_graph", "prepare", "stage_engine"]


def prepare(graph: Graph, *, batch: int | None = None) -> Graph:
    """What is staged and run: for this batch, what is known before any run as constants, batch normalisation folded."""
    graph = with_known_values(graph, sized=False)
    if batch is not None:
        graph = rebatch(graph, batch)
    return fold_batch_norm(with_known_values(graph))


def check_plan(graph: Graph, plan: StagePlan, device: Device) -> None:
    """Raise InvalidPlan naming the difference where a plan was made for another prepared graph, batch or device,
    or from prices for none."""
    if not plan.device:
        raise InvalidPlan("the plan was made from prices, for no device; make one with `downset stage`")
    asked = {
        "batch": (plan.batch, batch_or_one(graph)),
        "element type": (plan.dtype, device.dtype),
        "device": (plan.device_name, device.name),
    }
    for what, (planned, given) in asked.items():
        if planned != given:
            raise InvalidPlan(f"the plan was made for {what} {planned}, not for {given}; make one with `downset stage`")
    if plan.model != fingerprint(graph):
        raise InvalidPlan(
            f"the plan was made for another model: operators, attributes or shapes of {graph.name} differ "
            f"(fingerprint {fingerprint(graph)}, the plan's {plan.model}); make one with `downset stage`"
        )
    verify_stages(planned_graph(graph, plan), plan)


def planned_graph(graph: Graph, plan: StagePlan) -> Graph:
    """The variant of a prepared graph that the plan's units are of. Raises InvalidPlan for one that there is not."""
    if plan.variant not in VARIANTS:
        raise InvalidPlan(f"the plan names variant {plan.variant!r}; known: {', '.join(map(repr, VARIANTS))}")
    return VARIANTS[plan.variant](graph)


class PlannedEngine:
    """A plan made ready to run on one set of inputs. Close it when done: it may own threads."""

    def __init__(self, engine: Any, device: Device, values: Sequence[Any]) -> None:
        self._engine, self._device, self._values = engine, device, values

    def outputs(self) -> list[Any]:
        """PyTorch tensors in the order of the graph's outputs, in the device's element type."""
        return list(self._engine(self._values))

    def time(self, runs: int) -> list[float]:
        """Seconds of each run. Measured."""
        return self._device.time_whole({"": self._engine}, self._values, runs=runs)[""]

    def close(self) -> None:
        close = getattr(self._engine, "close", None)
        if close is not None:
            close()


def _is_finite(value: Any) -> bool:
    array = as_array(value) if hasattr(value, "cpu") else np.asarray(value)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def stage_engine(graph: Graph, plan: StagePlan, device: Device, values: Sequence[Any]) -> PlannedEngine:
    """The plan on a prepared graph, for inputs of these values. `check_plan` says whether it fits."""
    graph = planned_graph(graph, plan)
    finite = all(map(_is_finite, values))
    binder = Binder(graph, device=device.kind, dtype=device.dtype, finite=finite)
    # Merged kernels have zeros in their corners, and zero times what is no number is none either.
    stages = plan.stages if finite else tuple(replace(stage, merged=False) for stage in plan.stages)
    units = UnitGraph(plan.units, unit_predecessors(graph, plan.units))
    program = lower(units, stages, barriers=plan.barriers, max_lanes=device.max_lanes)
    engine = device.engine(binder, units, program, inputs=graph.inputs, outputs=graph.outputs, values=values)
    return PlannedEngine(engine, device, [binder.place(value) for value in values])
