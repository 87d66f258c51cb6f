"""The rungs of a training step without a limit: peak bytes and CPU milliseconds of each against the rung below it.

    python -m experiments.inductor --ladder [--quick] [--networks lstm,logging] [--rungs eager,torch.compile]

Every rung of a network runs in a process of its own: what `compile_step` takes by itself (`taken` names it), and the
rungs below. `torch.compile` is PyTorch's compiler with an eager optimiser. A rung that a network cannot reach has no
row. Peaks are the profiler's allocations; losses are equal. In one more process all rungs take turns, step by step:
milliseconds are medians of the CPU time of a step there, and `of_below` is the median, over the turns, of a step's time
as a share of that of the rung below. Compiled code is shared under build/inductor/ladder.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import truediv
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import downset as ds
from experiments.frame import Experiment, fields, names_of
from experiments.inductor.fresh_process import check_losses, row_of_process
from experiments.inductor.measure import peak_bytes
from experiments.inductor.networks import GPT, NETWORKS, Bottleneck, Case, RandWire, UNet, ViT, dlrm, images, language
from experiments.rows import Row

__all__ = ["LADDER", "worse_than_below"]

RUNGS = ("one graph", "forward and backward", "torch.compile", "eager")
MEMORY, TIME = 1.02, 1.05
"""The most that a rung may take, as a share of the rung below."""


class Logging(GPT):
    """Says something while it runs, as models of transformers do."""

    def forward(self, tokens: Tensor) -> Tensor:
        logging.getLogger(__name__).debug("a batch")
        return super().forward(tokens)


class Checkpointed(GPT):
    """Keeps the inputs of its blocks only, with dropout in each."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place
        for block in self.blocks:
            x = checkpoint(partial(self._dropping, block), x, use_reentrant=False)
        return self.head(self.norm(x)).flatten(0, 1)

    @staticmethod
    def _dropping(block: nn.Module, x: Tensor) -> Tensor:
        return functional.dropout(block(x), 0.1)


class Recurrent(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens))[0]).flatten(0, 1)


def hooked() -> Case:
    """A network whose gradients are clamped in hooks."""
    case = NETWORKS["guide"]()
    for parameter in case.model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return case


CASES: dict[str, Callable[[], Case]] = {
    "guide": NETWORKS["guide"],
    "gpt_2x128": lambda: language(GPT(1024, 128, 2, 64), 1024, 4, 64),
    "gpt_wide_2x256": lambda: language(GPT(1024, 256, 2, 64), 1024, 1, 64),
    "moe_1x96": lambda: language(GPT(512, 96, 1, 64, experts=4), 512, 4, 64),
    "dlrm_6": lambda: dlrm(6),
    "vit_2x96": lambda: images(ViT(64, 8, 96, 2, 100), 8, 64, 100),
    "unet_2": lambda: images(UNet(16, 2), 2, 32, 2, dense=True),
    "randwire_6": lambda: images(RandWire(6, 24, 1), 2, 64, 10),
    "bottlenecks": lambda: images(
        nn.Sequential(
            nn.Conv2d(3, 64, 3, 2),
            Bottleneck(64, 32, 2),
            Bottleneck(128, 32, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 100),
        ),
        8,
        64,
        100,
        learning_rate=1e-6,
    ),
    "logging": lambda: language(Logging(1024, 128, 2, 64), 1024, 4, 64),
    "checkpointed": lambda: language(Checkpointed(1024, 128, 2, 64), 1024, 4, 64),
    "lstm": lambda: language(Recurrent(1024, 128), 1024, 4, 32),
    "lstm_wide": lambda: language(Recurrent(1024, 512), 1024, 4, 32),
    "hooked": hooked,
}


def step_of(case: Case, rung: str) -> Any:
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=case.learning_rate)
    inputs = case.inputs if isinstance(case.inputs, tuple) else (case.inputs,)
    if rung in RUNGS[:2]:
        step = ds.inductor.compile_step(case.model, case.loss_fn, optimizer)
        if rung == RUNGS[1] and not step.fallback:
            step._fall_back("this rung is measured")
        return step, lambda: step(inputs, case.targets)

    def forward(*given: Any) -> Tensor:
        return case.loss_fn(case.model(*given), case.targets)

    loss_of = torch.compile(forward) if rung == "torch.compile" else forward

    def plain() -> Tensor:
        loss = loss_of(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return None, plain


def measured(network: str, rung: str) -> Row:
    torch.set_num_threads(1)
    torch._inductor.config.fallback_random = True  # so that losses with dropout are equal
    torch.manual_seed(0)
    whole, step = step_of(CASES[network](), rung)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses = [float(step()) for _ in range(5)]
    return {
        "network": network,
        "rung": rung,
        "taken": whole.rung if whole is not None else rung,
        "why": whole.fallback if whole is not None and rung == RUNGS[0] else "",
        "peak_bytes": peak_bytes(step),
        "losses": [round(loss, 5) for loss in losses],
    }


def timed(network: str, rungs: Sequence[str], turns: int) -> Row:
    """By rung: (the median of a step's CPU seconds, the median of its share of the rung below in the same turn)."""
    torch.set_num_threads(1)
    torch._inductor.config.fallback_random = True
    steps = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rung in rungs:
            torch.manual_seed(0)
            steps.append(step_of(CASES[network](), rung)[1])
            for _ in range(5):
                steps[-1]()
    seconds: list[list[float]] = [[0.0] * turns for _ in steps]
    for turn in range(turns):
        for number in range(len(steps)) if turn % 2 else reversed(range(len(steps))):
            begin = time.process_time()
            steps[number]()
            seconds[number][turn] = time.process_time() - begin
    below = [None, *(median(map(truediv, upper, lower)) for lower, upper in pairwise(seconds))]
    return {rung: (median(of), share) for rung, of, share in zip(rungs, seconds, below, strict=True)}


def rows(options: Namespace) -> Iterator[Row]:
    for network in ["guide"] if options.quick else options.networks:
        reached: dict[str, Row] = {}
        for rung in reversed(options.rungs):
            row = row_of_process("ladder", network, rung, fresh=False, caches="ladder")
            check_losses(row, next(iter(reached.values()), row))
            if rung != RUNGS[0] or row["taken"] == RUNGS[0]:
                reached[rung] = row
        turns = str(10 if options.quick else options.turns)
        times = row_of_process("ladder", network, ",".join(reached), turns, fresh=False, caches="ladder")
        for rung, row in reached.items():
            seconds, share = times[rung]
            yield {**row, "step_cpu_s": seconds, "of_below": share}


def worse_than_below(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Each row that takes more than a rung below it, with that one."""
    pairs = []
    for row in rows:
        if row["rung"] in RUNGS[:2]:
            place = RUNGS.index(row["rung"])
            below = [of for of in rows if of["network"] == row["network"] and RUNGS.index(of["rung"]) == place + 1]
            pairs += [(row, of) for of in below if _worse(row, of)]
    return pairs


def _worse(row: Row, below: Row) -> bool:
    return bool(row["peak_bytes"] > MEMORY * below["peak_bytes"] or row["of_below"] > TIME)


def told(rows: Sequence[Row]) -> None:
    for row, below in worse_than_below(rows):
        print(
            f"{row['network']}: {row['rung']} takes {row['peak_bytes'] / below['peak_bytes']:.3f} of the memory and "
            f"{row['of_below']:.2f} of the time of {below['rung']}"
        )


LADDER = Experiment(
    "inductor_ladder",
    rows,
    (
        *fields("network", "rung"),
        *fields("peak_bytes", spec=","),
        ("CPU ms a step", "{step_cpu_s!m:.2f}"),
        ("of the rung below", lambda row: None if row.get("of_below") is None else f"{row['of_below']:.2f}"),
    ),
    key=("network", "rung"),
    quick="the network of the guide; nothing written",
    options={
        "--networks": {"type": names_of(CASES), "default": [*CASES], "help": "some of them, between commas"},
        "--rungs": {"type": names_of(RUNGS), "default": RUNGS, "help": "some of them"},
        "--turns": {"type": int, "default": 150, "help": "how many steps of each rung are timed"},
    },
    after=told,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=CASES)
    parser.add_argument("rung", type=names_of(RUNGS))
    parser.add_argument("turns", nargs="?", type=int)
    options = parser.parse_args()
    if options.turns is None:
        (rung,) = options.rung
        print(json.dumps(measured(options.network, rung)))
    else:
        print(json.dumps(timed(options.network, options.rung, options.turns)))


if __name__ == "__main__":
    main()
