"""An exported program as a PyTorch module that runs a plan of stages."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from downset.errors import UnsupportedError, UsageError
from downset.executor.device import TorchDevice, open_device
from downset.executor.stage_engine import PlannedEngine, check_plan, is_finite, stage_engine
from downset.extras import optional_library, torch_library
from downset.formats.torch.read import load_exported
from downset.graph.core import Graph
from downset.results.plans import StagePlan
from downset.stages.prepared import prepare
from downset.tuning.search import StageLimits
from downset.tuning.tune import tune_stages

__all__ = ["stage_module"]


def stage_module(
    exported_program: Any,
    device: TorchDevice | str = "cpu",
    *,
    plan: StagePlan | None = None,
    limits: StageLimits | None = None,
    runs: int = 15,
) -> Any:
    """A module of PyTorch that computes what an ExportedProgram does, for inference, by stages of operators: lanes of
    threads on the CPU, one captured graph on CUDA.

    `device`: as for `tune_stages`, which searches a plan with `limits` and `runs` if none is given; the module has the
    plan as `plan`. The module takes the program's arguments, of the sizes with which it was exported, and returns the
    program's outputs in their structure. Weights are copied: the module has no parameters and computes no gradients. On
    CUDA outputs are copied out of the captured graph. Only one call may run at a time. `close()` ends the threads of
    the lanes.

    Raises UnsupportedError for a program that writes to its buffers or takes or returns anything but tensors, LoadError
    for symbolic sizes, InvalidPlan for a plan of another network or device.
    """
    _check_tensors(exported_program)
    graph = load_exported(exported_program)
    opened = open_device(device) if isinstance(device, str) else device
    prepared = prepare(graph)
    if plan is None:
        plan = tune_stages(graph, opened, limits=limits, runs=runs).plan
    check_plan(prepared, plan, opened)
    return _module_class()(prepared, plan, opened, exported_program.call_spec)


def _check_tensors(program: Any) -> None:
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise UnsupportedError(f"the program writes to {changed[0]!r}: stages run only programs that write nothing")
    for spec in [*signature.input_specs, *signature.output_specs]:
        if type(spec.arg).__name__ != "TensorArgument":
            raise UnsupportedError(f"the program takes or returns {spec.arg}: stages run only programs of tensors")


@cache
def _module_class() -> Any:
    torch = torch_library("running stages")
    pytree = optional_library("torch.utils._pytree", what="running stages", extra="torch")

    class StageModule(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        """Runs a plan of stages; made by `stage_module`."""

        def __init__(self, graph: Graph, plan: StagePlan, device: TorchDevice, call_spec: Any) -> None:
            super().__init__()
            self.plan = plan
            self._graph, self._device, self._spec = graph, device, call_spec
            self._engines: dict[bool, PlannedEngine] = {}
            self._lock = threading.Lock()

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            values, structure = pytree.tree_flatten((args, kwargs))
            if structure != self._spec.in_spec:
                raise UsageError(f"the program was exported for arguments {self._spec.in_spec}; given {structure}")
            _check_values(self._graph, values)
            with self._lock:
                # Merged kernels and fused activations lose NaN, so inputs that are not finite have an engine without
                # them.
                finite = all(map(is_finite, values))
                if finite not in self._engines:
                    self._engines[finite] = stage_engine(self._graph, self.plan, self._device, values)
                results = self._engines[finite].run(values)
                mine = self._device.kind == "cuda"
                outputs = [
                    value.clone() if mine or tensor in self._graph.constants else value
                    for tensor, value in zip(self._graph.outputs, results, strict=True)
                ]
                stated = [getattr(torch, self._graph.tensors[tensor].dtype) for tensor in self._graph.outputs]
                outputs = [value.to(dtype) for value, dtype in zip(outputs, stated, strict=True)]
            return pytree.tree_unflatten([value.contiguous() for value in outputs], self._spec.out_spec)

        def close(self) -> None:
            """End the threads of the lanes; the next call starts them again."""
            with self._lock:
                for engine in self._engines.values():
                    engine.close()
                self._engines = {}

    return StageModule


def _check_values(graph: Graph, values: Sequence[Any]) -> None:
    for tensor, value in zip(graph.inputs, values, strict=True):
        meta = graph.tensors[tensor]
        if tuple(value.shape) != meta.shape or str(value.dtype) != f"torch.{meta.dtype}":
            raise UsageError(
                f"input {meta.name!r} is {meta.dtype} of shape {list(meta.shape)}; given {value.dtype} of shape "
                f"{list(value.shape)}"
            )
