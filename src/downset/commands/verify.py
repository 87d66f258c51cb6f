"""`downset verify`: do two model files compute the same?"""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from downset.commands.options import (
    console,
    parse_shapes,
    print_json,
    shape_option,
    time_limit_option,
    worker_memory_option,
)

__all__ = ["verify"]

_RUNTIMES = {".tflite": ("litert", "tflm"), ".onnx": ("ort",)}
"""By suffix; the first is the default."""


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
    from downset.errors import InvalidPlan, UnsupportedError, UsageError
    from downset.formats.reading import load
    from downset.runtimes.compare import compare_outputs

    suffixes = {Path(first).suffix.lower(), Path(second).suffix.lower()}
    if len(suffixes) > 1:
        raise UsageError(f"{first} and {second} are of different formats")
    (suffix,) = suffixes
    if suffix not in _RUNTIMES:
        raise UnsupportedError(f"verify runs {' and '.join(_RUNTIMES)} files, not {suffix or 'files without a suffix'}")
    chosen = runtime or _RUNTIMES[suffix][0]
    if chosen not in _RUNTIMES[suffix]:
        raise UsageError(f"{chosen} does not run {suffix} files; choose {' or '.join(_RUNTIMES[suffix])}")
    fixed = parse_shapes(shapes)
    for path in (first, second):
        load(path, shapes=fixed)  # a bad file is one line from us, not a crash of the runtime
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
