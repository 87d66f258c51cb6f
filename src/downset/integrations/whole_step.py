"""A whole training step in one compiled graph: forward, loss, gradients and the optimiser's update.

In one graph a gradient dies as soon as its parameter is updated, and the order of all of it is planned together. What
`loss.backward(); optimizer.step()` compiles to is two or three graphs, with every gradient alive between them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from downset.errors import UnsupportedError, UsageError
from downset.extras import torch_library
from downset.integrations.optimizer_update import Settings, Update, update_of
from downset.integrations.order_pass import Report, order_pass, scheduler_passes
from downset.integrations.recompute_pass import recompute_options

__all__ = ["TrainingStep", "compile_step"]

_MOST_SETTINGS = 8
"""Graphs of one step. A learning rate is an input of the graph; momentum that changes at every step is not."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a step."""

    model: Any
    loss_fn: Callable[..., Any]
    optimizer: Any
    autocast: Any


class TrainingStep:
    """A training step: `loss = step(inputs, targets)`, as `compile_step` returns it.

    `fallback` says why it runs without being compiled as a whole, or is empty.
    """

    def __init__(self, parts: _Parts, update: Update | None, accumulate: int, options: dict[str, Any]) -> None:
        self.fallback = ""
        self._parts, self._update, self._accumulate, self._options = parts, update, accumulate, options
        self._done = 0
        self._used: tuple[bool, ...] = ()  # by parameter: whether the loss of a part so far depends on it
        self._compiled: dict[tuple[bool, Settings], Callable[..., Any]] = {}

    def __call__(self, inputs: Any, *targets: Any) -> Any:
        """One step on one batch, or on one of `accumulate` parts of it; returns the loss, detached.

        `inputs`: a tensor, a tuple of positional or a dict of keyword arguments of the model; the loss is
        `loss_fn(output, *targets)`. Parameters, buffers and the optimiser's state change in place.
        """
        last = self._done + 1 == self._accumulate
        if self._update is None or self.fallback:
            loss = self._plain(inputs, targets, last=last)
        else:
            loss = self._whole(self._update, inputs, targets, last=last)
        self._done = 0 if last else self._done + 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        """`{"model": …, "optimizer": …}`: the two checkpoints of plain PyTorch. Raises UsageError between the parts of
        an accumulated batch, whose gradients no checkpoint holds."""
        if self._done:
            raise UsageError(f"a checkpoint holds no gradients: take it after part {self._accumulate} of a batch")
        return {"model": self._parts.model.state_dict(), "optimizer": self._parts.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned, here or as the two checkpoints of plain PyTorch."""
        self._parts.model.load_state_dict(state["model"])
        self._parts.optimizer.load_state_dict(state["optimizer"])
        self._done = 0

    def _whole(self, update: Update, inputs: Any, targets: tuple[Any, ...], *, last: bool) -> Any:
        import torch
        from torch._dynamo.exc import TorchDynamoException

        settings = update.prepare()
        sums = _sums(update) if self._accumulate > 1 else []
        used = self._used if self._done else (False,) * len(update.parameters)
        if (last, settings) not in self._compiled:
            function = _whole_function(self._parts, update, settings if last else None)
            self._compiled[last, settings] = torch.compile(function, fullgraph=True, options=self._options)
        try:
            if len(self._compiled) > _MOST_SETTINGS:
                raise UnsupportedError("the optimiser's settings, beside its learning rate, change again and again")
            with torch._dynamo.config.patch(trace_autograd_ops=True):
                loss, self._used = self._compiled[last, settings](inputs, targets, sums, used)
        except (TorchDynamoException, UnsupportedError) as error:  # nothing has run yet
            self.fallback = _first_line(error)
            _warn(self.fallback)
            return self._plain(inputs, targets, last=last)
        if last:
            self._parts.optimizer._opt_called = True  # what schedulers ask before they move on
        return loss

    def _plain(self, inputs: Any, targets: tuple[Any, ...], *, last: bool) -> Any:
        loss = _loss(self._parts, inputs, targets)
        loss.backward()
        if last:
            self._parts.optimizer.step()
            self._parts.optimizer.zero_grad()
        return loss.detach()


def compile_step(
    model: Any,
    loss_fn: Callable[..., Any],
    optimizer: Any,
    *,
    autocast: Any = None,
    accumulate: int = 1,
    order: bool = True,
    work_limit: int = 20_000,
    report: Report | None = None,
    peak_bytes: int | None = None,
    choices: int | None = None,
) -> TrainingStep:
    """A training step compiled as one graph, in the order of least peak memory.

    `optimizer`: a `torch.optim.SGD`, `Adam` or `AdamW` over parameters of `model`. `autocast`: a dtype such as
    `torch.bfloat16` for the forward pass and the loss. `accumulate`: the optimiser updates at every so many calls, with
    the sum of their gradients, as PyTorch has it. `order=False` leaves Inductor its own order, to compare. `report`,
    `work_limit`, `peak_bytes` and `choices` as in `options`. Compiles at its first call. What cannot be one graph runs
    as plain PyTorch, with one warning that says why.
    """
    torch = torch_library("compiling training steps")
    if accumulate < 1:
        raise UsageError(f"accumulate is {accumulate}; give the number of calls an update, at least 1")
    parts = _Parts(model, loss_fn, optimizer, autocast)
    options = {}
    try:
        if not scheduler_passes() or not hasattr(torch._dynamo.config, "trace_autograd_ops"):
            raise UnsupportedError("this torch cannot trace gradients into a graph, or order it")
        if order:
            options["_post_fusion_custom_pass"] = order_pass(work_limit=work_limit, report=report)
        if peak_bytes is not None:
            options |= recompute_options(peak_bytes, choices=choices, report=report, whole=True)
        update = update_of(optimizer)
    except UnsupportedError as error:
        _warn(str(error))
        step = TrainingStep(parts, None, accumulate, {})
        step.fallback = str(error)
        return step
    return TrainingStep(parts, update, accumulate, options)


def _sums(update: Update) -> list[Any]:
    """The gradients of the parts so far: each parameter's own `grad`."""
    import torch

    for parameter in update.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in update.parameters]


def _whole_function(parts: _Parts, update: Update, settings: Settings | None) -> Callable[..., Any]:
    """The function to compile: a step on one batch; or on one part of it, with the gradients of those before it in
    `sums`. Without `settings` it does not update."""
    import torch

    def step(inputs: Any, targets: tuple[Any, ...], sums: list[Any], used: tuple[bool, ...]) -> Any:
        loss = _loss(parts, inputs, targets)
        gradients = torch.autograd.grad(loss, update.parameters, allow_unused=True)
        used = tuple([before or gradient is not None for before, gradient in zip(used, gradients, strict=True)])
        with torch.no_grad():
            if sums:
                for held, gradient in zip(sums, gradients, strict=True):
                    if gradient is not None:
                        held.add_(gradient)
                gradients = [held if was_used else None for held, was_used in zip(sums, used, strict=True)]
            if settings is not None:
                update.apply(gradients, settings)
                for held in sums:
                    held.zero_()
        return loss.detach(), used

    # Dynamo counts compiles by code object, and remembers by name which sizes vary: a step shares neither with another.
    code = step.__code__.replace(co_name=f"step_{id(update):x}")
    return FunctionType(code, step.__globals__, code.co_name, None, step.__closure__)


def _loss(parts: _Parts, inputs: Any, targets: tuple[Any, ...]) -> Any:
    import torch

    if parts.autocast is None:  # PyTorch keeps no graph in its caches that enters autocast, on or off
        return _full_loss(parts, inputs, targets)
    with torch.autocast(next(parts.model.parameters()).device.type, dtype=parts.autocast):
        return _full_loss(parts, inputs, targets)


def _full_loss(parts: _Parts, inputs: Any, targets: tuple[Any, ...]) -> Any:
    if isinstance(inputs, dict):
        output = parts.model(**inputs)
    else:
        output = parts.model(*inputs) if isinstance(inputs, tuple) else parts.model(inputs)
    return parts.loss_fn(output, *targets)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _warn(why: str) -> None:
    warnings.warn(f"downset runs this training step as plain PyTorch, not as one graph: {why}", stacklevel=4)
