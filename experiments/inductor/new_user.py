"""A training loop as a new user writes it, on two ranks, against the same loop in eager PyTorch.

    pip install "torch==2.13.0" transformers lion-pytorch   # in an environment of its own
    python -m experiments.inductor.new_user [--share 0.8] [--parallel] [--lengths 64 64 64] [--ranks 1]

A small GPT-2 of transformers, Lion, clipping, a metric, batches of several lengths, and a checkpoint from which new
objects go on; two processes meet through gloo and average their gradients, by DistributedDataParallel with
`--parallel`; without, each rank trains by itself. Prints for each rank: the largest difference of losses, the rung,
the limit, the largest peak of a step by the profiler, in eager PyTorch too, and a hash of the plans.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import downset as ds
from experiments.inductor.fresh_process import CACHES
from experiments.inductor.measure import peak_bytes

LENGTHS = (32, 48, 64, 48, 64, 32)
"""The numbers of the tokens of batches; they grow first, so that a plan for the first would not do for the others."""
BATCH = 4


def parts(parallel: bool) -> tuple[Any, Any]:
    from lion_pytorch import Lion
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=512, n_positions=64, attn_pdrop=0.0, resid_pdrop=0.0,
        embd_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config)
    model = nn.parallel.DistributedDataParallel(model) if parallel else model
    return model, Lion(model.parameters(), lr=1e-4, weight_decay=0.01)


def loss_and_accuracy(output: Any, labels: Any) -> tuple[Any, Any]:
    hits = (output.logits[:, :-1].argmax(-1) == labels[:, 1:]).float().mean()
    return output.loss, {"accuracy": hits}


def batches(rank: int, lengths: Sequence[int]) -> list[Any]:
    torch.manual_seed(10 + rank)
    return [torch.randint(0, 512, (BATCH, length)) for length in lengths]


class Eager:
    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    def __call__(self, inputs: Any, labels: Any) -> Any:
        loss, metrics = loss_and_accuracy(self.model(**inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), metrics

    def state_dict(self) -> Any:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def trained(make: Any, data: list[Any], file: str) -> tuple[list[tuple[float, float]], int, Any]:
    """(losses and accuracies, the largest peak of a step, the last step) of two runs, of which the second goes on from
    the checkpoint of the first."""
    seen, peak = [], 0
    step = make()
    for number, tokens in enumerate([*data, *data]):
        if number == len(data):
            torch.save(step.state_dict(), file)
            step = make()
            step.load_state_dict(torch.load(file))
        inputs = {"input_ids": tokens, "labels": tokens}
        loss, metrics = step(inputs, tokens)
        seen.append((float(loss), float(metrics["accuracy"])))
    for tokens in data[:3]:
        peak = max(peak, peak_bytes(lambda tokens=tokens: step({"input_ids": tokens, "labels": tokens}, tokens)[0]))
    return seen, peak, step


def run(options: argparse.Namespace) -> dict[str, Any]:
    rank, folder, share, parallel = options.rank, options.folder, options.share, options.parallel
    data, file = batches(rank, options.lengths), f"{folder}/state_{rank}"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=options.ranks)
    warnings.simplefilter("ignore")
    theirs, eager_peak, _ = trained(lambda: Eager(*parts(parallel)), data, file)
    limit = int(share * eager_peak) if share else None
    reports: list[Any] = []

    def ours() -> Any:
        model, optimizer = parts(parallel)
        return ds.inductor.compile_step(
            model, loss_and_accuracy, optimizer, clip_grad_norm=1.0, peak_bytes=limit, report=reports.append
        )

    mine, peak, step = trained(ours, data, file)
    plans = [(of.graph.split()[-1], of.order.steps) for of in reports if isinstance(of, ds.inductor.OrderReport)]
    result = {
        "rank": rank, "rung": step.rung, "why": step.fallback, "limit": limit, "peak_bytes": peak,
        "eager_peak_bytes": eager_peak,
        "losses differ by": max(abs(a[0] - b[0]) for a, b in zip(mine, theirs, strict=True)),
        "accuracies differ by": max(abs(a[1] - b[1]) for a, b in zip(mine, theirs, strict=True)),
        "graphs": len(plans), "plans": hashlib.sha256(repr(plans).encode()).hexdigest()[:16],
        "losses": [round(loss, 5) for loss, _ in mine],
    }  # fmt: skip
    dist.destroy_process_group()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.8, help="the limit, of eager PyTorch's peak; 0 for none")
    parser.add_argument("--parallel", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="of the tokens of batches")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        print(json.dumps(run(options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.inductor.new_user", *sys.argv[1:], "--folder", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(CACHES / "new_user")}  # compiled kernels alone: ranks plan
        environment |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in range(options.ranks)]
        sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
