"""`downset verify`: checks whether two model files hold the same network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from downset.commands.envelope import NotKnown, OutputsDiffer, json_option, print_json
from downset.commands.inputs import tell_note
from downset.commands.options import (
    console,
    input_option,
    size_options,
    time_limit_option,
    trust_option,
    worker_memory_option,
)
from downset.commands.waiting import reading
from downset.commands.wording import worded
from downset.messages import Message

if TYPE_CHECKING:
    from downset.runtimes.compare import RuntimeName

__all__ = ["verify"]


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@click.option(
    "--runtime",
    type=click.Choice(["litert", "tflm", "ort", "torch"]),
    help="Default: litert for .tflite, ort for .onnx, torch for .pt2.",
)
@size_options
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Largest absolute difference of outputs that is allowed; it proves nothing. By default outputs must be equal "
    "where the networks are proven to compute alike; else floats may differ by rounding, 1e-4 of the largest.",
)
@click.option(
    "--accept-runs",
    is_flag=True,
    help="Exit 0 also where nothing is proven, if runs that could show a difference show none.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the generated inputs.")
@input_option("Your own data")
@trust_option
@time_limit_option("Time for reading, and for runs that look for a difference.")
@worker_memory_option
@json_option("verify")
def verify(
    first: str,
    second: str,
    runtime: RuntimeName | None,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, int],
    tolerance: float | None,
    accept_runs: bool,
    seed: int,
    inputs: tuple[str, ...],
    trust: bool,
    time_limit: float,
    as_json: bool,
) -> None:
    """Prove that FIRST and SECOND hold the same network, and run both on the same inputs. Where SECOND is a stream of
    FIRST, it is proven hop by hop and compared with runs on windows. Exit 0: proven. Exit 6: not proven, and all that
    was tried agrees. Exit 4: they differ."""
    from downset.errors import UsageError
    from downset.reports.comparisons import comparison_document, difference, not_proven
    from downset.reports.json_form import json_of
    from downset.reports.terminal import print_document

    if tolerance is not None and not math.isfinite(tolerance):
        raise UsageError(f"--tolerance {tolerance} allows no comparison; give a number from 0")
    from downset.runtimes.compare import compare

    what = f"comparing {Path(first).name} and {Path(second).name}"
    with reading(console(stderr=True), first, what=what, runs=True, limit_s=time_limit):
        comparison = compare(
            first,
            second,
            runtime=runtime,
            shapes=shapes,
            dims=dims,
            seed=seed,
            inputs=inputs,
            time_limit_s=time_limit,
            trust=trust,
        )
    tell_note(console(stderr=True), comparison.assumed)
    verdict, document = comparison.verdict(tolerance), comparison_document(comparison)
    if verdict == "differ":
        why = Message(" (", comparison.reason, ")") if comparison.proof is not None and comparison.reason else ""
        where = f" in {comparison.runtime}" if comparison.runtime else ""
        raise OutputsDiffer(
            Message(f"{first} and {second} differ{where}: ", difference(comparison), why),
            json_of(document),
        )
    if verdict == "not proven" and not (accept_runs and comparison.telling):
        raise NotKnown(
            Message(f"{first} and {second} are not proven the same: ", not_proven(comparison)),
            json_of(document),
        )
    if as_json:
        print_json("verify", json_of(document))
    else:
        print_document(console(), worded(document))
