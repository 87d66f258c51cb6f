"""`downset verify`: do two model files compute the same?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from downset.commands.envelope import OutputsDiffer, json_option, print_json
from downset.commands.options import console, parse_shapes, shape_option, time_limit_option, worker_memory_option

if TYPE_CHECKING:
    from downset.runtimes.compare import RuntimeName

__all__ = ["verify"]


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@click.option("--runtime", type=click.Choice(["litert", "tflm", "ort"]), help="litert for .tflite, ort for .onnx.")
@shape_option
@click.option(
    "--tolerance", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Largest difference allowed."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random inputs.")
@time_limit_option("For reading and running.", given=False)
@worker_memory_option
@json_option("verify")
def verify(
    first: str,
    second: str,
    runtime: RuntimeName | None,
    shapes: tuple[str, ...],
    tolerance: float,
    seed: int,
    as_json: bool,
) -> None:
    """Run FIRST and SECOND on the same seeded inputs and compare the outputs; exit 4 if they differ."""
    from downset.reports.json_form import comparison_json
    from downset.runtimes.compare import compare

    found = compare(first, second, runtime=runtime, shapes=parse_shapes(shapes), seed=seed)
    if not found.within(tolerance):
        reason = found.note or f"largest absolute difference {found.max_abs_error:g}"
        raise OutputsDiffer(f"{first} and {second} differ in {found.runtime}: {reason}", comparison_json(found))
    if as_json:
        print_json("verify", comparison_json(found))
    else:
        how = "equal bit for bit" if found.equal else f"within {tolerance:g} (largest {found.max_abs_error:g})"
        console().print(f"outputs {how} in {found.runtime}", markup=False)
