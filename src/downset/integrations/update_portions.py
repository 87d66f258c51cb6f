"""Updates some parameters at a time behind a backward pass, where PyTorch would update all of them at once.

`torch.optim` does so with `foreach`, its choice on a GPU: operators over lists hold results as large as all gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from downset.integrations.early_updates import has_hooks, is_of_pytorch, updates_apart
from downset.integrations.optimizer_parts import stepped_by_its_class

__all__ = ["update_ahead"]

_PORTIONS = 16
_RESULTS = {"Adam": 1, "AdamW": 1, "SGD": 1}
_MOST_RESULTS = 3
"""The most results as large as its gradients that such an update holds at a time; Adadelta's holds three."""
_LEAST_PORTION = 1 << 20
"""Bytes of gradients. Fewer are not worth a call."""


def update_ahead(optimizer: Any, peak_bytes: int) -> None:
    """Update all but the last portion of the parameters and free their gradients, where that gives the same and an
    update of all at once may hold more than `peak_bytes`, gradients included. The optimiser's own step does the rest.

    A portion is as large as the limit allows, because each costs a call, but no smaller than a sixteenth of all."""
    import torch

    parameters = [of for group in optimizer.param_groups for of in group["params"] if of.grad is not None]
    if not _at_once(optimizer) or any(of.grad.layout is not torch.strided for of in parameters):
        return
    results = _RESULTS.get(type(optimizer).__name__, _MOST_RESULTS)
    gradient_bytes = sum(of.grad.nbytes for of in parameters)
    portion_bytes = max(_LEAST_PORTION, gradient_bytes // _PORTIONS, (peak_bytes - gradient_bytes) // results)
    if portion_bytes >= gradient_bytes or not stepped_by_its_class(optimizer) or has_hooks(optimizer):
        return
    if len({*map(id, parameters)}) < len(parameters) or not updates_apart(optimizer, parameters):
        return  # PyTorch warns of a parameter that is listed twice, and updates it twice
    gradients = {parameter: parameter.grad for parameter in parameters}
    ahead = [*_portions(parameters, portion_bytes)][:-1]
    try:
        for parameter in parameters:
            parameter.grad = None
        for portion in ahead:
            for parameter in portion:
                parameter.grad = gradients.pop(parameter)
            type(optimizer).step(optimizer)
            for parameter in portion:
                parameter.grad = None
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient


def _at_once(optimizer: Any) -> bool:
    """Whether an optimiser of PyTorch updates the parameters of a group by operators over lists."""
    return is_of_pytorch(optimizer) and any(_takes_lists(group) for group in optimizer.param_groups)


def _takes_lists(group: dict[str, Any]) -> bool:
    if group.get("fused") or "foreach" not in group:
        return False
    stated = group["foreach"]
    return bool(stated) if stated is not None else any(of.device.type != "cpu" for of in group["params"])


def _portions(parameters: Sequence[Any], most_bytes: int) -> Iterator[list[Any]]:
    """These parameters, one after another, in lists of at most so many bytes, or of a single larger one."""
    portion: list[Any] = []
    held = 0
    for parameter in parameters:
        if portion and held + parameter.grad.nbytes > most_bytes:
            yield portion
            portion, held = [], 0
        portion.append(parameter)
        held += parameter.grad.nbytes
    if portion:
        yield portion
