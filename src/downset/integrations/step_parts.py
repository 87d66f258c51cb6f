"""The parts of a training step, and what every way of running it does with them: the loss, clipping, scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from downset.errors import UsageError
from downset.integrations.order_pass import Report

__all__ = [
    "StepParts",
    "StepReports",
    "autocast_of",
    "clipped",
    "detached",
    "full_loss",
    "loss_of",
    "norm_of",
    "parallel_kind",
    "scale_of",
    "update_scale",
]

_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(slots=True)
class StepReports:
    """Hands reports on, and counts them."""

    receiver: Report
    count: int = 0

    def __call__(self, report: Any) -> None:
        self.count += 1
        self.receiver(report)


@dataclass(frozen=True, slots=True)
class StepParts:
    """The parts of a step."""

    model: Any
    loss_fn: Callable[..., Any]
    optimizer: Any
    autocast: Any
    scaler: Any
    clip_grad_norm: float | None
    skip_nonfinite: bool
    peak_bytes: int | None
    reports: StepReports | None

    @property
    def takes_norm(self) -> bool:
        """Whether an update needs the norm of all gradients, so all of them."""
        return self.clip_grad_norm is not None or self.skip_nonfinite


def loss_of(parts: StepParts, inputs: Any, targets: tuple[Any, ...]) -> tuple[Any, Any]:
    """The loss of a batch, and what the loss function returned with it: None if that is the loss alone."""
    with autocast_of(parts):
        return full_loss(parts, inputs, targets)


def autocast_of(parts: StepParts) -> AbstractContextManager[None]:
    """The context of the forward pass and the loss."""
    import torch

    if parts.autocast is None:  # PyTorch does not cache graphs that enter autocast, on or off
        return nullcontext()
    autocast: AbstractContextManager[None] = torch.autocast(
        next(parts.model.parameters()).device.type, dtype=parts.autocast
    )
    return autocast


def full_loss(parts: StepParts, inputs: Any, targets: tuple[Any, ...]) -> tuple[Any, Any]:
    """The same in the precision around it. One frame: where the model has no graph, PyTorch checks each frame by
    itself."""
    if isinstance(inputs, dict):
        output = parts.model(**inputs)
    else:
        output = parts.model(*inputs) if isinstance(inputs, tuple) else parts.model(inputs)
    returned = parts.loss_fn(output, *targets)
    loss, aux = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not hasattr(loss, "backward"):
        raise UsageError(f"loss_fn returned a {type(loss).__name__}; it returns the loss, one tensor")
    return loss, aux


def detached(loss: Any, aux: Any) -> Any:
    """The result of a step: the loss, or the pair of the loss and what came with it."""
    import torch
    from torch.utils import _pytree as pytree

    if aux is None:
        return loss.detach()
    return loss.detach(), pytree.tree_map(lambda of: of.detach() if isinstance(of, torch.Tensor) else of, aux)


def norm_of(gradients: Sequence[Any]) -> Any:
    """The norm of all gradients together; None without gradients."""
    import torch

    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients if gradient is not None]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else None


def clipped(gradients: Sequence[Any], norm: Any, most: float | None) -> Sequence[Any]:
    """The gradients, which have this norm together, with a norm of at most `most`, as `clip_grad_norm_` makes them."""
    if most is None or norm is None:
        return gradients
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    return [None if gradient is None else gradient * factor for gradient in gradients]


def parallel_kind(model: Any) -> str:
    """The class of the first module whose ranks meet in hooks of `backward`, which the gradients of a whole step do not
    call; "" if there is none."""
    for module in model.modules() if hasattr(model, "modules") else ():
        for kind in type(module).__mro__:
            if kind.__name__ in _PARALLEL:
                return kind.__name__
    return ""


def scale_of(parts: StepParts) -> Any:
    """The scaler's factor; the scaler makes it when it first scales."""
    import torch

    if parts.scaler._scale is None:
        parts.scaler.scale(torch.zeros((), device=next(parts.model.parameters()).device))
    return parts.scaler._scale


def update_scale(parts: StepParts, overflow: Any) -> None:
    """Let the scaler update its factor, with the given result of its check for overflow."""
    parts.scaler._per_optimizer_states[id(parts.optimizer)]["found_inf_per_device"] = {overflow.device: overflow}
    parts.scaler.update()
