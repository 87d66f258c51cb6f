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
_LEAST_PORTION = 1 << 20
"""Bytes of gradients. Fewer are not worth a call."""


def update_ahead(optimizer: Any) -> None:
    """Update all but the last portion of the parameters and free their gradients, where that gives the same and holds
    less. The optimiser's own step does the rest."""
    import torch

    parameters = [of for group in optimizer.param_groups for of in group["params"] if of.grad is not None]
    if not _at_once(optimizer) or not stepped_by_its_class(optimizer) or has_hooks(optimizer):
        return
    if len({*map(id, parameters)}) < len(parameters) or not updates_apart(optimizer, parameters):
        return  # PyTorch warns of a parameter that is listed twice, and updates it twice
    if any(of.grad.layout is not torch.strided for of in parameters):
        return
    gradients = {parameter: parameter.grad for parameter in parameters}
    ahead = [*_portions(parameters)][:-1]
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


def _portions(parameters: Sequence[Any]) -> Iterator[list[Any]]:
    """These parameters, one after another, in lists of at most a sixteenth of all bytes, or of a single larger one."""
    most_bytes = max(_LEAST_PORTION, sum(of.grad.nbytes for of in parameters) // _PORTIONS)
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
