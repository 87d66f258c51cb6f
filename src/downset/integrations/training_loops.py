"""Compiled steps where another package owns the loop: transformers' Trainer and Lightning's.

Both loops call a training step, then clip, then update. A compiled step has clipped and updated already: what follows
finds no gradients and changes nothing, but counts steps and moves schedules on. With `accelerate`, `compile_step` takes
the prepared model and optimiser as they are.
"""

from __future__ import annotations

from typing import Any

from downset.integrations.user_warning import warn_user
from downset.integrations.whole_step import compile_step

__all__ = ["lightning_module", "transformers_trainer"]


def transformers_trainer(trainer_class: Any, **options: Any) -> Any:
    """A subclass of `transformers.Trainer`, or of a subclass of it, whose training step is compiled.

    `options`: those of `compile_step`, without `accumulate`, `autocast` and `clip_grad_norm`, which follow from the
    arguments of training. With accumulation, float16, DeepSpeed or several GPUs in one process the step is the
    Trainer's own, and one warning says so.
    """

    class CompiledTrainer(trainer_class):  # type: ignore[misc, valid-type, unused-ignore]
        compiled_step: Any = None
        """The step, once the first batch was seen; None also where the Trainer's own runs."""
        _loops_own: str | None = None

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            if self._loops_own is None:
                self._loops_own = _not_compiled(self)
                if self._loops_own:
                    warn_user(f"downset leaves the training step to the Trainer: {self._loops_own}")
                else:
                    self.compiled_step = _step_of_trainer(self, model, options)
            if self.compiled_step is None:
                return super().training_step(model, inputs, num_items_in_batch)
            model.train()
            return self.compiled_step((self._prepare_inputs(inputs), num_items_in_batch))

        def _clip_grad_norm(self, model: Any) -> Any:
            return super()._clip_grad_norm(model) if self.compiled_step is None else self.compiled_step.grad_norm

        def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
            if self.compiled_step is None:
                return super()._get_grad_norm(model, grad_norm=grad_norm)
            norm = self.compiled_step.grad_norm
            return None if norm is None else float(norm)

    return CompiledTrainer


def _not_compiled(trainer: Any) -> str:
    """Why the step of this Trainer is its own, or ""."""
    arguments = trainer.args
    if arguments.gradient_accumulation_steps > 1:
        return "the last batch of an epoch accumulates fewer parts"
    if arguments.fp16:
        return "its scaler belongs to accelerate"
    if arguments.n_gpu > 1 or getattr(trainer, "is_deepspeed_enabled", False):
        return "DeepSpeed, and several GPUs in one process, have steps of their own"
    return ""


def _step_of_trainer(trainer: Any, model: Any, options: dict[str, Any]) -> Any:
    import torch

    arguments = trainer.args
    return compile_step(
        _loss_module(model, lambda inputs, count: trainer.compute_loss(model, inputs, num_items_in_batch=count)),
        _itself,
        trainer.optimizer,
        autocast=torch.bfloat16 if arguments.bf16 else None,
        clip_grad_norm=arguments.max_grad_norm or None,
        **options,
    )


def lightning_module(module_class: Any, **options: Any) -> Any:
    """A subclass of a `LightningModule` whose training step, with the update of its one optimiser, is compiled.

    Its `training_step` returns the loss, as ever; what it logs is not part of a graph, so such a step is forward and
    backward graphs. `options`: those of `compile_step`. The Trainer takes no `gradient_clip_val` (give
    `clip_grad_norm`) and no `accumulate_grad_batches` (give `accumulate`). Schedulers whose interval is a step move on
    behind each.
    """

    class CompiledModule(module_class):  # type: ignore[misc, valid-type, unused-ignore]
        compiled_step: Any = None

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            optimizer = self.optimizers()
            if self.compiled_step is None:
                own = super().training_step
                module = _loss_module(self, lambda batch, number: _loss_in(own(batch, number)))
                # not a submodule: it holds this one
                object.__setattr__(self, "compiled_step", compile_step(module, _itself, optimizer, **options))
            loss = self.compiled_step((batch, batch_idx))
            optimizer.step()  # finds no gradients; Lightning counts it
            schedulers = self.trainer.strategy.lr_scheduler_configs
            for config in (config for config in schedulers if config.interval == "step"):
                config.scheduler.step()
            return loss

    return CompiledModule


def _loss_in(returned: Any) -> Any:
    return returned["loss"] if isinstance(returned, dict) else returned


def _itself(loss: Any) -> Any:
    return loss


def _loss_module(model: Any, loss: Any) -> Any:
    """A module with the parameters of a model whose output is the loss."""
    import torch

    class LossModule(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *batch: Any) -> Any:
            return loss(*batch)

    return LossModule()
