"""`torch.compile(model, backend="downset")`: graphs of inference run by stages, all others as PyTorch compiles them."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from downset.errors import DownsetError, UnsupportedError, UsageError
from downset.extras import optional_library, torch_library
from downset.integrations.stage_module import check_tensors, stage_module
from downset.integrations.stage_outputs import StagedOutputs
from downset.messages import Message
from downset.results.plans import StagePlan
from downset.text import brief

__all__ = ["stage_backend"]

_LOG = logging.getLogger("downset")
_OPTIONS = ("limits", "runs", "views", "strict")


def stage_backend(module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Any:
    """A backend of torch.compile: makes a function that runs a graph by a plan of stages (`stage_module`), on CUDA as
    one captured graph of several streams. PyTorch finds it by the name "downset".

    Stages are searched when PyTorch compiles, on the device of the inputs. Parameters and buffers become constants.
    Each call compares their addresses and version numbers; where one differs, as after `load_state_dict`, the constants
    are read again for the same plan. Writes through `parameter.data` are not noticed. A graph that stages do not run
    goes to PyTorch's own compiler, and the logger `downset` says why in one line: gradients, autocast, sizes that are
    not fixed (compile with `dynamic=False`), writes to inputs or buffers, random numbers, operators without a kernel,
    tensors of several devices, weights made in inference mode, views of weights as outputs. Any number of threads may
    call what was compiled; one call runs at a time. PyTorch calls a backend for each graph between breaks;
    `fullgraph=True` names the break. Outputs have the strides that PyTorch traced, and share memory as there.

    `options`: `limits`, `runs` and `views` as for `stage_module`; `strict` raises UnsupportedError where PyTorch's
    compiler would take the graph. Raises UsageError for other options.
    """
    chosen = dict(options or {})
    unknown = [name for name in chosen if name not in _OPTIONS]
    if unknown:
        raise UsageError(f"backend downset has no option {unknown[0]!r}; it has {', '.join(_OPTIONS)}")
    strict = bool(chosen.pop("strict", False))
    try:
        return _StagedGraph(module, inputs, chosen).call
    except UsageError:
        raise
    except DownsetError as error:
        why = error.message
    if strict:
        raise UnsupportedError("stages do not run this graph: ", why)
    _LOG.warning("PyTorch compiles a graph of %d nodes that stages do not run: %s", len(module.graph.nodes), why)
    compiler = optional_library("torch._inductor.compile_fx", what="compiling", extra="torch")
    return compiler.compile_fx(module, list(inputs))


class _StagedGraph:
    """A graph with its weights as constants, staged; staged again by the same plan where a weight has changed.

    The graph is exported once, where PyTorch compiles and other threads wait: PyTorch's export may not run on two
    threads."""

    def __init__(self, module: Any, inputs: Sequence[Any], options: Mapping[str, Any]) -> None:
        self._options, self._device, self._lock = options, _device(inputs), threading.Lock()
        self._weights = [place for place, value in enumerate(inputs) if _is_weight(value)]
        self._moving = [place for place, value in enumerate(inputs) if not _is_weight(value)]
        self._program = _exported(module, inputs, self._weights, self._moving)
        check_tensors(self._program)
        if StagedOutputs(self._program, copies=False, views=False, fixed=()).of_weights:
            raise UnsupportedError("it returns a view of a weight")
        self._stage(inputs, None)

    def call(self, *values: Any) -> list[Any]:
        """The graph's outputs; a list, as PyTorch's own compiler makes it."""
        with self._lock:
            if self._states != self._read(values):
                self._close()
                self._program.state_dict.update({_name(place): values[place].detach() for place in self._weights})
                self._stage(values, self._staged.plan)
            return list(self._staged(*[values[place] for place in self._moving]))

    def _stage(self, values: Sequence[Any], plan: StagePlan | None) -> None:
        states = self._read(values)  # before the weights are: a write from now on is noticed
        self._staged = stage_module(self._program, self._device, plan=plan, **self._options)
        self._close = weakref.finalize(self, self._staged.close)
        self._states = states  # last: a call that ends before has staged nothing

    def _read(self, values: Sequence[Any]) -> list[tuple[int, int]]:
        """Where each weight lies, and how often it was written to: a change of a weight changes one of both."""
        return [(values[place].data_ptr(), values[place]._version) for place in self._weights]


def _is_weight(value: Any) -> bool:
    """Whether PyTorch gives a parameter or a buffer of the compiled module as this input."""
    return isinstance(value, torch_library().nn.Parameter) or hasattr(value, "_dynamo_static_input_type")


def _device(inputs: Sequence[Any]) -> str:
    """The kind of device of all inputs. Raises UnsupportedError for a graph that is not one of inference at fixed
    sizes on one device."""
    torch = torch_library()
    for value in inputs:
        if not isinstance(value, torch.Tensor) or not all(isinstance(extent, int) for extent in value.shape):
            raise UnsupportedError("it has a size or a number that is not fixed; compile with dynamic=False")
        if value.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError("it computes gradients; stages are for inference (torch.no_grad or inference_mode)")
        if _is_weight(value) and value.is_inference():
            raise UnsupportedError("a weight was made in inference mode, where PyTorch counts no writes to it")
    devices = {value.device for value in inputs}
    if any(torch.is_autocast_enabled(device.type) for device in devices if device.type in ("cpu", "cuda")):
        raise UnsupportedError("autocast is on; stages run a model in its own element types, such as model.bfloat16()")
    here = {torch.device("cpu")}
    if torch.cuda.is_available():
        here |= {torch.device("cuda", torch.cuda.current_device())}
    if len(devices) > 1 or not devices <= here:
        named = ", ".join(sorted(map(str, devices)))
        raise UnsupportedError(f"its tensors lie on {named}; stages run on one device: the CPU, or CUDA's current one")
    return next((str(device.type) for device in devices), "cpu")


def _name(place: int) -> str:
    """The name in the exported program of the weight that PyTorch gives as this input."""
    return f"weight_{place}"


def _exported(module: Any, values: Sequence[Any], weights: Sequence[int], moving: Sequence[int]) -> Any:
    """The graph as an exported program that holds its weights."""
    torch = torch_library()
    tracing = optional_library("torch._guards", what="compiling", extra="torch").tracing
    holder = _holder_class()(module, {place: values[place].detach() for place in weights}, moving)
    try:
        with torch.no_grad(), tracing(None):
            return torch.export.export(holder, tuple(values[place] for place in moving), strict=False)
    except Exception as error:  # exporting runs code of the user's and of PyTorch's
        raise UnsupportedError(Message(f"PyTorch cannot export it ({brief(error, 200)})")) from error


@cache
def _holder_class() -> Any:
    torch = torch_library()

    class Holder(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        """A graph that takes its weights from itself."""

        def __init__(self, module: Any, weights: Mapping[int, Any], moving: Sequence[int]) -> None:
            super().__init__()
            self._module, self._moving = module, moving
            self._places = tuple(weights)
            for place, value in weights.items():
                self.register_buffer(_name(place), value)

        def forward(self, *given: Any) -> Any:
            taken = dict(zip(self._moving, given, strict=True))
            taken |= {place: getattr(self, _name(place)) for place in self._places}
            return tuple(self._module(*(taken[place] for place in range(len(taken)))))

    return Holder
