"""The function of a whole training step that is compiled as one graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any

from downset.integrations.optimizer_update import Settings, Update
from downset.integrations.step_parts import StepParts, clipped, detached, loss_of, norm_of

__all__ = ["tracing", "whole_function"]

_LOGGED = ("critical", "debug", "error", "exception", "fatal", "info", "log", "warn", "warning")


def tracing(**settings: Any) -> AbstractContextManager[None]:
    """These settings of Dynamo, and calls of loggers are left out of graphs: also those that libraries add to
    `logging.Logger`, such as `warning_once` of transformers. To be made once and entered at each call: PyTorch's object
    stays in the thread's context for ever once it was entered."""
    import torch

    if not hasattr(torch._dynamo.config, "ignore_logging_functions"):
        return nullcontext()
    added = [name for name in vars(logging.Logger) if name.endswith(("_once", "_advice"))]
    loggers = {vars(logging.Logger)[name] for name in (*_LOGGED, *added)}
    ignored = torch._dynamo.config.ignore_logging_functions | loggers
    patched: AbstractContextManager[None] = torch._dynamo.config.patch(ignore_logging_functions=ignored, **settings)
    return patched


def whole_function(parts: StepParts, update: Update, settings: Settings | None) -> Callable[..., Any]:
    """The function to compile: a step on one batch, or on one part of it, with the gradients of earlier parts in
    `sums`. Without `settings` it does not update. It returns (loss or pair, which parameters the loss depended on,
    whether the update was skipped, norm of the gradients)."""
    import torch

    def step(inputs: Any, targets: tuple[Any, ...], sums: list[Any], used: tuple[bool, ...], scale: Any) -> Any:
        (loss, aux), skipped, norm = loss_of(parts, inputs, targets), None, None
        root = loss if scale is None else loss * scale
        gradients = torch.autograd.grad(root, update.parameters, allow_unused=True)
        used = tuple([before or gradient is not None for before, gradient in zip(used, gradients, strict=True)])
        with torch.no_grad():
            if settings is None:
                for total, gradient in zip(sums, gradients, strict=True):
                    if gradient is not None:
                        total.add_(gradient)
            else:
                if sums:
                    both = zip(sums, gradients, used, strict=True)
                    gradients = [(total if g is None else total + g) if was else None for total, g, was in both]
                skipped, norm = _updated(parts, update, gradients, (settings, scale))
        return detached(loss, aux), used, skipped, norm

    # Dynamo counts compiles by code object, and remembers by name which sizes vary. Each step needs its own.
    code = step.__code__.replace(co_name=f"step_{id(update):x}")
    return FunctionType(code, step.__globals__, code.co_name, None, step.__closure__)


def _updated(
    parts: StepParts, update: Update, gradients: Sequence[Any], options: tuple[Settings, Any]
) -> tuple[Any, Any]:
    """Update by the gradients. Returns whether nothing was changed, as 1.0 or 0.0, because one of them is not finite
    (None where that is not asked for), and their norm (likewise). `options`: the optimiser's, and the loss's scale."""
    import torch

    settings, scale = options
    skipped = None
    if scale is not None:
        not_finite = [gradient.isfinite().all().logical_not() for gradient in gradients if gradient is not None]
        skipped = torch.stack(not_finite).any() if not_finite else torch.zeros((), dtype=torch.bool)
        inverse = scale.double().reciprocal().float()
        gradients = [None if gradient is None else gradient * inverse for gradient in gradients]
    norm = norm_of(gradients) if parts.takes_norm else None
    if parts.skip_nonfinite and norm is not None:
        skipped = norm.isfinite().logical_not()
    gradients = clipped(gradients, norm, parts.clip_grad_norm)
    if skipped is None:
        update.apply(gradients, settings)
        return None, norm
    state = update.state()
    before = [tensor.clone() for tensor in state]
    update.apply(gradients, settings)
    for tensor, was in zip(state, before, strict=True):
        tensor.copy_(torch.where(skipped, was, tensor))
    return skipped.float(), norm
