"""Runs a plan of stages on its network, after checking that they fit; compares outputs with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.errors import InvalidPlan, UsageError
from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.executor.device import TorchDevice, open_device
from downset.executor.lane_program import lower
from downset.graph.core import Graph, fingerprint
from downset.graph.float_types import cast_text, coarsest, type_in_common
from downset.messages import Call
from downset.results.plans import StagePlan
from downset.results.stages import StageRun
from downset.rewrites.rebatch import batch_or_one
from downset.runtimes.differences import allowed_difference, as_array, difference
from downset.stages.check import verify_stages
from downset.stages.prepared import planned_graph, prepare
from downset.stages.unit_graph import UnitGraph, unit_predecessors

__all__ = ["PlannedEngine", "check_plan", "is_finite", "run_stages", "stage_engine"]


def run_stages(
    graph: Graph,
    plan: StagePlan,
    inputs: Sequence[npt.NDArray[Any]] = (),
    *,
    runs: int = 5,
    seed: int = 0,
    compare: bool = False,
) -> StageRun:
    """Run a network by a plan of stages on the plan's device, and measure the seconds of `runs` runs.

    `graph`: the loaded model; it is prepared here for the plan's batch. `inputs`: an array for each input of the
    network, in its order and of its shape, with the plan's batch in front; by default random values drawn from `seed`.
    Floats must have the input's own type; integers are taken for it where nothing is lost.
    `compare`: also run the graph's .onnx file in ONNX Runtime, and return the difference of the outputs. Outputs that
    differ raise nothing: see `StageRun.agrees`.

    Raises InvalidPlan for a plan of another network, device or element type, UsageError for inputs that do not fit, and
    UnsupportedError if PyTorch, CUDA or ONNX Runtime is needed and missing.
    """
    if runs < 1:
        raise UsageError(f"runs must be at least 1; given {runs}")
    if compare and graph.source.format != "onnx":
        raise UsageError(
            f"{graph.name} cannot be compared: ONNX Runtime runs .onnx files, and it was not read from one"
        )
    device = open_device(plan.device, dtype=plan.dtype, threads=plan.threads if plan.device == "cpu" else None)
    prepared = prepare(graph, batch=plan.batch)
    check_plan(prepared, plan, device)
    values = _typed_inputs(prepared, inputs) if inputs else seeded_inputs(prepared, seed=seed)
    engine = stage_engine(prepared, plan, device, values)
    try:
        results = [as_array(value) for value in engine.outputs()]
        seconds = engine.time(runs)
    finally:
        engine.close()
    worst = _differ(graph, values, results) if compare else None
    tensors = [prepared.tensors[tensor] for tensor in prepared.outputs]
    outputs = {tensor.name: _as_stated(value, tensor.dtype) for tensor, value in zip(tensors, results, strict=True)}
    allowed = allowed_difference(plan.device, coarsest(prepared, plan.dtype))
    return StageRun(device.name, outputs, tuple(seconds), worst, allowed, cast_text(prepared, plan.dtype))


def _as_stated(value: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """A float output in the element type that the model states, whatever it was computed in. numpy has no bfloat16."""
    return value if value.dtype.kind != "f" or dtype == "bfloat16" else value.astype(dtype, copy=False)


def _typed_inputs(graph: Graph, inputs: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """The inputs in the element types of the graph. Raises UsageError naming one that does not fit."""
    if len(inputs) != len(graph.inputs):
        raise UsageError(f"{graph.name} has {len(graph.inputs)} inputs; {len(inputs)} were given")
    values = []
    for value, tensor in zip(inputs, graph.inputs, strict=True):
        wanted = graph.tensors[tensor]
        if value.shape != wanted.shape:
            raise UsageError(f"input {wanted.name!r} takes shape {list(wanted.shape)}; given {list(value.shape)}")
        try:
            dtype = np.dtype(wanted.dtype)
        except TypeError:
            raise UsageError(f"input {wanted.name!r} of {wanted.dtype} cannot be given as an array") from None
        if value.dtype != dtype and value.dtype.kind + dtype.kind in ("ff", "fc", "cc"):
            raise UsageError(
                f"input {wanted.name!r} takes {wanted.dtype}; given {value.dtype}: convert it with "
                f"array.astype({wanted.dtype!r})"
            )
        taken = _without_loss(value, dtype)
        if taken is None:
            raise UsageError(f"input {wanted.name!r} of {wanted.dtype} cannot take the {value.dtype} that was given")
        values.append(taken)
    return values


def _without_loss(value: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """The array in this type; None where numbers would change."""
    if value.dtype == dtype:
        return value
    if value.dtype.kind not in "biuf":
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        taken = value.astype(dtype)
        return taken if np.array_equal(taken.real.astype(value.dtype), value) else None


def _differ(graph: Graph, values: Sequence[npt.NDArray[Any]], results: Sequence[npt.NDArray[Any]]) -> float:
    """The largest difference from ONNX Runtime's outputs, as a share of the largest value. ONNX Runtime runs the file
    with the file's batch."""
    from downset.runtimes import ort

    given = [graph.tensors[tensor] for tensor in graph.inputs]
    shapes = {tensor.name: tensor.shape for tensor in given}
    own = given[0].shape[0] if given and given[0].shape else 1
    batch = values[0].shape[0] if values and values[0].shape else 1
    parts = []
    for start in range(0, batch, own):
        feeds = {
            tensor.name: value[start : start + own] if value.shape else value
            for tensor, value in zip(given, values, strict=True)
        }
        parts.append(ort.run_on(graph.source.path, feeds, shapes=shapes))
    expected = [np.concatenate(outputs) if len(parts) > 1 else outputs[0] for outputs in zip(*parts, strict=True)]
    for position, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        if ours.shape != theirs.shape:
            raise InvalidPlan(
                f"output {position} has shape {list(ours.shape)}; ONNX Runtime's has {list(theirs.shape)}"
            )
    return difference(results, expected)


_ADVICE = ("; make one with `", Call("tune_stages"), "`")


def check_plan(graph: Graph, plan: StagePlan, device: TorchDevice) -> None:
    """Raise InvalidPlan naming the difference if a plan was made for another prepared graph, batch, element type or
    device, or from prices for no device."""
    if not plan.device:
        raise InvalidPlan("the plan was made from prices, not for a device", *_ADVICE)
    demands = {
        "batch": (plan.batch, batch_or_one(graph)),
        "element type": (plan.dtype, type_in_common(graph, device.dtype)),
        "device": (plan.device_name, device.name),
    }
    for what, (planned, given) in demands.items():
        if planned != given:
            raise InvalidPlan(f"the plan was made for {what} {planned}, not for {given}", *_ADVICE)
    if plan.model != fingerprint(graph):
        raise InvalidPlan(
            f"the plan was made for another model: operators, attributes or shapes of {graph.name} differ "
            f"(fingerprint {fingerprint(graph)}, the plan's {plan.model})",
            *_ADVICE,
        )
    verify_stages(planned_graph(graph, plan), plan)


class PlannedEngine:
    """A plan with its engine, ready to run. It may own threads: close it after use."""

    def __init__(self, engine: Any, device: TorchDevice, binder: Binder, values: Sequence[Any]) -> None:
        self.engine, self._device, self._binder = engine, device, binder
        self.values = list(map(binder.place, values, binder.graph.inputs))

    def run(self, values: Sequence[Any], take: Callable[[int, Any], Any]) -> list[Any]:
        """Run on other tensors of the same shapes; they must be finite if the first ones were. Returns what `take`
        makes of each output by its position. It must copy what is needed later: on CUDA the next run overwrites the
        outputs. There nothing waits for the device."""
        if self._device.kind == "cuda":
            return list(self.engine(values, take))
        results = self.engine(list(map(self._binder.place, values, self._binder.graph.inputs)))
        return [take(position, value) for position, value in enumerate(results)]

    @property
    def met_nonfinite(self) -> bool:
        """Whether a call that has ended on CUDA had inputs that are not finite: see `CudaEngine`."""
        return bool(getattr(self.engine, "met_nonfinite", False))

    def outputs(self) -> list[Any]:
        """Run on the first values: PyTorch tensors in the graph's order, in the types in which they are computed."""
        return list(self.engine(self.values))

    def time(self, runs: int) -> list[float]:
        """Measured seconds of each of `runs` runs."""
        return self._device.time_whole({"": self.engine}, self.values, runs=runs)[""]

    def close(self) -> None:
        close = getattr(self.engine, "close", None)
        if close is not None:
            close()


def is_finite(value: Any) -> bool:
    """Whether an array or tensor holds neither NaN nor infinity."""
    if hasattr(value, "isfinite"):
        return bool(value.isfinite().all())
    array = np.asarray(value)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def stage_engine(
    graph: Graph, plan: StagePlan, device: TorchDevice, values: Sequence[Any], *, finite: bool | None = None
) -> PlannedEngine:
    """The plan on a prepared graph, ready to run on these inputs. `finite`: whether these and all later inputs are
    finite; None looks at these. Call `check_plan` first: nothing is checked here."""
    graph = planned_graph(graph, plan)
    finite = all(map(is_finite, values)) if finite is None else finite
    binder = Binder(graph, device=device.kind, dtype=device.dtype, finite=finite)
    # Merged weights are padded with zeros, and zero times NaN is NaN.
    stages = plan.stages if finite else tuple(replace(stage, merged=False) for stage in plan.stages)
    units = UnitGraph(plan.units, unit_predecessors(graph, plan.units))
    program = lower(units, stages, barriers=plan.barriers, max_lanes=device.max_lanes)
    engine = device.engine(binder, program, inputs=graph.inputs, outputs=graph.outputs, values=values)
    return PlannedEngine(engine, device, binder, values)
