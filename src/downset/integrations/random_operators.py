"""Tells which of PyTorch's operators draw random numbers.

PyTorch tags every fused attention as one that draws, because it drops out where it is asked to. An operator that does
neither may run again and needs no fixed place among generators.
"""

from __future__ import annotations

from typing import Any

__all__ = ["draws"]


def draws(node: Any) -> bool:
    """Whether an fx node draws random numbers: a seeded operator, unless it drops out with probability 0."""
    import torch

    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[position] if position < len(node.args) else None
            value = node.kwargs.get(argument.name, argument.default_value) if given is None else given
            return not (isinstance(value, (int, float)) and value == 0)
    return True
