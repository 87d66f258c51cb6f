"""Runs a training step that cannot be one graph, on the highest rung below that holds it.

    forward and backward graphs, in our order -> torch.compile -> plain PyTorch

PyTorch divides such a step into graphs by itself, at what no graph can hold, and runs the rest as it is. So hooks on
gradients, DistributedDataParallel, FSDP and recurrent networks work as ever. A rung is left for the next one if its
first batch of some shape fails and the same batch does not fail in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from downset.errors import UnsupportedError
from downset.integrations.early_updates import LEAST_BYTES, EarlyUpdates
from downset.integrations.fused_peak import PlanAgain
from downset.integrations.joined_kernels import joined_kernels
from downset.integrations.planned_sizes import PlannedSizes, form_and_sizes
from downset.integrations.step_parts import StepParts, autocast_of, full_loss, loss_of, parallel_kind
from downset.integrations.update_portions import update_ahead
from downset.integrations.whole_function import tracing

__all__ = ["EAGER", "LowerRungs", "Options", "Rung", "first_line"]

Options = Callable[[], dict[str, Any]]
"""Makes the options of `torch.compile` for one function, with passes of its own, which remember what they chose."""

EAGER = "plain PyTorch"
_MOST_SHAPES = 8
"""The most shapes of batches whose first one may fail without harm. PyTorch compiles no function more often."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A way to run a step. `options`: of `torch.compile`; None for plain PyTorch."""

    name: str
    options: Options | None


class LowerRungs:
    """The rungs below a whole step, from the highest. `changed` is called with the reason when one is left."""

    def __init__(self, parts: StepParts, rungs: list[Rung], *, early: bool, changed: Callable[[str], None]) -> None:
        self._parts, self._rungs, self._changed = parts, rungs, changed
        self._functions: dict[tuple[str, int], Callable[..., Any]] = {}
        self._options: dict[tuple[str, int], dict[str, Any]] = {}
        self._planned = PlannedSizes(parts.peak_bytes)
        self._shapes: set[Any] = set()
        least_bytes = LEAST_BYTES if parts.peak_bytes is None else 1
        self._alone = not parallel_kind(parts.model)
        self._early = EarlyUpdates(parts.optimizer, least_bytes=least_bytes) if early and self._alone else None

    @property
    def rung(self) -> Rung:
        return self._rungs[0]

    def backward(self, inputs: Any, targets: tuple[Any, ...], *, alone: bool) -> tuple[Any, Any]:
        """Run forward and backward; returns the loss and what came with it. The gradients then lie in `grad`, but for
        parameters that are already updated. `alone`: whether these are all gradients of the update."""
        shape = _shape(self._parts, inputs, targets)
        new = shape not in self._shapes and len(self._shapes) < _MOST_SHAPES and self.rung.options is not None
        before = _Before(self._parts) if new else None
        try:
            results = self._planned_both(inputs, targets, before, alone=alone, watch=new)
        except Exception as error:
            if before is None:
                raise
            before.restore()
            results = self._both(
                self._eager, (inputs, targets), alone=alone, watch=True
            )  # a user's own error is raised
            self._rungs = self._rungs[1:]
            self._changed(first_line(error))
        else:
            if new:
                self._shapes.add(shape)
        return results

    def _planned_both(
        self, inputs: Any, targets: tuple[Any, ...], before: _Before | None, **how: bool
    ) -> tuple[Any, Any]:
        """Run forward and backward, from the beginning as long as another plan may hold less: what the parts of the
        model in front of the planned graph have changed is put back."""
        while True:
            try:
                return self._both(self._function(inputs, targets), (inputs, targets), **how)
            except PlanAgain:
                if before is not None:
                    before.restore()

    def update(self) -> None:
        """The optimiser's step behind `backward`."""
        if self._alone and self._parts.peak_bytes is not None:
            update_ahead(self._parts.optimizer, self._parts.peak_bytes)
        self._parts.optimizer.step()

    def updated(self) -> None:
        """Take note that the optimiser has updated."""
        if self._early is not None:
            self._early.decide()

    def _both(
        self, function: Callable[..., Any], batch: tuple[Any, Any], *, alone: bool, watch: bool
    ) -> tuple[Any, Any]:
        scaler = self._parts.scaler
        around: AbstractContextManager[None] = nullcontext()
        with nullcontext() if function == self._eager else joined_kernels():
            loss, aux = function(*batch)
            if self._early is not None and alone and scaler is None and not self._parts.takes_norm:
                around = self._early.around(loss, watch=watch)
            with around:
                (loss if scaler is None else scaler.scale(loss)).backward()
        return loss, aux

    def _eager(self, inputs: Any, targets: tuple[Any, ...]) -> tuple[Any, Any]:
        return loss_of(self._parts, inputs, targets)

    def _function(self, inputs: Any, targets: tuple[Any, ...]) -> Callable[..., Any]:
        import torch

        rung, parts = self.rung, self._parts
        if rung.options is None:
            return self._eager
        key = rung.name, self._planned.plan_of((inputs, targets))
        if key not in self._functions:
            if key not in self._options:
                self._options[key] = rung.options()
            code = full_loss.__code__.replace(co_name=f"loss_{id(self):x}")  # as `whole_function` says
            own = FunctionType(code, full_loss.__globals__, code.co_name)
            compiled, limited = torch.compile(own, options=self._options[key]), parts.peak_bytes is not None
            # a limit holds for all that one graph has; PyTorch would divide it at buckets of gradients
            traced = tracing(**({"optimize_ddp": False} if limited else {}))
            backward = _backward_at_once(limited)

            def loss(inputs: Any, targets: tuple[Any, ...]) -> Any:
                with traced, backward, autocast_of(parts):
                    try:
                        return compiled(parts, inputs, targets)
                    except PlanAgain:
                        del self._functions[key]
                        raise

            self._functions[key] = loss
        return self._functions[key]


def _backward_at_once(limited: bool) -> AbstractContextManager[Any]:
    """Within a limit the backward graph is compiled with the forward graph, before that one runs: where it holds more
    than the limit, both are planned again."""
    from torch._functorch import config

    return config.patch(force_non_lazy_backward_lowering=True) if limited else nullcontext()


class _Before:
    """The buffers, gradients and states of generators that a batch changes although it fails."""

    def __init__(self, parts: StepParts) -> None:
        import torch

        model, optimizer = parts.model, parts.optimizer
        self._buffers = [(buffer, buffer.clone()) for buffer in (model.buffers() if hasattr(model, "buffers") else ())]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._gradients = [(of, None if of.grad is None else of.grad.clone()) for of in parameters]
        self._generator = torch.get_rng_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        import torch

        with torch.no_grad():
            for buffer, was in self._buffers:
                buffer.copy_(was)
        for parameter, gradient in self._gradients:
            parameter.grad = None if gradient is None else gradient.clone()  # gradients are added to it in place
        torch.set_rng_state(self._generator)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)


def _shape(parts: StepParts, inputs: Any, targets: Any) -> Any:
    """The facts of a batch that decide whether a function is compiled again for it."""
    return form_and_sizes((inputs, targets)), getattr(parts.model, "training", None)


def first_line(error: BaseException) -> str:
    """The first line with content: an error of the compiler begins with the compiler's name."""
    if isinstance(error, UnsupportedError):
        return str(error)
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line and not line.endswith(" raised:")), type(error).__name__)
