"""`downset verify`: do two model files compute the same?"""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from downset.commands.options import console, parse_shapes, print_json

__all__ = ["verify"]


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@click.option("--runtime", type=click.Choice(["litert", "tflm", "ort"]), help="litert for .tflite, ort for .onnx.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Fix an input's shape; repeatable.")
@click.option("--tolerance", type=float, default=0.0, show_default=True, help="Largest absolute difference allowed.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/schemas/verify.json).")
def verify(
    first: str,
    second: str,
    runtime: str | None,
    shapes: tuple[str, ...],
    tolerance: float,
    seed: int,
    as_json: bool,
) -> None:
    """Run FIRST and SECOND on the same seeded inputs and compare the outputs; exit 4 if they differ."""
    from downset.compare import compare_outputs
    from downset.errors import InvalidPlan, UsageError
    from downset.load import load

    suffixes = {Path(first).suffix.lower(), Path(second).suffix.lower()}
    if len(suffixes) > 1:
        raise UsageError(f"{first} and {second} are of different formats")
    fixed = parse_shapes(shapes)
    for path in (first, second):
        load(path, shapes=fixed)  # a bad file is one line from us, not a crash of the runtime
    chosen = runtime or ("ort" if suffixes == {".onnx"} else "litert")
    result = compare_outputs(first, second, runtime=chosen, shapes=fixed, seed=seed)
    if as_json:
        print_json({"runtime": chosen, "equal": result.equal, "max_abs_error": result.max_abs_error})
    close = result.equal or (result.max_abs_error is not None and result.max_abs_error <= tolerance)
    if not close:
        reason = result.note or f"largest absolute difference {result.max_abs_error:g}"
        raise InvalidPlan(f"{first} and {second} differ in {chosen}: {reason}")
    if not as_json:
        how = "equal bit for bit" if result.equal else f"within {tolerance:g} (largest {result.max_abs_error:g})"
        console().print(f"outputs {how} in {chosen}", markup=False)
