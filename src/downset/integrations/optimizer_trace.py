"""The update of any optimiser, from a trace of its own `step`.

`step` runs once on stand-ins of the parameters, gradients and states, and what it computes is recorded as a graph
(torch.fx). The learning rates are inputs of the graph. What is not a tensor would become a constant: a `step` that
counts in Python numbers is refused, because its second call computes something else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from downset.errors import UnsupportedError

__all__ = ["StepTrace", "option_value", "options_of", "trace_step"]

_REPLACED = {"foreach": False, "fused": False, "capturable": True}
"""Options that decide how, but not what, an optimiser computes."""
_APART = ("initial_lr", "lr", "param_names", "params")
"""Keys of a group on which a trace does not depend. Schedulers keep `initial_lr` there."""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """A recorded `step`."""

    graph: Any
    """A GraphModule of (parameters, gradients, states, rates), four lists, that changes the first and third in
    place."""
    names: tuple[tuple[int, str], ...]
    """(the number of the parameter among those with gradients, name) of each state."""


def options_of(optimizer: Any) -> tuple[tuple[tuple[str, Any], ...], ...]:
    """By group: its options without the learning rate, as values that can be compared. Raises UnsupportedError for one
    that cannot."""
    options = tuple(
        tuple((key, option_value(value)) for key, value in sorted(group.items()) if key not in _APART)
        for group in optimizer.param_groups
    )
    try:
        hash(options)
    except TypeError as error:
        raise UnsupportedError(f"an option of {type(optimizer).__name__} cannot be compared: {error}") from error
    return options


def trace_step(optimizer: Any, parameters: Sequence[Any], rates: Sequence[Any]) -> StepTrace:
    """Record the update of these parameters, with a tensor for the learning rate of each group. The optimiser must have
    its states.

    Raises UnsupportedError where the step cannot be recorded: it needs a number of a tensor, makes or drops states,
    or changes a Python number.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    names = tuple(
        (number, name)
        for number, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    )
    changed: list[str] = []

    def step(given: list[Any], gradients: list[Any], states: list[Any], rates: list[Any]) -> None:
        stand_in, state = _stand_in(optimizer, dict(zip(map(id, parameters), given, strict=True)), rates)
        for (number, name), value in zip(names, states, strict=True):
            state[given[number]][name] = value
        for parameter, gradient in zip(given, gradients, strict=True):
            parameter.grad = gradient
        before = _numbers(stand_in)
        type(optimizer).step(stand_in)
        after = _numbers(stand_in)
        changed.extend(key for key in {*before, *after} if before.get(key) != after.get(key))
        for (number, name), value in zip(names, states, strict=True):
            new = stand_in.state[given[number]][name]
            if new is not value:
                value.copy_(new)

    example = [
        [parameter.detach() for parameter in parameters],
        [torch.zeros_like(parameter) for parameter in parameters],
        [optimizer.state[parameters[number]][name] for number, name in names],
        list(rates),
    ]
    try:
        with _compiling(), torch.no_grad(), _tensor_factors():
            graph = make_fx(step, tracing_mode="fake", _error_on_data_dependent_ops=True)(*example)
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedError(
            f"the step of {type(optimizer).__name__} is not a function of tensors: {line}"
        ) from error
    if changed:
        raise UnsupportedError(
            f"the step of {type(optimizer).__name__} counts in Python, in {sorted(changed)[0]}: a graph would repeat "
            "the first count"
        )
    for node in reversed(list(graph.graph.nodes)):
        if "profiler" in str(node.target):
            graph.graph.erase_node(node)
    graph.recompile()
    return StepTrace(graph, names)


def _stand_in(optimizer: Any, given: dict[int, Any], rates: Sequence[Any]) -> tuple[Any, dict[Any, Any]]:
    """An optimiser of the same class on other tensors, and its states, which hold no tensor yet."""
    import torch

    stand_in = object.__new__(type(optimizer))
    stand_in.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    stand_in.param_groups = [
        {
            **group,
            **{key: value for key, value in _REPLACED.items() if key in group},
            "params": [given[id(parameter)] for parameter in group["params"] if id(parameter) in given],
            "lr": rate,
        }
        for group, rate in zip(optimizer.param_groups, rates, strict=True)
    ]
    stand_in.state = defaultdict(dict)
    for parameter, state in optimizer.state.items():
        if id(parameter) in given:
            numbers = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
            stand_in.state[given[id(parameter)]] = numbers
    return stand_in, stand_in.state


def _numbers(optimizer: Any) -> dict[str, Any]:
    """The values other than tensors of an optimiser's states, groups and attributes, by a name that says where."""
    import torch

    values: dict[str, Any] = {}
    for number, state in enumerate(optimizer.state.values()):
        for name, value in state.items():
            values[f"state {name!r} of parameter {number}"] = "a tensor" if isinstance(value, torch.Tensor) else value
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name not in ("params", "lr"):
                values[f"group {number}'s {name!r}"] = option_value(value)
    for name, value in vars(optimizer).items():
        if isinstance(value, (bool, int, float, str)) and name != "_opt_called":
            values[f"its attribute {name!r}"] = value
    return values


def option_value(value: Any) -> Any:
    """An option as a value that can be compared; users also give lists and tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        return float(value)
    return tuple(map(option_value, value)) if isinstance(value, (list, tuple)) else value


@contextmanager
def _compiling() -> Iterator[None]:
    """Let PyTorch's optimisers take their ways for compilers, which ask no tensor for its number."""
    import torch

    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _tensor_factors() -> Any:
    """A mode in which the factors of a sum, `alpha` and `value`, may be tensors: a rate is one."""
    import torch
    from torch.overrides import TorchFunctionMode

    class TensorFactors(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            for name in ("alpha", "value"):
                if isinstance(options.get(name), torch.Tensor) and len(args) > 1:
                    args = (args[0], args[1] * options.pop(name), *args[2:])
            return function(*args, **options)

    return TensorFactors()
