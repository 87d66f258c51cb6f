"""Wake words of ESPHome's micro_wake_word: fits the model of a manifest, and writes it with a manifest that states the
size of its arena.

    python -m downset.integrations.esphome okay_nabu.json -o fitted/okay_nabu.json --kernels esp-nn-s3@1.2.1

*Source* of the manifest's keys: esphome.io, component micro_wake_word (version 2 of the format).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downset.errors import DownsetError, LoadError
from downset.fitting.fit import fit
from downset.formats.firmware import arena_bytes
from downset.process.whole_files import check_output, write_whole
from downset.results.fit import Fit
from downset.text import format_bytes, printable

__all__ = ["KERNELS", "FittedManifest", "fit_manifest"]

KERNELS = "esp-nn-s3"
"""The kernels that ESPHome links on the chip of its voice assistants, the ESP32-S3: the most of all known versions."""
_SIZE = "tensor_arena_size"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FittedManifest:
    """A fitted wake word. `arena_bytes`: the size that its manifest states, `before_bytes` the size that the given one
    stated, `needed_before_bytes`: what the given model needs with the same kernels."""

    fit: Fit
    manifest: Path
    model: Path
    arena_bytes: int
    before_bytes: int
    needed_before_bytes: int


def fit_manifest(
    manifest: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    kernels: str = KERNELS,
    ram_bytes: int | None = None,
    time_limit_s: float = 10.0,
) -> FittedManifest:
    """Fit the model that a manifest names, and write a manifest to `output` with the fitted model beside it, under the
    model's name. All other keys stay as they are. The size is that of the arena in `ds.firmware`: measured with
    pointers of eight bytes, and with the scratch of `kernels` by formula.

    Raises LoadError for a file that is not such a manifest, UsageError for a place that cannot be written, and what
    `ds.fit` raises; nothing is written then."""
    source, place = Path(manifest), Path(output)
    document = _document(source)
    name = document["model"]
    model, fitted = source.parent / name, place.parent / name
    if not model.exists():
        raise LoadError(f"{source}: its model {printable(name)} does not exist beside it")
    check_output(place, source=[source, model])
    check_output(fitted, source=[source, model])
    result = fit(model, output=fitted, target="tflm", kernels=kernels, ram_bytes=ram_bytes, time_limit_s=time_limit_s)
    if result.measured is None:
        fitted.unlink(missing_ok=True)
        raise LoadError(f"{model}: the size of its arena is not known: {result.not_measured}")
    size = arena_bytes(result)
    before = int(document["micro"][_SIZE])
    document["micro"] |= {_SIZE: size}
    write_whole(place, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode(), source=source)
    return FittedManifest(result, place, fitted, size, before, result.measured.needed[0])


def _document(path: Path) -> dict[str, Any]:
    """The manifest. Raises LoadError for anything else."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise LoadError(
                f"{path} holds no manifest of micro_wake_word: it is larger than {format_bytes(_MOST_BYTES)} B"
            )
        document: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path} is not JSON: {error}") from None
    micro = document.get("micro") if isinstance(document, dict) else None
    if not isinstance(micro, dict) or document.get("type") != "micro" or document.get("version") != 2:
        raise LoadError(f"{path} holds no manifest of micro_wake_word, version 2")
    name, size = document.get("model"), micro.get(_SIZE)
    if not isinstance(name, str) or not name.endswith(".tflite") or name != Path(name).name:
        raise LoadError(f"{path}: model must name a .tflite file beside it, not {printable(str(name))}")
    if type(size) is not int or size < 0:
        raise LoadError(f"{path}: micro.{_SIZE} must be a number of bytes, not {printable(str(size))}")
    return dict(document)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code, which is that of `downset fit`."""
    import argparse

    from downset.text import parse_bytes, parse_seconds

    parser = argparse.ArgumentParser(prog="python -m downset.integrations.esphome", description="Fit a wake word.")
    parser.add_argument("manifest", help="the JSON file of a wake word, with its .tflite file beside it")
    parser.add_argument("-o", "--output", required=True, help="the fitted manifest; its model is written beside it")
    parser.add_argument("--kernels", default=KERNELS, metavar="NAME[@VERSION]", help="as for downset fit")
    parser.add_argument("--ram", help="fail where the model is not known to fit, for example 64KB")
    parser.add_argument("--time-limit", default="10s", help="of the search; default: 10s")
    options = parser.parse_args(arguments)
    try:
        wake_word = fit_manifest(
            options.manifest,
            options.output,
            kernels=options.kernels,
            ram_bytes=None if options.ram is None else parse_bytes(options.ram),
            time_limit_s=parse_seconds(options.time_limit),
        )
    except DownsetError as error:
        print(f"downset: error: {(error.lines or [str(error)])[0]}", file=sys.stderr)
        return error.exit_code
    needed = format_bytes(wake_word.needed_before_bytes)
    print(
        f"{_SIZE}: {wake_word.arena_bytes} with {options.kernels} (it was {wake_word.before_bytes}; the model as it "
        f"was needs {needed} B with the same kernels)\nwritten: {wake_word.manifest}\nwritten: {wake_word.model}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
