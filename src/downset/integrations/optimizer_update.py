"""The update of an optimiser as a function of tensors, which a compiler can include in the graph of a whole step.

Updates of SGD, Adam and AdamW follow our own formulas, those of others a trace of their `step` (optimizer_trace.py).

The state lies where torch.optim keeps it, under its names, so checkpoints are PyTorch's. The learning rate is a tensor
apart from the groups: a schedule that changes it causes no new compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from downset.errors import UnsupportedError
from downset.integrations.adam_operator import adam
from downset.integrations.optimizer_parts import parts_of, stepped_by_its_class
from downset.integrations.optimizer_trace import StepTrace, trace_step

__all__ = ["Settings", "Update", "gradient_sums", "trained", "update_of"]


Settings = tuple[Any, ...]
"""All that is not a tensor and on which an update depends, without the learning rates. Of our own formulas: the options
of each group."""

_READ = (
    *("amsgrad", "betas", "capturable", "decoupled_weight_decay", "eps", "fused", "maximize", "momentum", "nesterov"),
    "weight_decay",
)
_CAN_MOVE = ("betas", "momentum", "weight_decay")
"""Those that schedules change at every step."""
_MOVING = "an input"

_NO_GRAPH = {
    "LBFGS": "computes the loss several times in a step",
    "SparseAdam": "takes sparse gradients",
}
"""Optimisers of PyTorch whose step no graph can be, and why."""


@dataclass(frozen=True, slots=True)
class Update:
    """The way in which an optimiser changes parameters."""

    groups: tuple[tuple[Any, ...], ...]
    """The parameters that it trains, by group."""
    prepare: Callable[[], Settings]
    """A function that makes missing state, takes over the groups' learning rates, and returns the groups' other
    options."""
    apply: Callable[[Sequence[Any], Settings], None]
    """A function of a gradient for each parameter (None for one that the loss does not depend on) that changes the
    parameters and the optimiser's state in place."""
    state: Callable[[], list[Any]]
    """A function that returns all tensors that `apply` may change, once `prepare` has made them."""
    ready: Callable[[], bool] = lambda: True
    """A function that tells whether a step can be a graph now. An optimiser that is traced makes its states in a plain
    step, so its first step is one."""
    watching: Callable[[], Any] = nullcontext
    """A context around each plain step."""
    applied: Callable[[Sequence[bool]], None] = lambda _: None
    """A function that takes note of an update, and by parameter whether the loss depended on it: the others get no
    state, as in plain PyTorch."""

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The parameters of all groups, one group after another."""
        return tuple(parameter for group in self.groups for parameter in group)

    def is_of(self, groups: Sequence[Sequence[Any]]) -> bool:
        """Whether it trains these parameters, in these groups."""
        return [[*map(id, group)] for group in self.groups] == [[*map(id, group)] for group in groups]


def trained(optimizer: Any) -> tuple[tuple[Any, ...], ...]:
    """The parameters that an optimiser trains now, by group, without frozen ones. Raises UnsupportedError if its update
    is not a function of tensors alone."""
    import torch
    from torch.optim import optimizer as optimizers

    reason = _NO_GRAPH.get(type(optimizer).__name__)
    if reason and type(optimizer).__module__.startswith("torch."):
        raise UnsupportedError(f"{type(optimizer).__name__} {reason}")
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    if any((*hooks, optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)):
        raise UnsupportedError("the optimiser's steps have hooks")
    if not stepped_by_its_class(optimizer):
        raise UnsupportedError("the optimiser's `step` was replaced")
    groups = tuple(tuple(p for p in group["params"] if p.requires_grad) for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise UnsupportedError("the optimiser is differentiable")
    if any(len(group) > len({*group}) for group in groups):  # PyTorch only warns of it
        raise UnsupportedError("a group of the optimiser has a parameter twice")
    for parameter in (parameter for group in groups for parameter in group):
        if torch.is_complex(parameter):
            raise UnsupportedError("a parameter is complex")
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise UnsupportedError("a parameter has a hook on its gradient")
    return groups


def gradient_sums(update: Update) -> list[Any]:
    """The gradients of the parts so far: each parameter's `grad`, made of zeros if it has none yet."""
    import torch

    for parameter in update.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in update.parameters]


def update_of(optimizer: Any) -> Update:
    """The update of an optimiser: by our own formulas for `torch.optim.SGD`, `Adam` and `AdamW`, which make their state
    before a first step, and else by a trace of its `step`. Raises UnsupportedError as `trained` does."""
    import torch

    groups = trained(optimizer)
    own = type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
    if own and not any(group.get("dampening") for group in optimizer.param_groups):
        return _formulas(optimizer, groups)
    return _traced(optimizer, groups)


def _traced(optimizer: Any, groups: tuple[tuple[Any, ...], ...]) -> Update:
    """The update by a trace of the optimiser's `step`, one for each setting of its options."""
    import torch

    parameters = [parameter for group in groups for parameter in group]
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]  # with frozen ones
    rates = _rates(groups, torch.float64)
    pattern: list[bool] = []  # by parameter: whether the plain step had a gradient of it
    traces: dict[Settings, StepTrace] = {}
    now: list[StepTrace] = []
    states: list[Any] = []

    def took(*_: Any) -> None:
        pattern[:] = [parameter.grad is not None for parameter in parameters]

    @contextmanager
    def watching() -> Iterator[None]:
        handle = optimizer.register_step_post_hook(took)
        try:
            yield
        finally:
            handle.remove()

    def ready() -> bool:
        held = parts_of(optimizer, every).tensors if pattern and traces else {}
        return bool(pattern) and all(set(trace.places) <= held.keys() for trace in traces.values())

    def prepare() -> Settings:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            rate.fill_(float(group["lr"]))
        held = parts_of(optimizer, every)
        settings = (held.settings(),)
        if settings not in traces:
            had = {id(parameter) for parameter, was in zip(parameters, pattern, strict=True) if was}
            given = [number for number, parameter in enumerate(every) if id(parameter) in had]
            traces[settings] = trace_step(optimizer, every, given, rates, held)
        now[:] = [traces[settings]]
        states[:] = [held.tensors[place] for place in now[0].places]
        return settings

    def apply(gradients: Sequence[Any], settings: Settings) -> None:
        del settings
        if [gradient is not None for gradient in gradients] != pattern:
            raise UnsupportedError("the loss depends on other parameters than in the first step")
        now[0].graph(every, [gradient for gradient in gradients if gradient is not None], states, rates)

    def changed() -> list[Any]:
        of_parameters, of_states = now[0].written
        return [*(every[number] for number in of_parameters), *(states[number] for number in of_states)]

    return Update(groups, prepare, apply, changed, ready, watching)


def _rates(groups: Sequence[Sequence[Any]], dtype: Any) -> list[Any]:
    """A tensor for the learning rate of each group."""
    import torch

    return [torch.zeros((), dtype=dtype, device=group[0].device if group else "cpu") for group in groups]


def _formulas(optimizer: Any, groups: tuple[tuple[Any, ...], ...]) -> Update:
    import torch

    wide = any(parameter.dtype == torch.float64 for group in groups for parameter in group)
    rates = _rates(groups, torch.float64 if wide else torch.float32)
    sgd = type(optimizer) is torch.optim.SGD
    parameters = [parameter for group in groups for parameter in group]
    states: list[dict[str, Any]] = [{} for _ in parameters]
    shown = [False] * len(parameters)  # whether the optimiser has the state
    moving = _MovingOptions([rate.device for rate in rates])
    change = _sgd if sgd else partial(_adam, adam())

    def prepare() -> Settings:
        if any(group.get("dampening") for group in optimizer.param_groups):
            raise UnsupportedError("its dampening has become other than 0")
        numbers = iter(range(len(parameters)))
        for of_group, group, rate in zip(groups, optimizer.param_groups, rates, strict=True):
            rate.fill_(float(group["lr"]))
            for parameter, number in zip(of_group, numbers, strict=False):
                there = optimizer.state.get(parameter)
                if there or shown[number]:
                    states[number], shown[number] = there or {}, bool(there)
                _make_state(sgd, states[number], parameter, group)
        return tuple(moving.of(number, group) for number, group in enumerate(optimizer.param_groups))

    def apply(gradients: Sequence[Any], settings: Settings) -> None:
        position = 0
        for number, (of_group, rate, options) in enumerate(zip(groups, rates, settings, strict=True)):
            here = slice(position, position + len(of_group))
            every = zip(of_group, gradients[here], states[here], strict=True)
            parts = [(parameter, gradient, state) for parameter, gradient, state in every if gradient is not None]
            position += len(of_group)
            change(parts, moving.filled(number, options), rate)

    def state() -> list[Any]:
        state = [value for of in states for value in of.values()]
        return [*parameters, *(value for value in state if isinstance(value, torch.Tensor))]

    def applied(used: Sequence[bool]) -> None:
        for number, parameter in enumerate(parameters):
            if used[number] and states[number] and not shown[number]:
                optimizer.state[parameter], shown[number] = states[number], True

    return Update(groups, prepare, apply, state, applied=applied)


class _MovingOptions:
    """Options that a schedule changes: they are inputs of the graph from their first change on, as the learning rate
    is."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self._devices = devices
        self._tensors: dict[tuple[int, str], tuple[Any, ...]] = {}
        self._seen: dict[tuple[int, str], Any] = {}

    def of(self, number: int, group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """The options of the group of this number. One that moves has the value `_MOVING`; one that is 0, None. Numbers
        are written out: Dynamo would make an input of a number that changes, and compile once more for that."""
        return tuple((key, self._setting((number, key), group)) for key in _READ if key in group)

    def _setting(self, option: tuple[int, str], group: Mapping[str, Any]) -> Any:
        import torch

        value = _option_value(group[option[1]])
        if option[1] not in _CAN_MOVE:
            return _written(value)
        if not value:
            return None
        numbers = value if isinstance(value, tuple) else (value,)
        begin = self._seen.setdefault(option, value)
        if option not in self._tensors and (begin != value or "max_momentum" in group):  # a schedule of both wrote that
            device = self._devices[option[0]]
            self._tensors[option] = tuple(torch.zeros((), dtype=torch.float64, device=device) for _ in numbers)
        if option not in self._tensors:
            return _written(value)
        for tensor, number in zip(self._tensors[option], numbers, strict=True):
            tensor.fill_(number)
        return _MOVING

    def filled(self, number: int, options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
        """The options of a group, with tensors for those that move."""
        filled = {key: _read(value) for key, value in options}
        for key in _CAN_MOVE:
            if key in filled and filled[key] == _MOVING:
                tensors = self._tensors[number, key]
                filled[key] = tensors if key == "betas" else tensors[0]
        return filled


def _written(value: Any) -> Any:
    """A float, or those in a tuple, as text."""
    if isinstance(value, tuple):
        return tuple(map(_written, value))
    return repr(value) if isinstance(value, float) else value


def _read(value: Any) -> Any:
    """The option that `_written` wrote out."""
    if isinstance(value, tuple):
        return tuple([_read(of) for of in value])
    return float(value) if isinstance(value, str) and value != _MOVING else value


def _make_state(sgd: bool, state: dict[str, Any], parameter: Any, group: Mapping[str, Any]) -> None:
    """Make the state that torch.optim makes at a first step. Momentum begins at zeros, so that the first gradient
    enters with weight 1."""
    import torch

    names = ["momentum_buffer"] if sgd and group["momentum"] else []
    if not sgd:
        names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        if "step" not in state:
            device = parameter.device if group["capturable"] or group["fused"] else "cpu"
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
    for name in names:
        if state.get(name) is None:
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)


_Parts = Sequence[tuple[Any, Any, dict[str, Any]]]
"""(parameter, gradient, state)"""


def _option_value(value: Any) -> Any:
    """An option as a value that can be compared; users also give lists and tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        return float(value)
    return tuple(map(_option_value, value)) if isinstance(value, (list, tuple)) else value


def _sgd(parts: _Parts, group: Mapping[str, Any], rate: Any) -> None:
    for parameter, gradient, state in parts:
        gradient = -gradient if group["maximize"] else gradient
        if group["weight_decay"] is not None:
            gradient = gradient + parameter * group["weight_decay"]
        if group["momentum"] is not None:
            buffer = state["momentum_buffer"]
            buffer.mul_(group["momentum"]).add_(gradient)
            gradient = gradient + buffer * group["momentum"] if group["nesterov"] else buffer
        parameter.sub_(rate * gradient)


def _adam(operator: Any, parts: _Parts, group: Mapping[str, Any], rate: Any) -> None:
    """Adam and AdamW, by the operator of adam_operator.py."""
    import torch

    options = [*group["betas"], group["weight_decay"]]
    moving = [option if isinstance(option, torch.Tensor) else None for option in options]
    numbers = [0.0 if isinstance(option, torch.Tensor) else float(option or 0.0) for option in (*options, group["eps"])]
    decays = group["weight_decay"] is not None
    flags = [bool(group["maximize"]), decays, bool(group["decoupled_weight_decay"])]
    names = ["exp_avg", "exp_avg_sq", "step", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
    for parameter, gradient, state in parts:
        held = [state[name] for name in names]
        of = [parameter, gradient, *held[:3], rate, *held[3:]]
        for old, new in zip([parameter, *held], operator(of, moving, numbers, flags), strict=True):
            old.copy_(new)
