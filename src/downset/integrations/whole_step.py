"""Compiles a whole training step as one graph: forward, loss, gradients and the optimiser's update.

In one graph a gradient is freed as soon as its parameter is updated, and the whole step has one planned order.
`loss.backward(); optimizer.step()` compiles to two or three graphs, and every gradient lives between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from downset.errors import UnsupportedError, UsageError
from downset.extras import torch_library
from downset.integrations.factor_pass import factor_options
from downset.integrations.optimizer_update import Settings, Update, trained, update_of
from downset.integrations.order_pass import Report, check_report, order_options, scheduler_passes
from downset.integrations.recompute_pass import PlanAgain, recompute_options
from downset.integrations.user_warning import warn_user
from downset.text import brief, format_bytes

__all__ = ["TrainingStep", "compile_step"]

_MOST_SETTINGS = 8
"""The most compiles of one step. A changed learning rate needs none, because it is an input of the graph; momentum that
changes at every step does."""

_ADDS = (
    "downset runs one batch as plain PyTorch: it adds to the gradients already in `grad`; call optimizer.zero_grad() "
    "first to leave them out"
)
_FROM_CACHE = (
    "PyTorch took this step from its cache of compiled graphs: it is in our order, and there is no report of it; "
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 compiles it again"
)
_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(slots=True)
class _Reports:
    """Hands reports on, and counts them."""

    receiver: Report
    count: int = 0

    def __call__(self, report: Any) -> None:
        self.count += 1
        self.receiver(report)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a step."""

    model: Any
    loss_fn: Callable[..., Any]
    optimizer: Any
    autocast: Any
    scaler: Any
    clip_grad_norm: float | None
    peak_bytes: int | None
    reports: _Reports | None


class TrainingStep:
    """A training step: `loss = step(inputs, targets)`, as `compile_step` returns it.

    `fallback`: why it runs without being compiled as a whole, or "". `grad_norm`: with `clip_grad_norm`, the norm of
    all gradients of the latest update, before they were clipped; a tensor, or None before the first.
    """

    def __init__(self, parts: _Parts, update: Update | None, accumulate: int, options: dict[str, Any]) -> None:
        self.fallback = ""
        self.grad_norm: Any = None
        self._parts, self._update, self._accumulate, self._options = parts, update, accumulate, options
        self._done = 0
        self._added = False  # whether this batch is plain: it adds to gradients that it found, or states are missing
        self._told_added = False
        self._used: tuple[bool, ...] = ()  # by parameter: whether the loss of a part so far depends on it
        self._compiled: dict[tuple[bool, Settings], Callable[..., Any]] = {}

    def __call__(self, inputs: Any, *targets: Any) -> Any:
        """One step on one batch, or on one of its `accumulate` parts; returns the loss, detached.

        `inputs`: a tensor, a tuple of positional or a dict of keyword arguments of the model. The loss is
        `loss_fn(output, *targets)`; if that is a pair of the loss and anything else, both are returned, detached.
        Parameters, buffers and the optimiser's state change in place.
        """
        last = self._done + 1 == self._accumulate
        update = self._current(inputs, targets)
        if update is None:
            loss = self._plain(inputs, targets, last=last)
        else:
            loss = self._whole(update, inputs, targets, last=last)
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
                self._update, self._compiled = update_of(self._parts.optimizer), {}
            self._added = any(parameter.grad is not None for parameter in self._update.parameters)
            if self._added and not self._told_added:
                self._told_added = True
                warn_user(_ADDS)
            self._added = self._added or not self._update.ready()
        return None if self._added else self._update

    def _fall_back(self, reason: str) -> None:
        """Run as plain PyTorch from now on."""
        self.fallback = reason
        warn_user(_plain_warning(reason, self._parts.peak_bytes))

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
        sums = _sums(update) if self._accumulate > 1 else []
        scale = None if self._parts.scaler is None else _scale_of(self._parts)
        new = (last, settings) not in self._compiled
        hits = _cache_hits()
        try:
            if new and len(self._compiled) >= _MOST_SETTINGS:
                raise UnsupportedError("settings of the optimiser other than its learning rate change again and again")
            results = self._call(update, (last, settings), (inputs, targets, sums, self._used, scale))
        except (TorchDynamoException, UnsupportedError) as error:  # nothing has run yet
            self._drop_zeros()
            loss = self._plain(inputs, targets, last=last)  # if the user's own code fails, the next call compiles
            self._fall_back(_first_line(error))
            return loss
        loss, self._used, overflow, norm = results
        reports = self._parts.reports
        if new and reports is not None and not reports.count and _cache_hits() > hits:
            warn_user(_FROM_CACHE)
        if last:
            for parameter in update.parameters if sums else ():
                parameter.grad = None
            self._parts.optimizer._opt_called = True  # schedulers check it
            self.grad_norm = norm
            if overflow is not None:
                _update_scale(self._parts, overflow)
        return loss

    def _call(self, update: Update, key: tuple[bool, Settings], arguments: tuple[Any, ...]) -> Any:
        """Call the compiled function of this key; compile it if it is missing, and again as long as a smaller plan may
        keep to the limit."""
        import torch

        while True:
            if key not in self._compiled:
                last, settings = key
                function = _whole_function(self._parts, update, settings if last else None)
                self._compiled[key] = torch.compile(function, fullgraph=True, options=self._options)
            try:
                with torch._dynamo.config.patch(trace_autograd_ops=True):
                    return self._compiled[key](*arguments)
            except PlanAgain:
                del self._compiled[key]

    def _drop_zeros(self) -> None:
        """Remove the gradients of zeros that were made for parameters on which no loss of this batch depends so far."""
        if self._update is not None:
            for parameter, used in zip(self._update.parameters, self._used, strict=True):
                parameter.grad = parameter.grad if used else None

    def _plain(self, inputs: Any, targets: tuple[Any, ...], *, last: bool) -> Any:
        loss, aux = _with_aux(_loss(self._parts, inputs, targets))
        if not hasattr(loss, "backward"):
            raise UsageError(f"loss_fn returned a {type(loss).__name__}; it returns the loss, one tensor")
        scaler, optimizer = self._parts.scaler, self._parts.optimizer
        (loss if scaler is None else scaler.scale(loss)).backward()
        if last:
            self._clip()
            with self._update.watching() if self._update is not None else nullcontext():
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
            optimizer.zero_grad()
        return _detached(loss, aux)

    def _clip(self) -> None:
        import torch

        scaler, optimizer = self._parts.scaler, self._parts.optimizer
        if self._parts.clip_grad_norm is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            self.grad_norm = torch.nn.utils.clip_grad_norm_(parameters, self._parts.clip_grad_norm)


def compile_step(  # noqa: PLR0913 - users know its keywords
    model: Any,
    loss_fn: Callable[..., Any],
    optimizer: Any,
    *,
    autocast: Any = None,
    scaler: Any = None,
    accumulate: int = 1,
    clip_grad_norm: float | None = None,
    order: bool = True,
    work_limit: int = 20_000,
    report: Report | None = None,
    peak_bytes: int | None = None,
    choices: int | None = None,
) -> TrainingStep:
    """A training step compiled as one graph, in the order of least peak memory.

    `optimizer`: any over parameters of `model` whose `step` is a function of tensors; if it is not a `torch.optim.SGD`,
    `Adam` or `AdamW`, its first step is plain and makes its states. `autocast`: a dtype such as
    `torch.bfloat16` for the forward pass and the loss. `scaler`: a `torch.amp.GradScaler`, for float16. It scales the
    loss; a step with gradients that are not finite changes nothing; and its scale changes as in plain PyTorch.
    `accumulate`: the optimiser updates once in so many calls, with the sum of their gradients, as in PyTorch.
    `clip_grad_norm`: the largest norm of all gradients together, as `torch.nn.utils.clip_grad_norm_` takes it; clipping
    after a call has no effect, because the update is part of it.
    `order=False` keeps Inductor's order, for comparison. `report`, `work_limit`, `peak_bytes` and `choices` as in
    `options`. The first call compiles. A step that cannot be one graph runs as plain PyTorch, with one warning that
    says why.

    Raises UsageError for an optimiser without parameter groups, a `report` that is not a function, an `autocast` that
    is not a dtype, and for an `accumulate`, `peak_bytes` or `choices` that is not a number above 0.
    """
    torch = torch_library("compiling training steps")
    if accumulate < 1:
        raise UsageError(f"accumulate is {accumulate}; give the number of calls an update, at least 1")
    if not hasattr(optimizer, "param_groups"):
        raise UsageError(
            f"compile_step takes a model, a loss function and an optimiser, in this order; got "
            f"{brief(repr(optimizer))} as optimiser"
        )
    check_report(report)
    if autocast is not None and not isinstance(autocast, torch.dtype):
        raise UsageError(f"autocast is {brief(repr(autocast))}; give a dtype such as torch.bfloat16")
    if clip_grad_norm is not None and not clip_grad_norm > 0:
        raise UsageError(f"clip_grad_norm is {clip_grad_norm}; give the largest norm of the gradients, above 0")
    scaled = scaler is not None and scaler.is_enabled()
    reports = _Reports(report) if report is not None and (order or peak_bytes is not None) else None
    scaler = scaler if scaled else None
    parts = _Parts(model, loss_fn, optimizer, autocast, scaler, clip_grad_norm, peak_bytes, reports)
    try:
        if not scheduler_passes() or not hasattr(torch._dynamo.config, "trace_autograd_ops"):
            raise UnsupportedError("this torch cannot trace gradients into a graph, or order it")
        options, check = recompute_options(peak_bytes, choices=choices, report=reports, whole=True)
        options |= factor_options() | _layout_options(optimizer)
        if order:
            options |= order_options(work_limit=work_limit, report=reports, check=check)
        _check_parallel(model)
        update = update_of(optimizer)
    except UnsupportedError as error:
        warn_user(_plain_warning(str(error), peak_bytes))
        step = TrainingStep(parts, None, accumulate, {})
        step.fallback = str(error)
        return step
    return TrainingStep(parts, update, accumulate, options)


def _layout_options(optimizer: Any) -> dict[str, Any]:
    """Options that keep the layouts of plain training. PyTorch's compiler takes a whole step for inference, because
    nothing in it requires a gradient. On a processor it then copies tensors of convolutions to another layout."""
    devices = {parameter.device.type for group in optimizer.param_groups for parameter in group["params"]}
    return {"layout_optimization": False} if devices <= {"cpu"} else {}


def _plain_warning(reason: str, peak_bytes: int | None) -> str:
    limit = "" if peak_bytes is None else f"; nothing keeps it within {format_bytes(peak_bytes)} B"
    return f"downset runs this training step as plain PyTorch, not as one graph: {reason}{limit}"


def _check_parallel(model: Any) -> None:
    """Raise UnsupportedError for modules whose ranks meet in hooks of `backward`, which the gradients of a whole step
    do not call."""
    for module in model.modules() if hasattr(model, "modules") else ():
        for kind in type(module).__mro__:
            if kind.__name__ in _PARALLEL:
                raise UnsupportedError(f"{kind.__name__} sums gradients over ranks in hooks of backward")


def _check_gradients(parts: _Parts, groups: Sequence[Sequence[Any]], inputs: Any, targets: Any) -> None:
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


def _sums(update: Update) -> list[Any]:
    """The gradients of the parts so far: each parameter's `grad`, made of zeros if it has none yet."""
    import torch

    for parameter in update.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in update.parameters]


def _whole_function(parts: _Parts, update: Update, settings: Settings | None) -> Callable[..., Any]:
    """The function to compile: a step on one batch, or on one part of it, with the gradients of earlier parts in
    `sums`. Without `settings` it does not update."""
    import torch

    def step(inputs: Any, targets: tuple[Any, ...], sums: list[Any], used: tuple[bool, ...], scale: Any) -> Any:
        (loss, aux), overflow, norm = _with_aux(_loss(parts, inputs, targets)), None, None
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
                if scale is None:
                    gradients, norm = _clipped(gradients, parts.clip_grad_norm)
                    update.apply(gradients, settings)
                else:
                    overflow, norm = _apply_scaled(update, gradients, (settings, parts.clip_grad_norm), scale)
        return _detached(loss, aux), used, overflow, norm

    # Dynamo counts compiles by code object, and remembers by name which sizes vary. Each step needs its own.
    code = step.__code__.replace(co_name=f"step_{id(update):x}")
    return FunctionType(code, step.__globals__, code.co_name, None, step.__closure__)


def _with_aux(returned: Any) -> tuple[Any, Any]:
    """The loss, and what the loss function returned with it: None if that is the loss alone."""
    return returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)


def _detached(loss: Any, aux: Any) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    if aux is None:
        return loss.detach()
    return loss.detach(), pytree.tree_map(lambda of: of.detach() if isinstance(of, torch.Tensor) else of, aux)


def _clipped(gradients: Sequence[Any], most: float | None) -> tuple[Sequence[Any], Any]:
    """(the gradients with a norm of at most `most` together, their norm before), as `clip_grad_norm_` computes both."""
    import torch

    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients if gradient is not None]
    if most is None or not norms:
        return gradients, None
    norm = torch.linalg.vector_norm(torch.stack(norms))
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    return [None if gradient is None else gradient * factor for gradient in gradients], norm


def _apply_scaled(
    update: Update, gradients: Sequence[Any], options: tuple[Settings, float | None], scale: Any
) -> tuple[Any, Any]:
    """Update by scaled gradients. If one of them is not finite, nothing changes. Returns whether one was not, as 1.0 or
    0.0, and the norm of the gradients where these are clipped. `options`: the settings, and the largest norm."""
    import torch

    settings, most = options
    not_finite = [gradient.isfinite().all().logical_not() for gradient in gradients if gradient is not None]
    overflow = torch.stack(not_finite).any() if not_finite else torch.zeros((), dtype=torch.bool)
    inverse = scale.double().reciprocal().float()
    state = update.state()
    before = [tensor.clone() for tensor in state]
    unscaled, norm = _clipped([None if gradient is None else gradient * inverse for gradient in gradients], most)
    update.apply(unscaled, settings)
    for tensor, was in zip(state, before, strict=True):
        tensor.copy_(torch.where(overflow, was, tensor))
    return overflow.float(), norm


def _scale_of(parts: _Parts) -> Any:
    """The scaler's factor; the scaler makes it when it first scales."""
    import torch

    if parts.scaler._scale is None:
        parts.scaler.scale(torch.zeros((), device=next(parts.model.parameters()).device))
    return parts.scaler._scale


def _update_scale(parts: _Parts, overflow: Any) -> None:
    """Let the scaler update its factor, with the given result of its check for overflow."""
    parts.scaler._per_optimizer_states[id(parts.optimizer)]["found_inf_per_device"] = {overflow.device: overflow}
    parts.scaler.update()


def _loss(parts: _Parts, inputs: Any, targets: tuple[Any, ...]) -> Any:
    import torch

    if parts.autocast is None:  # PyTorch does not cache graphs that enter autocast, on or off
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
    """The first line with content: an error of the compiler begins with the compiler's name."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line and not line.endswith(" raised:")), type(error).__name__)
