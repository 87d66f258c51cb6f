"""Compiles a whole training step as one graph: forward, loss, gradients and the optimiser's update.

In one graph a gradient is freed as soon as its parameter is updated, and the whole step has one planned order.
`loss.backward(); optimizer.step()` compiles to two or three graphs, and every gradient lives between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from downset.errors import UnsupportedError, UsageError
from downset.extras import torch_library
from downset.integrations.factor_pass import factor_options
from downset.integrations.fused_peak import PlanAgain
from downset.integrations.joined_kernels import joined_kernels
from downset.integrations.lost_calls import watch_clipping
from downset.integrations.lower_rungs import EAGER, LowerRungs, Options, Rung, first_line
from downset.integrations.measured_limit import MeasuredLimit
from downset.integrations.optimizer_update import Settings, Update, gradient_sums, trained, update_of
from downset.integrations.order_pass import Report, check_report, order_options
from downset.integrations.planned_sizes import PlannedSizes
from downset.integrations.recompute_pass import recompute_options
from downset.integrations.step_parts import (
    StepParts,
    StepReports,
    detached,
    norm_of,
    parallel_kind,
    scale_of,
    update_scale,
)
from downset.integrations.torch_features import marks_backward, scheduler_passes
from downset.integrations.user_warning import warn_user
from downset.integrations.whole_function import tracing, whole_function
from downset.text import brief, format_bytes

__all__ = ["TrainingStep", "compile_step"]

_MOST_SETTINGS = 8
"""The most compiles of one step. A changed learning rate needs none, because it is an input of the graph; an `eps` that
changes at every step does."""

_Key = tuple[bool, Settings, int]
"""The case that a step is compiled for: whether it updates, the optimiser's settings, and the number of the plan."""

_ADDS = (
    "downset runs one batch as plain PyTorch: it adds to the gradients already in `grad`; call optimizer.zero_grad() "
    "first to leave them out"
)
_FROM_CACHE = (
    "PyTorch took this step from its cache of compiled graphs: it is in our order, and there is no report of it; "
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 compiles it again"
)
_WHOLE, _DIVIDED, _COMPILED = "one graph", "forward and backward graphs in our order", "torch.compile"
"""The rungs of a step, from the highest; below is plain PyTorch."""


class TrainingStep:
    """A training step: `loss = step(inputs, targets)`, as `compile_step` returns it.

    `fallback`: why it runs without being compiled as a whole, or "". `grad_norm`: with `clip_grad_norm` or
    `skip_nonfinite`, the norm of all gradients of the latest update, before they were clipped; a tensor, or None before
    the first.
    """

    def __init__(self, parts: StepParts, accumulate: int, options: Options, rungs: list[Rung]) -> None:
        self.fallback = ""
        self.grad_norm: Any = None
        self._parts, self._accumulate, self._options = parts, accumulate, options
        self._planned = PlannedSizes(parts.peak_bytes)
        self._update: Update | None = None
        on_processor = _on_processor(parts.optimizer)
        early = accumulate == 1 and (on_processor or parts.peak_bytes is not None)
        self._measured: MeasuredLimit | None = None
        if parts.peak_bytes is not None and on_processor and accumulate == 1:
            self._measured = MeasuredLimit(parts.peak_bytes)
        self._eager = LowerRungs(parts, [Rung(EAGER, None)], early=False, changed=self._fall_back)
        self._lower = LowerRungs(parts, rungs, early=early, changed=self._fall_back)
        self._done = 0
        self._added = False  # whether this batch is plain: it adds to gradients that it found, or states are missing
        self._plain_batches = 0
        self._used: tuple[bool, ...] = ()  # by parameter: whether the loss of a part so far depends on it
        self._compiled: dict[_Key, Callable[..., Any]] = {}
        self._passes: dict[_Key, dict[str, Any]] = {}  # the options of each, also while it is compiled again
        self._tracing: AbstractContextManager[None] = nullcontext()

    @property
    def rung(self) -> str:
        """How the next batch runs: "one graph", or what `fallback` keeps it from."""
        return self._lower.rung.name if self._update is None or self.fallback else _WHOLE

    def __call__(self, inputs: Any, *targets: Any) -> Any:
        """One step on one batch, or on one of its `accumulate` parts; returns the loss, detached.

        `inputs`: a tensor, a tuple of positional or a mapping of keyword arguments of the model. The loss is
        `loss_fn(output, *targets)`; if that is a pair of the loss and anything else, both are returned, detached.
        Parameters, buffers and the optimiser's state change in place.
        """
        if isinstance(inputs, Mapping) and not isinstance(inputs, dict):  # as tokenizers of transformers return
            inputs = dict(inputs)
        last = self._done + 1 == self._accumulate
        update = self._current(inputs, targets)
        if update is not None:
            loss = self._whole(update, inputs, targets, last=last)
        elif self._measured is not None and self.rung == _DIVIDED:
            loss = self._measured.watched(lambda: self._plain(inputs, targets, last=last), (inputs, targets))
        else:
            loss = self._plain(inputs, targets, last=last)
        self._done = 0 if last else self._done + 1
        return loss

    def __reduce__(self) -> Any:
        raise UsageError("a step is neither copied nor saved: copy its model and its optimiser and compile theirs")

    def state_dict(self) -> dict[str, Any]:
        """`{"model": …, "optimizer": …}`, with "scaler" if one was given: the same checkpoints as plain PyTorch's.
        Raises UsageError between the parts of an accumulated batch, because a checkpoint holds no gradients."""
        if self._done:
            raise UsageError(f"a checkpoint holds no gradients: take it after part {self._accumulate} of a batch")
        return {name: part.state_dict() for name, part in self._stateful().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned, or a checkpoint of plain PyTorch."""
        for name, part in self._stateful().items():
            part.load_state_dict(state[name])
        if self._done:
            self._parts.optimizer.zero_grad()
        self._done = 0

    def _stateful(self) -> dict[str, Any]:
        scaler = {} if self._parts.scaler is None else {"scaler": self._parts.scaler}
        return {"model": self._parts.model, "optimizer": self._parts.optimizer, **scaler}

    def _begin(self) -> None:
        """Take the highest rung that can be told before a batch is seen."""
        import torch

        try:
            if not scheduler_passes() or not hasattr(torch._dynamo.config, "trace_autograd_ops"):
                raise UnsupportedError("this torch cannot trace gradients into a graph, or order it")
            if not marks_backward():
                raise UnsupportedError("this torch does not mark the backward pass of a step in one graph")
            kind = parallel_kind(self._parts.model)
            if kind:
                raise UnsupportedError(f"{kind} sums gradients over ranks in hooks of backward")
            self._update = update_of(self._parts.optimizer)
        except UnsupportedError as error:
            self._fall_back(str(error))

    def _current(self, inputs: Any, targets: tuple[Any, ...]) -> Update | None:
        """The update of the parameters that the optimiser trains now; None if this call runs as plain PyTorch."""
        if self._update is None or self.fallback:
            return None
        try:
            groups = trained(self._parts.optimizer)
            _check_gradients(self._parts, groups, inputs, targets)
        except UnsupportedError as error:
            if self._done and not self._added:
                self._drop_zeros()
            self._fall_back(str(error))
            return None
        if not self._done:
            if not self._update.is_of(groups):
                self._update = update_of(self._parts.optimizer)
                self._compiled, self._passes = {}, {}
                self._planned = PlannedSizes(self._parts.peak_bytes)
            self._added = any(parameter.grad is not None for parameter in self._update.parameters)
            if self._added and not self._plain_batches:
                warn_user(_ADDS)
            self._plain_batches += self._added
            self._added = self._added or not self._update.ready()
        return None if self._added else self._update

    def _fall_back(self, reason: str) -> None:
        """Run on the rung that holds the step from now on."""
        self.fallback = reason
        rung, limit = self._lower.rung.name, self._parts.peak_bytes
        kept = ""
        if limit is not None and rung == _DIVIDED:
            kept = f"; {format_bytes(limit)} B is the limit of each of these graphs"
        elif limit is not None:
            kept = f"; nothing keeps it within {format_bytes(limit)} B"
        warn_user(f"downset runs this training step as {rung}, not as one graph: {reason}{kept}")

    def _whole(self, update: Update, inputs: Any, targets: tuple[Any, ...], *, last: bool) -> Any:
        from torch._dynamo.exc import TorchDynamoException

        if not self._done:
            self._used = (False,) * len(update.parameters)
        try:
            settings = update.prepare()
        except UnsupportedError as error:
            self._drop_zeros()
            self._fall_back(str(error))
            return self._plain(inputs, targets, last=last)
        sums = gradient_sums(update) if self._accumulate > 1 else []
        scale = None if self._parts.scaler is None else scale_of(self._parts)
        key = (last, settings, self._planned.plan_of((inputs, targets)))
        new = key not in self._compiled
        hits = _cache_hits()
        try:
            if new and len({of[:2] for of in self._compiled}) >= _MOST_SETTINGS:
                raise UnsupportedError("settings of the optimiser other than its learning rate change again and again")
            results = self._call(update, key, (inputs, targets, sums, self._used, scale))
        except (TorchDynamoException, UnsupportedError) as error:  # nothing has run yet
            self._drop_zeros()
            loss = self._plain(inputs, targets, last=last)  # if the user's own code fails, the next call compiles
            self._fall_back(first_line(error))
            return loss
        loss, self._used, overflow, norm = results
        reports = self._parts.reports
        if new and reports is not None and not reports.count and _cache_hits() > hits:
            warn_user(_FROM_CACHE)
        if last:
            for parameter in update.parameters if sums else ():
                parameter.grad = None
            update.applied(self._used)
            self._parts.optimizer._opt_called = True  # schedulers check it
            self.grad_norm = norm
            if self._parts.scaler is not None:
                update_scale(self._parts, overflow)
        return loss

    def _call(self, update: Update, key: _Key, arguments: tuple[Any, ...]) -> Any:
        """Call the compiled function of this key; compile it if it is missing, and again as long as another plan may
        hold less."""
        import torch

        while True:
            if key not in self._compiled:
                function = whole_function(self._parts, update, key[1] if key[0] else None)
                if key not in self._passes:
                    self._passes[key] = self._options()
                self._compiled[key] = torch.compile(function, fullgraph=True, options=self._passes[key])
                self._tracing = tracing(trace_autograd_ops=True)
            try:
                with self._tracing, joined_kernels():
                    return self._compiled[key](*arguments)
            except PlanAgain:
                del self._compiled[key]

    def _drop_zeros(self) -> None:
        """Remove the gradients of zeros that were made for parameters on which no loss of this batch depends so far."""
        if self._update is not None:
            for parameter, used in zip(self._update.parameters, self._used, strict=True):
                parameter.grad = parameter.grad if used else None

    def _plain(self, inputs: Any, targets: tuple[Any, ...], *, last: bool) -> Any:
        """One step by the lower rungs; a batch that is plain for itself alone by the last of them."""
        scaler, optimizer = self._parts.scaler, self._parts.optimizer
        lower = self._lower if self.fallback or self._plain_batches > 1 else self._eager
        loss, aux = lower.backward(inputs, targets, alone=last)
        if last:
            finite = self._clip()
            with self._update.watching() if self._update is not None and not self.fallback else nullcontext():
                if scaler is not None:
                    scaler.step(optimizer)
                    scaler.update()
                elif finite:
                    lower.update()
            lower.updated()
            optimizer.zero_grad()
        return detached(loss, aux)

    def _clip(self) -> bool:
        """Clip the gradients as asked; returns whether the update is not to be skipped."""
        import torch

        parts = self._parts
        if not parts.takes_norm:
            return True
        if parts.scaler is not None:
            parts.scaler.unscale_(parts.optimizer)
        parameters = [parameter for group in parts.optimizer.param_groups for parameter in group["params"]]
        if parts.clip_grad_norm is not None:
            self.grad_norm = torch.nn.utils.clip_grad_norm_(parameters, parts.clip_grad_norm)
        else:
            self.grad_norm = norm_of([parameter.grad for parameter in parameters])
        return not parts.skip_nonfinite or self.grad_norm is None or bool(self.grad_norm.isfinite())


def compile_step(  # noqa: PLR0913 - users know its keywords
    model: Any,
    loss_fn: Callable[..., Any],
    optimizer: Any,
    *,
    autocast: Any = None,
    scaler: Any = None,
    accumulate: int = 1,
    clip_grad_norm: float | None = None,
    skip_nonfinite: bool = False,
    order: bool = True,
    work_limit: int = 20_000,
    report: Report | None = None,
    peak_bytes: int | None = None,
    choices: int | None = None,
    link_bytes_s: float | None = None,
) -> TrainingStep:
    """A training step compiled as one graph, in the order of least peak memory.

    `optimizer`: any over parameters of `model` whose `step` is a function of tensors; if it is not a `torch.optim.SGD`,
    `Adam` or `AdamW`, its first step is plain and makes its states. `autocast`: a dtype such as
    `torch.bfloat16` for the forward pass and the loss. `scaler`: a `torch.amp.GradScaler`, for float16. It scales the
    loss; a step with gradients that are not finite changes nothing; and its scale changes as in plain PyTorch.
    `accumulate`: the optimiser updates once in so many calls, with the sum of their gradients, as in PyTorch.
    `clip_grad_norm`: the largest norm of all gradients together, as `torch.nn.utils.clip_grad_norm_` takes it; clipping
    after a call has no effect, because the update is part of it. `skip_nonfinite`: an update changes nothing if that
    norm is not finite.
    `order=False` keeps Inductor's order, for comparison. `report`, `work_limit`, `peak_bytes`, `choices` and
    `link_bytes_s` as in `options`. The first call compiles. A step that cannot be one graph runs as the most that it
    can be: as forward and backward graphs in this order, else by `torch.compile`, else as plain PyTorch. One warning
    says which and why.

    Raises UsageError for an optimiser without parameter groups, a `report` that is not a function, an `autocast` that
    is not a dtype, for an `accumulate`, `peak_bytes`, `choices` or `link_bytes_s` that is not a number above 0, and for
    a link without `peak_bytes`.
    """
    torch = torch_library("compiling training steps")
    if accumulate < 1:
        raise UsageError(f"accumulate is {accumulate}; give the number of calls an update, at least 1")
    if not hasattr(optimizer, "param_groups"):
        raise UsageError(
            f"compile_step takes a model, a loss function and an optimiser, in this order; got "
            f"{brief(repr(optimizer))} as optimiser"
        )
    optimizer = _unwrapped(optimizer)
    check_report(report)
    if autocast is not None and not isinstance(autocast, torch.dtype):
        raise UsageError(f"autocast is {brief(repr(autocast))}; give a dtype such as torch.bfloat16")
    if clip_grad_norm is not None and not clip_grad_norm > 0:
        raise UsageError(f"clip_grad_norm is {clip_grad_norm}; give the largest norm of the gradients, above 0")
    scaled = scaler is not None and scaler.is_enabled()
    if scaled and skip_nonfinite:
        raise UsageError("a scaler skips what is not finite by itself: leave skip_nonfinite out")
    reports = StepReports(report) if report is not None and (order or peak_bytes is not None) else None
    scaler = scaler if scaled else None
    parts = StepParts(model, loss_fn, optimizer, autocast, scaler, clip_grad_norm, skip_nonfinite, peak_bytes, reports)
    ordered = order and scheduler_passes()

    def options(*, whole: bool = True) -> dict[str, Any]:
        again, check = recompute_options(
            peak_bytes, choices=choices, report=reports, whole=whole, link_bytes_s=link_bytes_s
        )
        on_processor = _on_processor(optimizer)  # elsewhere an allocation takes next to no time
        how = {"limited": peak_bytes is not None, "exact": not on_processor}
        passes = order_options(work_limit=work_limit, report=reports, check=check, **how) if ordered else {}
        # on a processor PyTorch copies tensors of convolutions to another layout where it takes a step for inference
        layouts = {"layout_optimization": False} if whole and on_processor else {}
        return {**again, **factor_options(), **layouts, **passes}

    options()  # checks the arguments
    rungs = [Rung(_COMPILED, dict), Rung(EAGER, None)]
    if ordered:
        rungs.insert(0, Rung(_DIVIDED, partial(options, whole=False)))
    watch_clipping(optimizer)
    step = TrainingStep(parts, accumulate, options, rungs)
    step._begin()
    return step


def _unwrapped(optimizer: Any) -> Any:
    """The optimiser itself, where `accelerate` or Lightning has prepared it."""
    while type(optimizer).__name__ in ("AcceleratedOptimizer", "LightningOptimizer") or (
        type(optimizer).__name__.startswith("Lightning") and hasattr(optimizer, "_optimizer")
    ):
        optimizer = getattr(optimizer, "_optimizer", None) or optimizer.optimizer
    return optimizer


def _on_processor(optimizer: Any) -> bool:
    return all(parameter.device.type == "cpu" for group in optimizer.param_groups for parameter in group["params"])


def _check_gradients(parts: StepParts, groups: Sequence[Sequence[Any]], inputs: Any, targets: Any) -> None:
    """Raise UnsupportedError if the plain loop would compute gradients that a whole step does not."""
    import torch
    from torch.utils import _pytree as pytree

    parameter_ids = {id(parameter) for group in groups for parameter in group}
    for module in (parts.model, parts.loss_fn):
        if not isinstance(module, torch.nn.Module):
            continue
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in parameter_ids:
                raise UnsupportedError(
                    f"the optimiser does not hold {name!r}, which requires a gradient: freeze it, requires_grad_(False)"
                )
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves((inputs, targets))):
        raise UnsupportedError("an input requires a gradient")


def _cache_hits() -> int:
    """How many graphs PyTorch has taken from its cache in this process."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["fxgraph_cache_hit"])
