"""The update of any optimiser, from a trace of its own `step`.

`step` runs on a copy of the optimiser with stand-ins of the parameters, gradients and states, and what it computes is
recorded as a graph (torch.fx). The learning rates are inputs of the graph. What is not a tensor would become a
constant: a `step` that counts in Python numbers is refused, because its second call computes something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from downset.errors import UnsupportedError
from downset.integrations.optimizer_parts import OptimizerParts, Place, copied, parts_of, place_name

__all__ = ["StepTrace", "trace_step"]

_REPLACED = {"foreach": False, "fused": False, "capturable": True}
"""Options that decide how, but not what, an optimiser computes."""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """A recorded `step`."""

    graph: Any
    """A GraphModule of (parameters, gradients, states, rates), four lists, that changes the first and third in
    place."""
    places: tuple[Place, ...]
    """The place of each state in the optimiser."""
    written: tuple[tuple[int, ...], tuple[int, ...]]
    """The numbers of the parameters and of the states that it changes."""


_StandIn = tuple[Any, Sequence[Any], OptimizerParts]
"""(an optimiser, its parameters, all that it holds)"""


def trace_step(
    optimizer: Any,
    parameters: Sequence[Any],
    given: Sequence[int],
    rates: Sequence[Any],
    held: OptimizerParts | None = None,
) -> StepTrace:
    """Record the update of an optimiser's parameters. It must have its states. `given`: the numbers of the parameters
    with gradients. `rates`: a tensor for the learning rate of each group. `held`: what the optimiser holds, if listed.

    Raises UnsupportedError where the step cannot be recorded: it needs a number of a tensor, makes or drops states,
    changes something that is not a tensor, or what it computes differs between two calls.
    """
    stand_ins = [(optimizer, parameters, held or parts_of(optimizer, parameters))]
    first = _recorded(stand_ins, parameters, given, rates)
    if not type(optimizer).__module__.startswith("torch.optim."):
        # again with the stand-in as it is after its step: what no list of parts shows, as an iterator, has moved on
        second = _recorded(stand_ins, parameters, given, rates)
        if not _alike(first.graph, second.graph):
            raise UnsupportedError(
                f"the step of {type(optimizer).__name__} computes something else at each call: a graph would repeat "
                "the first one"
            )
    return first


def _recorded(
    stand_ins: list[_StandIn], parameters: Sequence[Any], given: Sequence[int], rates: Sequence[Any]
) -> StepTrace:
    """Record a step of the last stand-in, on new tensors; the stand-in after this step is appended."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    source, of_source, held = stand_ins[-1]
    optimizer, _, first = stand_ins[0]
    name = type(optimizer).__name__
    places = (*held.tensors,)

    def step(given_now: list[Any], gradients: list[Any], states: list[Any], rates: list[Any]) -> None:
        old = map(id, (*of_source, *held.tensors.values()))
        stand_in = copied(source, dict(zip(old, (*given_now, *states), strict=True)))
        for group, rate in zip(stand_in.param_groups, rates, strict=True):
            group.update({key: value for key, value in _REPLACED.items() if key in group}, lr=rate)
        for number, parameter in enumerate(given_now):
            parameter.requires_grad_(parameters[number].requires_grad)
        for number, gradient in zip(given, gradients, strict=True):
            given_now[number].grad = gradient
        storages = [*map(_storage, (*given_now, *states))]
        before = parts_of(stand_in, given_now).facts
        type(optimizer).step(stand_in)
        after = parts_of(stand_in, given_now)
        changed = [place for place in {**before, **after.facts} if before.get(place) != after.facts.get(place)]
        if changed:
            raise UnsupportedError(
                f"the step of {name} counts in Python, in {place_name(changed[0])}: a graph would repeat the first "
                "count"
            )
        replaced = [
            (place, value, after.tensors.get(place, value)) for place, value in zip(places, states, strict=True)
        ]
        for place, value, new in replaced:
            if (new.shape, new.dtype) != (value.shape, value.dtype):
                raise UnsupportedError(f"the step of {name} changes the form of {place_name(place)}")
        # the new value of one state may be the old one of another
        for value, new in [(value, new.clone()) for _, value, new in replaced if new is not value]:
            value.copy_(new)
        moved = [*map(_storage, (*given_now, *states))] != storages
        rated = any(group["lr"] is not rate for group, rate in zip(stand_in.param_groups, rates, strict=True))
        if moved or rated:
            raise UnsupportedError(f"the step of {name} {'changes its learning rate' if rated else 'assigns to .data'}")
        stand_ins.append((stand_in, given_now, after))

    example = [
        [parameter.detach() for parameter in parameters],
        [torch.zeros_like(parameters[number]) for number in given],
        [*first.tensors.values()],
        list(rates),
    ]
    try:
        with _compiling(), torch.no_grad(), _tensor_factors():
            graph = make_fx(step, tracing_mode="fake", _error_on_data_dependent_ops=True)(*example)
    except UnsupportedError:
        raise
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedError(f"the step of {name} is not a function of tensors: {line}") from error
    for node in reversed(list(graph.graph.nodes)):
        if "profiler" in str(node.target):
            graph.graph.erase_node(node)
    graph.recompile()
    flags = _written(graph.graph)
    counts = [len(part) for part in example]
    rest = flags[counts[0] + counts[1] :]
    changed_parameters = tuple(number for number in range(counts[0]) if flags[number])
    if not {*given} <= {*changed_parameters} or any(rest[counts[2] :]):
        raise UnsupportedError(f"the step of {name} changes its learning rate, or not all of its parameters")
    return StepTrace(graph, places, (changed_parameters, tuple(n for n in range(counts[2]) if rest[n])))


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _written(graph: Any) -> list[bool]:
    """By input of a graph: whether an operator writes to it, or to a view of it."""
    import torch

    storages: set[int] = set()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for number, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = node.args[number] if number < len(node.args) else node.kwargs.get(argument.name)
                for of in value if isinstance(value, (list, tuple)) else [value]:
                    if isinstance(of, torch.fx.Node):
                        storages.add(_storage(of.meta["val"]))
    return [_storage(node.meta["val"]) in storages for node in graph.nodes if node.op == "placeholder"]


def _alike(one: Any, other: Any) -> bool:
    """Whether two recorded steps compute the same."""
    import torch

    constants = [
        {name: value for name, value in vars(graph).items() if isinstance(value, torch.Tensor)}
        | dict(graph.named_buffers())
        for graph in (one, other)
    ]
    return (
        one.code == other.code
        and constants[0].keys() == constants[1].keys()
        and all(torch.equal(value, constants[1][name]) for name, value in constants[0].items())
    )


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
                    factor, second = options.pop(name), args[1]
                    lists = isinstance(second, (list, tuple))  # of a `torch._foreach_…`
                    args = (args[0], [of * factor for of in second] if lists else second * factor, *args[2:])
            return function(*args, **options)

    return TensorFactors()
