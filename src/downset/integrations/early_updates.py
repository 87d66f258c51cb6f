"""Updates parameters inside a backward pass: each as soon as its gradient is complete, which is then freed.

An optimiser takes part if the update of a parameter depends on no other parameter: those of PyTorch by their formulas,
others by a trace of their `step`. One compiled graph returns all its gradients at its end, so nothing is early there.
The first backward pass is only watched: where gradients arrive in several passes,
as with reentrant checkpoints, one may be incomplete, and all parameters are updated after the pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from downset.errors import UnsupportedError
from downset.integrations.optimizer_parts import parts_of, stepped_by_its_class
from downset.integrations.optimizer_trace import StepTrace, trace_step
from downset.integrations.random_operators import draws

__all__ = ["LEAST_BYTES", "EarlyUpdates", "updates_apart"]

_NOT_BY_PARAMETER = ("LBFGS",)
LEAST_BYTES = 1 << 20
"""The least parameter that is worth a call of the optimiser for itself, where no limit of memory is asked for."""


class EarlyUpdates:
    """The updates of one optimiser inside backward passes. `possible`: None until a pass was watched. Parameters of
    fewer than `least_bytes` wait for the optimiser's own step."""

    def __init__(self, optimizer: Any, *, least_bytes: int = LEAST_BYTES) -> None:
        self.optimizer, self._least_bytes = optimizer, least_bytes
        self.possible: bool | None = None
        self._fired: list[tuple[Any, int]] = []

    @contextmanager
    def around(self, loss: Any, *, watch: bool) -> Iterator[None]:
        """Around the backward pass of a loss. `watch`: update nothing within it."""
        if self.possible is None and not _several(loss, self._least_bytes):
            self.possible = False
        if self.possible is False or not stepped_by_its_class(self.optimizer) or _has_hooks(self.optimizer):
            yield
            return
        self._fired = []
        early = bool(self.possible) and not watch
        handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(number, early=early))
            for number, group in enumerate(self.optimizer.param_groups)
            for parameter in group["params"]
            if parameter.requires_grad and parameter.nbytes >= self._least_bytes
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if self.possible is None:
            self._watched = [parameter for parameter, _ in self._fired]
            once = len({id(parameter) for parameter in self._watched}) == len(self._fired)
            if not once or len({task for _, task in self._fired}) > 1:
                self.possible = False

    def decide(self) -> None:
        """After the first update, when the optimiser has its states: whether updates may be early from now on."""
        if self.possible is None and self._fired:
            self.possible = updates_apart(self.optimizer, self._watched)
        self._fired = []

    def _hook(self, number: int, *, early: bool) -> Any:
        import torch

        def complete(parameter: Any) -> None:
            task = torch._C._current_graph_task_id()
            self._fired.append((parameter, task))
            if early and task == self._fired[0][1]:
                with torch.no_grad():
                    _step_of_one(self.optimizer, number, parameter)
                parameter.grad = None

        return complete


def _step_of_one(optimizer: Any, number: int, parameter: Any) -> None:
    """The step of an optimiser for one parameter, of the group of this number."""
    one = object.__new__(type(optimizer))
    one.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    one.param_groups = [{**optimizer.param_groups[number], "params": [parameter]}]
    type(optimizer).step(one)


def _several(loss: Any, least_bytes: int) -> bool:
    """Whether gradients of so many bytes arrive from several places, so that one may be freed before the next
    exists."""
    makers, seen, ahead = set(), set(), [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            if hasattr(following, "variable") and following.variable.nbytes >= least_bytes:
                makers.add(node)
            ahead.append(following)
    return len(makers) > 1


def _has_hooks(optimizer: Any) -> bool:
    from torch.optim import optimizer as optimizers

    steps = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    everywhere = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    return any((*steps, *everywhere)) or any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def updates_apart(optimizer: Any, parameters: Sequence[Any]) -> bool:
    """Whether the update of each parameter depends on its own gradient and states alone. The optimiser has its
    states."""
    import torch

    kind = type(optimizer)
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return False
    if kind.__module__.startswith("torch.optim."):
        return kind.__name__ not in _NOT_BY_PARAMETER
    rates = [torch.zeros((), dtype=torch.float64) for _ in optimizer.param_groups]
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with_gradients = {*map(id, parameters)}
    given = [number for number, parameter in enumerate(every) if id(parameter) in with_gradients]
    held = parts_of(optimizer, every)
    if any(place[0] == "attribute" and not isinstance(fact, (int, float, str)) for place, fact in held.facts.items()):
        return False  # parameters, or an optimiser of them all, may lie there
    try:
        trace = trace_step(optimizer, every, given, rates, held)
    except UnsupportedError:
        return False
    of_states = all(kind == "state" and isinstance(number, int) for kind, number, *_ in trace.places)
    return of_states and {*trace.written[0]} <= {*given} and _apart(trace, len(every), given)


def _apart(trace: StepTrace, count: int, given: Sequence[int]) -> bool:
    """Whether no value that a recorded step computes depends on two parameters, their gradients or states."""
    owners = [*range(count), *given, *(place[1] for place in trace.places)]
    of: dict[Any, set[int]] = {}
    inputs = 0
    for node in trace.graph.graph.nodes:
        if node.op == "placeholder":
            of[node] = {owners[inputs]} if inputs < len(owners) else set()
            inputs += 1
        elif node.op == "call_function":
            of[node] = set[int]().union(*(of[source] for source in node.all_input_nodes))
            if len(of[node]) > 1 or draws(node):
                return False
            for source in node.all_input_nodes if _writes(node) else ():
                of[source] |= of[node]
                if len(of[source]) > 1:
                    return False
        else:
            of[node] = set()
    return True


def _writes(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)
