"""Finds what is live where the memory of a training step peaks, by module, while the step runs as plain PyTorch.

The step runs on a copy of model and optimiser. Every operator that PyTorch runs passes here, and the storages that it
makes are counted until they are freed. What a library allocates inside an operator and frees there is not seen.
"""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from downset.compiled import ModulePeak, PeakReport
from downset.errors import UsageError
from downset.extras import torch_library
from downset.results.inspections import StepNeed

__all__ = ["explain"]

_Part = Literal["forward", "backward", "update"]


@dataclass(slots=True)
class _StepStorage:
    """A storage that the step made. `owner`: the module or the parameter."""

    nbytes: int
    part: _Part
    owner: str
    freed: int | None = None
    """The number of the operator before which it was freed."""


def explain(model: Any, batch: Any, loss_fn: Callable[..., Any] | None = None, optimizer: Any = None) -> PeakReport:
    """The tensors that are live at the peak of one plain training step, by module.

    A diagnosis that compiles and changes nothing. `ds.report` makes a page of it.

    `batch`: a tensor, a tuple of positional or a dict of keyword arguments of the model, whose output is the loss or
    has it as `loss`. With `loss_fn` it is a tuple (inputs, *targets), as a step of `compile_step` takes them. With an
    `optimizer` its update is part of the step. The step runs twice on a copy of all of it, so that memory for that
    copy, and for the state of its optimiser, is needed. Raises UsageError if no loss is found.
    """
    torch_library("explaining training steps")
    model, optimizer = copy.deepcopy((model, optimizer))
    inputs, *targets = batch if loss_fn is not None and isinstance(batch, tuple) else (batch,)

    def loss() -> Any:
        if isinstance(inputs, Mapping):
            output = model(**inputs)
        else:
            output = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        scalar = loss_fn(output, *targets) if loss_fn is not None else getattr(output, "loss", output)
        scalar = scalar[0] if isinstance(scalar, tuple) else scalar
        if not hasattr(scalar, "backward") or scalar.numel() != 1:
            raise UsageError("explain finds no loss: give loss_fn, and (inputs, *targets) as the batch")
        return scalar

    for _ in range(2):  # the first makes the optimiser's state
        model.zero_grad(set_to_none=True)
        watch = _Watch(model)
        with watch.operators():
            scalar = loss()
            watch.part = "backward"
            scalar.backward()
            watch.name_gradients(model)
            watch.part = "update"
            if optimizer is not None:
                optimizer.step()
            del scalar
        model.zero_grad(set_to_none=True)
    return watch.report(model)


class _Watch:
    """Watches the operators of one step."""

    def __init__(self, model: Any) -> None:
        from torch.utils.module_tracker import ModuleTracker

        self.part: _Part = "forward"
        self._tracker = ModuleTracker()
        self._root = type(model).__name__
        self._made: list[_StepStorage] = []
        self._at: list[int] = []  # by storage: the number of the operator that made it
        self._names: list[tuple[str, str]] = []  # by operator: its name and its module
        self._live: dict[int, int] = {}  # by id of a storage's Python object: the number of the storage
        self._references: dict[int, Any] = {}

    @contextmanager
    def operators(self) -> Iterator[None]:
        from torch.utils._python_dispatch import TorchDispatchMode

        watch = self

        class Mode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = function(*args, **(kwargs or {}))
                watch.took(function, (args, kwargs), result)
                return result

        with self._tracker, Mode():
            yield

    def took(self, function: Any, given: Any, result: Any) -> None:
        import torch
        from torch.utils import _pytree as pytree

        number = len(self._names)
        module = self._module()
        self._names.append((str(getattr(function, "overloadpacket", function)).rpartition(".")[2], module))
        read = {id(of.untyped_storage()) for of in pytree.tree_leaves(given) if isinstance(of, torch.Tensor)}
        for tensor in (leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)):
            storage = tensor.untyped_storage()
            key = id(storage)
            if key in read or key in self._live:
                continue
            self._live[key] = len(self._made)
            self._made.append(_StepStorage(storage.nbytes(), self.part, module))
            self._at.append(number)
            self._references[key] = weakref.ref(storage, partial(self._freed, key))

    def _freed(self, key: int, _: Any) -> None:
        self._made[self._live.pop(key)].freed = len(self._names)
        del self._references[key]

    def _module(self) -> str:
        """The innermost module that runs, or whose gradients are computed; "" outside of all."""
        inner = max((name for name in self._tracker.parents if name != "Global"), key=len, default="")
        return inner.removeprefix(self._root).lstrip(".")

    def name_gradients(self, model: Any) -> None:
        """Call the tensors in `grad` gradients of their parameters, whichever operator made them."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                number = self._live.get(id(parameter.grad.untyped_storage()))
                if number is not None:
                    self._made[number].owner = f"gradient of {name}"

    def report(self, model: Any) -> PeakReport:
        kinds = {name: type(module).__name__ for name, module in model.named_modules()}
        kind_of = [
            kinds.get(storage.owner, "") if storage.owner else f"{self._root}: {self._names[operator][0]}"
            for storage, operator in zip(self._made, self._at, strict=True)
        ]
        change = Counter[int]()
        for storage, operator in zip(self._made, self._at, strict=True):
            change[operator] += storage.nbytes
            if storage.freed is not None:
                change[storage.freed] -= storage.nbytes
        live, needs = 0, []
        for number, (name, module) in enumerate(self._names):
            live += change[number]
            needs.append(StepNeed(number, name, f"{module} {name}".strip(), live))
        peak = max(range(len(needs)), key=lambda number: needs[number].live_bytes or 0, default=0)
        count, held = Counter[tuple[str, str, _Part]](), Counter[tuple[str, str, _Part]]()
        for storage, kind, operator in zip(self._made, kind_of, self._at, strict=True):
            if operator <= peak and (storage.freed is None or storage.freed > peak) and storage.nbytes:
                count[storage.owner, kind, storage.part] += 1
                held[storage.owner, kind, storage.part] += storage.nbytes
        rows = tuple(ModulePeak(*key, nbytes, count[key]) for key, nbytes in held.most_common())
        return PeakReport(
            needs[peak].live_bytes or 0 if needs else 0, needs[peak].name if needs else "", rows, (*needs,)
        )
