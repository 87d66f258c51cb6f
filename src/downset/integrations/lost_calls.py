"""Warns of a call after a compiled step that cannot have its effect any more: clipping gradients that are used up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from downset.integrations.user_warning import warn_user

__all__ = ["watch_clipping"]

_LOST = (
    "clip_grad_norm_ finds no gradients: the compiled step has already updated by them; give compile_step "
    "clip_grad_norm=…, and read step.grad_norm"
)


def watch_clipping(optimizer: Any) -> None:
    """Let `torch.nn.utils.clip_grad_norm_` warn from now on where it is given parameters of this optimiser without
    gradients. PyTorch's result is the same."""
    parameters = _known()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameters[parameter] = True


_KNOWN: list[Any] = []


def _known() -> Any:
    """The parameters that compiled steps update."""
    from torch.nn.utils import clip_grad
    from torch.utils.weak import WeakIdKeyDictionary

    if not _KNOWN:
        _KNOWN.append(WeakIdKeyDictionary())
        # the function that `clip_grad_norm_` calls by this name, also where it was imported before
        inner = getattr(clip_grad, "_clip_grads_with_norm_", None)
        if inner is not None:
            clip_grad._clip_grads_with_norm_ = _telling(inner)
    return _KNOWN[0]


def _telling(inner: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def clip(parameters: Any, *arguments: Any, **options: Any) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        gone = not torch.compiler.is_compiling() and all(parameter.grad is None for parameter in given)
        if gone and any(parameter in _KNOWN[0] for parameter in given):
            warn_user(_LOST)
        return inner(given, *arguments, **options)

    return clip
