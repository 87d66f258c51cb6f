"""C++ for firmware that a command writes beside the model: the paths, and the files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from downset.commands.pictures import write_picture
from downset.results.fit import Fit

if TYPE_CHECKING:
    from downset.errors import UnsupportedError

__all__ = ["firmware_files", "write_firmware"]

_SOURCES = (".cc", ".cpp", ".cxx")


def firmware_files(
    path: str | None, model: str, output: str | None, target: str | None
) -> tuple[Path | None, Path | None]:
    """The paths of the header and of the source, if the array is in a separate file; None for a file that was not asked
    for. Raises if they cannot be written, before anything is planned."""
    from downset.errors import UsageError
    from downset.process.whole_files import check_output

    if path is None:
        return None, None
    suffix = Path(path).suffix
    if suffix not in (".h", ".hpp", *_SOURCES):
        raise UsageError(f"--header {path} must end in .h, or in .cc for the array in a file of its own")
    if target not in (None, "tflm") or Path(model).suffix.lower() != ".tflite":
        raise UsageError("--header is for TFLite Micro: a .tflite file and target tflm")
    if output is None:
        raise UsageError("--header holds the model that is written: give -o, too")
    files = (Path(path).with_suffix(".h"), Path(path)) if suffix in _SOURCES else (Path(path), None)
    for file in files:
        if file is not None:
            check_output(file, source=[model])
    return files


def write_firmware(result: Fit, header: Path | None, array: Path | None) -> UnsupportedError | None:
    """Write the C++ files that were asked for. Returns the error where they cannot be made: the result is whole without
    them, and is printed first."""
    from downset.errors import UnsupportedError
    from downset.formats.firmware import firmware

    if header is None:
        return None
    try:
        files = firmware(result, include="" if array is None else header.name)
    except UnsupportedError as error:
        return error
    write_picture(array, files.source, source=result.model)
    write_picture(header, files.header, source=result.model)
    return None
