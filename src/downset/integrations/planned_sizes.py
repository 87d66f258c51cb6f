"""Chooses the plan within a limit of memory that a batch runs by: one that was made for sizes that are no smaller.

PyTorch compiles a function once for sizes that vary, and a plan made then counts the bytes of the batch at hand: a
larger one would hold more than the limit. The largest batch given first needs the fewest plans.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from downset.integrations.user_warning import warn_user
from downset.text import format_bytes

__all__ = ["PlannedSizes", "form_and_sizes"]

_MOST_PLANS = 8
"""The most plans for batches of one form: a compile for each."""


@dataclass(frozen=True, slots=True)
class _SizesPlan:
    form: Any
    sizes: tuple[int, ...]
    varying: tuple[bool, ...]
    """By size: whether batches that were planned for differ in it, so that the plan runs smaller ones, too."""

    def holds(self, form: Any, sizes: tuple[int, ...]) -> bool:
        """Whether a batch of these sizes needs no more than the plan counts."""
        if form != self.form:
            return False
        every = zip(sizes, self.sizes, self.varying, strict=True)
        return all(of == most or (varies and of < most) for of, most, varies in every)


class PlannedSizes:
    """The plans of one step, by number, within a limit of `peak_bytes`; without a limit one plan serves all."""

    def __init__(self, peak_bytes: int | None) -> None:
        self._peak_bytes = peak_bytes
        self._plans: list[_SizesPlan] = []
        self._told = False

    def plan_of(self, batch: Any) -> int:
        """The number of the plan for a batch; a new number for a batch that has to be planned for."""
        if self._peak_bytes is None:
            return 0
        form, sizes = form_and_sizes(batch)
        alike = [number for number, plan in enumerate(self._plans) if plan.form == form]
        for number in alike:
            if self._plans[number].holds(form, sizes):
                return number
        if len(alike) >= _MOST_PLANS:
            if not self._told:
                warn_user(
                    f"downset planned for {_MOST_PLANS} sizes of batches, and plans for no more: a batch of further "
                    f"ones may hold more than {format_bytes(self._peak_bytes)} B; give the largest batch first"
                )
            self._told = True
            return alike[-1]
        others = [self._plans[number].sizes for number in alike]
        varying = tuple(any(of[place] != size for of in others) for place, size in enumerate(sizes))
        self._plans.append(_SizesPlan(form, sizes, varying))
        return len(self._plans) - 1


def form_and_sizes(batch: Any) -> tuple[Any, tuple[int, ...]]:
    """(the structure of a batch with the kinds of its tensors, all sizes of these tensors)."""
    import torch
    from torch.utils import _pytree as pytree

    tensors: list[Any] = []
    structure = _plain_structure(batch, tensors)
    if structure is None:
        leaves, described = pytree.tree_flatten(batch)
        tensors, structure = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], str(described)
    kinds = tuple((tensor.dim(), tensor.dtype, tensor.device.type) for tensor in tensors)
    return (kinds, structure), tuple(size for tensor in tensors for size in tensor.shape)


def _plain_structure(batch: Any, tensors: list[Any]) -> Hashable | None:
    """The structure of tensors in tuples alone, which are added to `tensors`; None for another. A step of a small model
    takes two milliseconds, and PyTorch needs 0.05 of them to describe any structure."""
    import torch

    if isinstance(batch, torch.Tensor):
        tensors.append(batch)
        return "*"
    if type(batch) is not tuple:
        return None
    parts = tuple(_plain_structure(part, tensors) for part in batch)
    return None if None in parts else parts
