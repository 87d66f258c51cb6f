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

__all__ = ["LEAST_BYTES", "EarlyUpdates", "has_hooks", "is_of_pytorch", "updates_apart"]

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
        if self.possible is False or not stepped_by_its_class(self.optimizer) or has_hooks(self.optimizer):
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
    groups = enumerate(optimizer.param_groups)
    one.param_groups = [{**group, "params": [parameter] if place == number else []} for place, group in groups]
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


def has_hooks(optimizer: Any) -> bool:
    from torch.optim import optimizer as optimizers

    steps = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    everywhere = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    return any((*steps, *everywhere)) or any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def is_of_pytorch(optimizer: Any) -> bool:
    """Whether it is one of `torch.optim` itself: of a subclass, the step may be another one."""
    return f"{type(optimizer).__module__}.".startswith("torch.optim.")


def updates_apart(optimizer: Any, parameters: Sequence[Any]) -> bool:
    """Whether the update of each parameter depends on its own gradient and states alone, and one without a gradient
    stays as it is, states included. An optimiser that is not of `torch.optim` has its states."""
    import torch

    kind = type(optimizer)
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return False
    if is_of_pytorch(optimizer):
        mixed = any(len({of.dtype for of in group["params"]}) > 1 for group in optimizer.param_groups)
        # Adafactor takes one least number for a group, that of its first parameter's type
        return kind.__name__ not in _NOT_BY_PARAMETER and not (mixed and kind.__name__ == "Adafactor")
    attributes = vars(optimizer)
    if "param_groups" not in attributes or any(hasattr(of, "param_groups") for of in attributes.values()):
        return False  # it stands for another optimiser, which has all parameters
    rates = [torch.zeros((), dtype=torch.float64) for _ in optimizer.param_groups]
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with_gradients = {*map(id, parameters)}
    given = [number for number, parameter in enumerate(every) if id(parameter) in with_gradients]
    held = parts_of(optimizer, every)
    if any(place[0] == "attribute" and not isinstance(fact, (int, float, str)) for place, fact in held.facts.items()):
        return False  # parameters, or an optimiser of them all, may lie there
    try:
        cases = [given, given[:1]] if len(given) > 1 else [given]
        traces = [(some, trace_step(optimizer, every, some, rates, held)) for some in cases]
    except UnsupportedError:
        return False
    return all(_of_states(trace, some) and _apart(trace, len(every), some) for some, trace in traces)


def _of_states(trace: StepTrace, given: Sequence[int]) -> bool:
    """Whether a recorded step holds states of parameters alone, and changes those with a gradient and their states."""
    if not all(kind == "state" and isinstance(number, int) for kind, number, *_ in trace.places):
        return False
    parameters, states = trace.written
    return {*parameters, *(trace.places[of][1] for of in states)} <= {*given}


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
