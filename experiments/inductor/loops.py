"""Loops that other packages own, with a compiled step against their own: losses and weights are equal.

    pip install "torch==2.13.0" transformers lightning accelerate lion-pytorch   # in an environment of its own
    python -m experiments.inductor.loops [trainer|lightning|accelerate|optimizers] [--generate]

Prints one line of JSON for each. Without `--generate` no code is generated: graphs are captured, and run as PyTorch.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import downset as ds

COMPILE = torch.compile


def captured_only(function: Any, *, fullgraph: bool = False, **_: Any) -> Any:
    return COMPILE(function, fullgraph=fullgraph, backend="aot_eager")


def tiny() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, attn_pdrop=0.0, resid_pdrop=0.0,
            embd_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
        )
    )  # fmt: skip


def difference(one: Any, other: Any) -> float:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.float() - b.float()).abs().max()) for a, b in pairs if a.numel())


def trainer() -> dict[str, Any]:
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(1)
    rows = [{"input_ids": (ids := torch.randint(0, 64, (16,))), "labels": ids} for _ in range(24)]
    ends = []
    for kind in (Trainer, ds.inductor.transformers_trainer(Trainer)):
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder, max_steps=6, per_device_train_batch_size=4, logging_steps=1, report_to=[], use_cpu=True,
                save_strategy="no", max_grad_norm=0.5, learning_rate=1e-3, disable_tqdm=True,
            )  # fmt: skip
            run = kind(model=tiny(), args=arguments, train_dataset=rows)
            run.train()
        ends.append(
            (run, [(e["loss"], e["grad_norm"], e["learning_rate"]) for e in run.state.log_history if "loss" in e])
        )
    (plain, theirs), (mine, ours) = ends
    step = mine.compiled_step
    return {
        "rung": step.rung, "why": step.fallback, "weights differ by": difference(mine.model, plain.model),
        "logged": theirs[-1], "logged by ours": ours[-1],
        "logs differ by": float((torch.tensor(theirs) - torch.tensor(ours)).abs().max()),
    }  # fmt: skip


def lightning() -> dict[str, Any]:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002 - Lightning's
            x, y = batch
            return nn.functional.mse_loss(self.net(x), y)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    torch.manual_seed(1)
    rows = [(torch.randn(8), torch.randn(1)) for _ in range(32)]
    ends = []
    for kind in (Module, ds.inductor.lightning_module(Module)):
        module = kind()
        run = pl.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        run.fit(module, torch.utils.data.DataLoader(rows, batch_size=4))
        ends.append((module, run.global_step, run.optimizers[0].param_groups[0]["lr"]))
    step = ends[1][0].compiled_step
    return {
        "rung": step.rung, "why": step.fallback, "weights differ by": difference(ends[0][0].net, ends[1][0].net),
        "steps and rate": [ends[0][1:], ends[1][1:]],
    }  # fmt: skip


def accelerate() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    other = copy.deepcopy(model)
    plain = torch.optim.AdamW(other.parameters(), lr=1e-2)
    rows = [(torch.randn(8), torch.randn(1)) for _ in range(32)]
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), loader)
    step = ds.inductor.compile_step(model, nn.functional.mse_loss, optimizer, clip_grad_norm=0.5)
    for x, y in loader:
        step(x, y)
        nn.functional.mse_loss(other(x), y).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        plain.step()
        plain.zero_grad()
    return {"rung": step.rung, "why": step.fallback, "weights differ by": difference(model, other)}


def optimizers() -> dict[str, Any]:
    """Optimisers of other packages, and PyTorch's Muon for matrices, over six steps."""
    from lion_pytorch import Lion

    results: dict[str, Any] = {}
    kinds: dict[str, Callable[..., Any]] = {
        "lion_pytorch.Lion": partial(Lion, lr=1e-3, weight_decay=0.1),
        "Lion, decoupled": partial(Lion, lr=1e-3, weight_decay=0.1, decoupled_weight_decay=True),
        "torch.optim.Muon": partial(torch.optim.Muon, lr=1e-2),
    }
    for name, make in kinds.items():
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
        other = copy.deepcopy(model)
        mine, plain = make([*model.parameters()]), make([*other.parameters()])
        step = ds.inductor.compile_step(model, nn.functional.mse_loss, mine)
        for number in range(6):
            mine.param_groups[0]["lr"] = plain.param_groups[0]["lr"] = 1e-2 / (number + 1)
            x, y = torch.randn(6, 8), torch.randn(6, 4)
            step(x, y)
            nn.functional.mse_loss(other(x), y).backward()
            plain.step()
            plain.zero_grad()
        results[name] = {"rung": step.rung, "why": step.fallback, "weights differ by": difference(model, other)}
    return results


LOOPS: dict[str, Callable[[], dict[str, Any]]] = {
    "trainer": trainer, "lightning": lightning, "accelerate": accelerate, "optimizers": optimizers,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loops", nargs="*", choices=[*LOOPS, []])
    parser.add_argument("--generate", action="store_true")
    options = parser.parse_args()
    if not options.generate:
        torch.compile = captured_only
    warnings.simplefilter("ignore")
    for name in options.loops or LOOPS:
        torch._dynamo.reset()
        print(json.dumps({"loop": name, **LOOPS[name]()}, default=str), flush=True)


if __name__ == "__main__":
    main()
