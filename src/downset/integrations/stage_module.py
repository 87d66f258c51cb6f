"""An exported program as a PyTorch module that runs a plan of stages."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from downset.errors import UnsupportedError, UsageError
from downset.executor.device import TorchDevice, open_device
from downset.executor.stage_engine import PlannedEngine, check_plan, is_finite, stage_engine
from downset.extras import optional_library, torch_library
from downset.formats.torch.read import load_exported
from downset.graph.core import Graph
from downset.integrations.stage_outputs import StagedOutputs
from downset.results.plans import StagePlan
from downset.stages.prepared import prepare
from downset.tuning.search import StageLimits
from downset.tuning.tune import tune_stages

__all__ = ["check_tensors", "stage_module"]

_NOT_FINITE = (
    "an earlier call had NaN or infinity among its inputs, of which merged convolutions and fused ReLUs make other "
    "values: its outputs may be wrong; from now on calls run without them"
)


def stage_module(
    exported_program: Any,
    device: TorchDevice | str = "cpu",
    *,
    plan: StagePlan | None = None,
    limits: StageLimits | None = None,
    runs: int = 15,
    views: bool = False,
) -> Any:
    """A module of PyTorch that computes what an ExportedProgram does, for inference, by stages of operators: lanes of
    threads on the CPU, one captured graph on CUDA.

    `device`: as for `tune_stages`, which searches a plan with `limits` and `runs` if none is given; the module has the
    plan as `plan`. The module takes the program's arguments, of the sizes with which it was exported, and returns the
    program's outputs in their structure, with the program's strides. Outputs share memory with an input or each other
    where those of the program do, if the input has the strides with which it was exported. Weights are copied: the
    module has no parameters and computes no gradients.
    Any number of threads may call it; one call runs at a time. `close()` ends the threads of the lanes. A copy and a
    pickle hold the program, the plan and the device. Inside a module that PyTorch compiles it runs as it is.

    On CUDA a call waits for nothing: it is work of the current stream, and outputs are copied out of the captured graph
    in that order. `views`: outputs may be the graph's own memory instead, which the next call overwrites. Merged
    convolutions and fused ReLUs make other values of NaN and infinity than the program does. On the CPU inputs are
    looked at first, and a call with such inputs runs without them. On CUDA the device notes such inputs. A later call
    that finds the note warns (RuntimeWarning), and from then on calls run without merged convolutions and fused ReLUs;
    the outputs of the calls before may be wrong. `met_nonfinite()` waits for the device and tells whether there were
    any. A plan without them has no note and no difference.

    Raises UnsupportedError for a program that writes to its buffers or takes or returns anything but tensors, LoadError
    for symbolic sizes, InvalidPlan for a plan of another network or device.
    """
    check_tensors(exported_program)
    graph = load_exported(exported_program)
    opened = open_device(device) if isinstance(device, str) else device
    prepared = prepare(graph)
    if plan is None:
        plan = tune_stages(graph, opened, limits=limits, runs=runs).plan
    check_plan(prepared, plan, opened)
    fixed = [place for place, tensor in enumerate(prepared.outputs) if tensor in prepared.constants]
    outputs = StagedOutputs(exported_program, copies=opened.kind == "cuda", views=views, fixed=fixed)
    return _module_class()(exported_program, prepared, plan, opened, outputs)


def _unpickled(program: bytes, plan: StagePlan, device: TorchDevice, views: bool) -> Any:
    """The module of a pickle. Raises InvalidPlan where the device is another one."""
    export = optional_library("torch.export", what="running stages", extra="torch")
    here = open_device(device.kind, dtype=device.dtype, threads=device.threads if device.kind == "cpu" else None)
    return stage_module(export.load(io.BytesIO(program)), here, plan=plan, views=views)


def check_tensors(program: Any) -> None:
    """Raise UnsupportedError for a program that writes to its buffers or inputs, or takes or returns anything but
    tensors."""
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

        def __init__(
            self, program: Any, graph: Graph, plan: StagePlan, device: TorchDevice, outputs: StagedOutputs
        ) -> None:
            super().__init__()
            self.plan = plan
            self._program, self._graph, self._device, self._outputs = program, graph, device, outputs
            self._spec = program.call_spec
            self._engines: dict[bool, PlannedEngine] = {}
            self._lock = threading.Lock()

        def __reduce__(self) -> Any:
            saved = io.BytesIO()
            torch.export.save(self._program, saved)
            return _unpickled, (saved.getvalue(), self.plan, self._device, self._outputs.views)

        def __deepcopy__(self, memo: Any) -> Any:
            return type(self)(self._program, self._graph, self.plan, self._device, self._outputs)

        @torch.compiler.disable  # type: ignore[untyped-decorator, unused-ignore]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            values, structure = pytree.tree_flatten((args, kwargs))
            if structure != self._spec.in_spec:
                raise UsageError(f"the program was exported for arguments {self._spec.in_spec}; given {structure}")
            _check_values(self._graph, values)
            with self._lock:
                outputs = self._engine(values).run(values, self._outputs.taker(values))
            return pytree.tree_unflatten(outputs, self._spec.out_spec)

        def _engine(self, values: Sequence[Any]) -> PlannedEngine:
            """The engine for these inputs: one without merged convolutions and fused activations where inputs are not
            finite. On CUDA only the first call, which makes the engine, looks at them."""
            if self._device.kind == "cpu" or not self._engines:
                finite = all(map(is_finite, values))
            else:
                finite = True in self._engines and not self._engines[True].met_nonfinite
                if not finite and False not in self._engines:
                    warnings.warn(_NOT_FINITE, RuntimeWarning, stacklevel=4)
            if finite not in self._engines:
                self._engines[finite] = stage_engine(self._graph, self.plan, self._device, values, finite=finite)
            return self._engines[finite]

        def met_nonfinite(self) -> bool:
            """Whether a call on CUDA so far had inputs that are not finite. Waits for the device."""
            if self._device.kind == "cuda":
                torch.cuda.synchronize()
            return any(engine.met_nonfinite for engine in self._engines.values())

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
