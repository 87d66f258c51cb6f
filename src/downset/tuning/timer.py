"""Measures prices of stages on a device, and makes the problems of a network's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

from downset.errors import UnsupportedError
from downset.executor.binder import Binder
from downset.executor.device import TorchDevice
from downset.executor.lane_program import lower
from downset.graph.core import ABSENT, Graph
from downset.graph.float_types import type_in_common
from downset.graph.kinds import kind_of
from downset.lattice import bits
from downset.messages import Message
from downset.rewrites.merge.units import why_not_merged
from downset.rewrites.rebatch import batch_or_one
from downset.stages.price import signature
from downset.stages.problem import Stage, StageProblem
from downset.stages.unit_graph import UnitGraph
from downset.tuning.profiles import Key, Profiles

_NEVER_S = 1e6
"""The price, in seconds, of a stage that the device cannot run; no real stage takes as long."""
_APART = 2.0
_CALL_S = 5e-4
"""The sum of units timed alone is about the time of the whole network plus a call's overhead for each unit. A larger
sum was measured under load."""

__all__ = ["StageTimer", "block_problem", "merge_families", "renamed"]


def merge_families(graph: Graph, units: UnitGraph) -> tuple[int, ...]:
    """Disjoint masks of units; any two or more units of a mask can be merged into one convolution."""
    by_input: dict[int, list[int]] = {}
    for unit, ops in enumerate(units.units):
        if kind_of(graph.ops[ops[0]].kind).category == "convolution":
            by_input.setdefault(graph.ops[ops[0]].inputs[0], []).append(unit)
    families: list[list[int]] = []
    for members in by_input.values():
        fitting: list[list[int]] = []
        for unit in members:
            for family in fitting:
                if why_not_merged(graph, [units.units[family[0]], units.units[unit]]) is None:
                    family.append(unit)
                    break
            else:
                fitting.append([unit])
        families += [family for family in fitting if len(family) > 1]
    return tuple(sum(1 << unit for unit in family) for family in families)


class StageTimer:
    """Prices of stages in seconds, measured on the device. Stages that differ only in names are measured once.

    Only `settle` keeps timings in `profiles`, once the whole network has been timed too. So timings of a loaded machine
    are not used again.
    """

    def __init__(
        self,
        graph: Graph,
        units: UnitGraph,
        device: TorchDevice,
        binder: Binder,
        profiles: Profiles | None,
        *,
        shared: StageTimer | None = None,
    ) -> None:
        self._graph, self._units, self._device, self._binder = graph, units, device, binder
        self._profiles, self._batch = profiles, batch_or_one(graph)
        self._dtype = type_in_common(graph, device.dtype)
        # Timers of variants of one network share known timings and the count of timings.
        self._shared = shared
        self.seconds_of: dict[str, float] = {} if shared is None else shared.seconds_of
        self._versions = f"{device.versions}, downset {version('downset')}"
        self._fresh: dict[str, float] = {}
        if profiles is not None:
            self.seconds_of.update(profiles.matching(device.name, self._versions, self._dtype, self._batch))
        self._used = 0
        self.notes: list[str] = [] if shared is None else shared.notes
        self._names: dict[Stage, str] = {}
        self._read_by = graph.consumers()

    @property
    def used(self) -> int:
        """The number of stages measured so far."""
        return self._used if self._shared is None else self._shared.used

    def _count(self) -> None:
        if self._shared is None:
            self._used += 1
        else:
            self._shared._count()

    def name_of(self, stage: Stage) -> str:
        if stage not in self._names:
            self._names[stage] = signature(self._graph, self._units, stage)
        return self._names[stage]

    def is_free(self, stage: Stage) -> bool:
        return self.name_of(stage) in self.seconds_of

    def __call__(self, stage: Stage) -> float:
        name = self.name_of(stage)
        if name not in self.seconds_of:
            try:
                self.seconds_of[name] = self._measure(stage)
            except UnsupportedError as error:
                if len(stage.units) == 1:
                    raise
                # A stage may fail whose units run alone: it takes more memory, or kernels of another shape.
                self.seconds_of[name] = _NEVER_S
                self.notes.append(Message(f"a stage of {len(stage.units)} units was left out: ", error.message))
            self._count()
            if self._profiles is not None and self.seconds_of[name] < _NEVER_S:
                self._fresh[name] = self.seconds_of[name]
        return self.seconds_of[name]

    def settle(self, units: Sequence[float], whole_s: float, *, quiet: bool) -> None:
        """Keep the timings of this run if the machine was `quiet` and the seconds of `units` alone sum to about
        `whole_s`, those of the whole network. If the sum is too large, also remove older timings of single units, so
        that a later run measures them again."""
        if self._profiles is None:
            return
        if sum(units) > _APART * whole_s + _CALL_S * len(units):
            names = {self.name_of(Stage(((unit,),))) for unit in range(len(self._units.units))}
            forgotten = self._profiles.forget([self._key(name) for name in names - set(self._fresh)])
            self.notes.append(
                f"units alone took {sum(units) * 1e3:.3f} ms in all, the whole network {whole_s * 1e3:.3f} ms: they "
                f"were timed under load; these times were not kept, and {forgotten} older ones were removed"
            )
        elif not quiet:
            self.notes.append("timings of this run were not kept: the machine was not quiet")
        else:
            self._profiles.put([(self._key(name), seconds) for name, seconds in self._fresh.items()])

    def _key(self, name: str) -> Key:
        return Key(self._device.name, self._versions, self._dtype, self._batch, name)

    def _measure(self, stage: Stage) -> float:
        program = lower(self._units, [stage], barriers=True, max_lanes=self._device.max_lanes)
        ops = [op for unit in stage.units for op in self._units.units[unit]]
        produced = {tensor for op in ops for tensor in self._graph.ops[op].outputs if tensor != ABSENT}
        inputs = list(
            dict.fromkeys(
                tensor
                for op in ops
                for tensor in self._graph.ops[op].inputs
                if tensor != ABSENT and tensor not in produced and tensor not in self._graph.constants
            )
        )
        inside = set(ops)
        outputs = [
            tensor
            for tensor in produced
            if tensor in self._graph.outputs or any(op not in inside for op in self._read_by[tensor])
        ]
        return self._device.time_stage(self._binder, program, inputs, sorted(outputs))


def block_problem(units: UnitGraph, families: Sequence[int], block: Sequence[int]) -> StageProblem:
    """The problem of one block: its units are renumbered from 0, and units of earlier blocks count as computed."""
    number = {unit: position for position, unit in enumerate(block)}

    def inside(mask: int) -> int:
        return sum(1 << number[unit] for unit in bits(mask) if unit in number)

    masks = tuple(inside(units.predecessors[unit]) for unit in block)
    return StageProblem(masks, tuple(mask for family in families if (mask := inside(family)).bit_count() > 1))


def renamed(stages: Sequence[Stage], block: Sequence[int]) -> list[Stage]:
    """Stages of a block's problem, with the numbers that its units have in the network."""
    return [replace(stage, groups=tuple(tuple(block[u] for u in group) for group in stage.groups)) for stage in stages]
