"""Lists what an optimiser holds, wherever it lies in its states, groups and attributes, and copies it on other tensors.

Optimisers of other packages count in lists, hold a second optimiser, or keep tensors in attributes. A trace runs on a
copy in which nothing is shared with the optimiser but what cannot change.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from downset.errors import UnsupportedError

__all__ = ["OptimizerParts", "Place", "copied", "parts_of", "place_name", "stepped_by_its_class"]

Place = tuple[Any, ...]
"""Where a value lies: ("state", parameter, key), ("group", number, key) or ("attribute", name), and keys below it."""

_OF_THE_BASE = frozenset(
    [
        *("_opt_called", "_warned_capturable_if_run_uncaptured", "_zero_grad_profile_name", "defaults"),
        *("param_groups", "state", "step"),
    ]
)
"""Attributes of every optimiser of PyTorch that are listed apart, or on which no update depends."""
_SHARED = (BuiltinFunctionType, FunctionType, ModuleType, type, str, bytes, bool, int, float, complex, type(None))
"""Types whose values no copy needs."""


@dataclass(frozen=True, slots=True)
class OptimizerParts:
    tensors: dict[Place, Any] = field(default_factory=dict)
    """All but parameters and the groups' learning rates, each once."""
    facts: dict[Place, Any] = field(default_factory=dict)
    """All values that are not tensors, and the places of tensors."""

    def settings(self) -> frozenset[tuple[Place, Any]]:
        """All facts, and the forms of the tensors, as one value that can be compared and hashed."""
        forms = ((place, (tuple(of.shape), of.dtype)) for place, of in self.tensors.items())
        return frozenset([*self.facts.items(), *forms])


def parts_of(optimizer: Any, parameters: Sequence[Any]) -> OptimizerParts:
    """All that an optimiser of these parameters holds."""
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    parts = OptimizerParts()
    seen: dict[int, Any] = {of: ("parameter", number) for of, number in numbers.items()}
    seen.update((id(of), ()) for of in (optimizer, optimizer.param_groups, optimizer.state))

    def known(value: Any) -> Any:
        """A parameter as its number, and the id of one likewise: a copy has others."""
        if isinstance(value, (set, frozenset)):
            return frozenset(map(known, value))
        if type(value) is int and value in numbers:
            return "the id of", numbers[value]
        return numbers.get(id(value), value)

    def take(place: Place, value: Any) -> None:
        import torch

        if isinstance(value, torch.Tensor):
            parts.facts[place] = seen.get(id(value), "a tensor")
            if id(value) not in seen:
                seen[id(value)] = place
                parts.tensors[place] = value
            return
        below = _below(value)
        if below is None:
            parts.facts[place] = _fact(known(value))
        elif id(value) not in seen:
            seen[id(value)] = place
            parts.facts[place] = type(value).__name__
            for key, one in below:
                take((*place, known(key)), one)

    for key, state in optimizer.state.items():
        take(("state", known(key)), state)
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key not in ("params", "lr", "param_names"):
                take(("group", number, key), value)
    for name, value in vars(optimizer).items():
        if name not in _OF_THE_BASE and not name.startswith("_optimizer_"):
            take(("attribute", name), value)
    return parts


def place_name(place: Place) -> str:
    """A place as messages name it."""
    kind, of, *rest = place
    names = " ".join(map(repr, rest))
    if kind == "state":
        return f"state {names} of parameter {of}"
    return f"group {of}'s {names}" if kind == "group" else f"its attribute {' '.join([repr(of), names]).strip()}"


def copied(optimizer: Any, tensors: Mapping[int, Any]) -> Any:
    """A copy of an optimiser with other tensors, by the ids of those that it holds. Raises UnsupportedError if it holds
    something that cannot be copied."""
    copies: dict[int, Any] = dict(tensors)
    kept: list[Any] = []  # ids are of living objects

    def keep(value: Any, new: Any) -> Any:
        copies[id(value)] = new
        kept.append(value)
        return new

    def of(value: Any) -> Any:
        import torch

        if id(value) in copies:
            return copies[id(value)]
        if type(value) is int and value in tensors:
            return id(tensors[value])
        if isinstance(value, weakref.ref) and id(value()) in tensors:
            raise UnsupportedError(f"{type(optimizer).__name__} refers weakly to its tensors")
        if isinstance(value, CellType):
            cell = keep(value, CellType())
            for one in _content(value):
                cell.cell_contents = of(one)
            return cell
        if isinstance(value, FunctionType) and value.__closure__:
            cells = tuple(map(of, value.__closure__))
            if id(value) not in copies:  # a cell may hold the function itself
                function = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
                function.__kwdefaults__ = value.__kwdefaults__
                keep(value, function)
            return copies[id(value)]
        if isinstance(value, (set, frozenset)):
            return keep(value, type(value)(map(of, value)))
        if isinstance(value, (torch.Tensor, torch.dtype, torch.device, *_SHARED)):
            return value
        if isinstance(value, MethodType):
            return MethodType(value.__func__, of(value.__self__))
        if isinstance(value, dict):
            new = keep(value, copy.copy(value))
            new.clear()
            new.update((of(key), of(one)) for key, one in value.items())
            return new
        if isinstance(value, (list, deque)):
            new = keep(value, copy.copy(value))
            new.clear()
            new.extend(map(of, value))
            return new
        if isinstance(value, tuple):
            return type(value)(*map(of, value)) if hasattr(value, "_fields") else tuple(map(of, value))
        if not _is_plain(value):
            return keep(value, copy.deepcopy(value))
        kind: Any = type(value)
        new = keep(value, kind.__new__(kind))
        attributes = _attributes(value)
        if isinstance(value, torch.optim.Optimizer):
            if not stepped_by_its_class(value):
                raise UnsupportedError(f"the step of a {type(value).__name__} was replaced")
            attributes.pop("step", None)
        for name, one in attributes.items():
            object.__setattr__(new, name, of(one))
        return new

    try:
        return of(optimizer)
    except (TypeError, AttributeError, RuntimeError) as error:
        raise UnsupportedError(f"{type(optimizer).__name__} holds what cannot be copied: {error}") from error


def stepped_by_its_class(optimizer: Any) -> bool:
    """Whether `optimizer.step` is that of its class, or a scheduler's count around it."""
    own = vars(optimizer).get("step")
    theirs = type(optimizer).step
    return own is None or (hasattr(own, "_wrapped_by_lr_sched") and getattr(own, "__wrapped__", theirs) is theirs)


def _is_plain(value: Any) -> bool:
    """Whether an object is all in its `__dict__` and `__slots__`."""
    kind: Any = type(value)
    held = hasattr(value, "__dict__") or any("__slots__" in vars(of) for of in kind.__mro__)
    return (held and kind.__new__ is object.__new__) or kind.__name__ == "SimpleNamespace"


def _attributes(value: Any) -> dict[str, Any]:
    """The values in the `__dict__` and `__slots__` of an object."""
    every = (item for kind in type(value).__mro__ for item in vars(kind).items())
    slots = [name for name, of in every if isinstance(of, MemberDescriptorType) and name != "__dict__"]
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots if hasattr(value, name)}}


def _content(cell: CellType) -> list[Any]:
    """The value that a variable of a closure holds, in a list; empty where it is not assigned yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _below(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """The values inside another one, by their keys; None for one that has no parts."""
    if isinstance(value, dict):
        return iter(value.items())
    if isinstance(value, (list, tuple, deque)):
        return enumerate(value)
    if isinstance(value, FunctionType) and value.__closure__:
        cells = zip(value.__code__.co_freevars, value.__closure__, strict=True)
        return ((name, one) for name, cell in cells for one in _content(cell))
    if isinstance(value, (MethodType, *_SHARED)) or not _is_plain(value):
        return None
    return ((name, one) for name, one in _attributes(value).items() if name not in ("step", "_opt_called"))


def _fact(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return type(value).__name__, repr(value)
    return value
