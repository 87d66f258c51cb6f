"""`downset verify`: checks whether two model files hold the same network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from downset.commands.envelope import NotKnown, OutputsDiffer, json_option, print_json
from downset.commands.options import console, parse_shapes, shape_option, time_limit_option, worker_memory_option
from downset.commands.waiting import waiting
from downset.text import printable

if TYPE_CHECKING:
    from downset.runtimes.compare import RuntimeName

__all__ = ["verify"]


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@click.option(
    "--runtime", type=click.Choice(["litert", "tflm", "ort"]), help="Default: litert for .tflite, ort for .onnx."
)
@shape_option
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Largest absolute difference of outputs that is allowed. By default outputs must be equal where the networks "
    "are proven to compute alike; else floats may differ by rounding, 1e-4 of the largest.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the generated inputs.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    type=click.Path(),
    help="Your own data: a .npy file, or .npz with the inputs' names; repeatable.",
)
@time_limit_option("Time for reading and running.")
@worker_memory_option
@json_option("verify")
def verify(
    first: str,
    second: str,
    runtime: RuntimeName | None,
    shapes: tuple[str, ...],
    tolerance: float | None,
    seed: int,
    inputs: tuple[str, ...],
    time_limit: float,
    as_json: bool,
) -> None:
    """Prove that FIRST and SECOND hold the same network, and run both on the same inputs; exit 4 if they differ, 6 if
    there is no proof and the outputs never change, or do not show a difference that the files have."""
    from downset.errors import UsageError
    from downset.reports.comparisons import comparison_lines, difference
    from downset.reports.json_forms.fit import comparison_json

    if tolerance is not None and not math.isfinite(tolerance):
        raise UsageError(f"--tolerance {tolerance} allows no comparison; give a number from 0")
    from downset.runtimes.compare import compare

    with waiting(console(stderr=True), f"comparing {Path(first).name} and {Path(second).name}", limit_s=time_limit):
        comparison = compare(first, second, runtime=runtime, shapes=parse_shapes(shapes), seed=seed, inputs=inputs)
    agree = (
        comparison.rounds_alike and not comparison.inside_note if tolerance is None else comparison.within(tolerance)
    )
    proof = comparison.proof
    if not agree:
        why = f" ({proof.reason})" if proof is not None and proof.reason else ""
        where = f" in {comparison.runtime}" if comparison.runtime else ""
        raise OutputsDiffer(
            f"{first} and {second} differ{where}: {difference(comparison)}{why}",
            comparison_json(comparison),
        )
    if comparison.varies is False and not (proof is not None and proof.proven):
        raise NotKnown(
            f"{first} and {second} are not proven the same ({proof.reason if proof else ''}). Their outputs are "
            "the same for every input tried, so comparing them says nothing; give your own data with --input",
            comparison_json(comparison),
        )
    if comparison.unshown:
        raise NotKnown(
            f"{first} and {second} are not proven the same, and the runs do not show a difference that the files have: "
            f"{comparison.unshown}; give data that takes this part with --input",
            comparison_json(comparison),
        )
    if as_json:
        print_json("verify", comparison_json(comparison))
    else:
        for line in comparison_lines(comparison):
            console().print(printable(line), markup=False, soft_wrap=True)
