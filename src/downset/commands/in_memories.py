"""`downset fit --fast SIZE --slow SIZE`: fast memory with slow memory behind it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import print_json
from downset.commands.options import console, search_s
from downset.commands.pictures import write_page, write_picture, written_lines
from downset.commands.waiting import reading
from downset.commands.wording import worded
from downset.text import printable

if TYPE_CHECKING:
    from downset.results.memories_fit import MemoriesFit

__all__ = ["fit_in_memories"]

_TAKEN = frozenset(
    [
        "model",
        "output",
        "fast",
        "slow",
        "distance",
        "persistent",
        "prices",
        "larger",
        "incumbent",
        "kernels",
        "target",
        "inputs",
        "time_limit",
        "work_limit",
        "report_path",
        "header_path",
        "as_json",
        "quiet",
    ]
)
"""The parameters of `fit` that have a meaning with two memories."""


def fit_in_memories(firmware_files: tuple[Path | None, Path | None]) -> None:
    """Run `fit` of the current context with two memories. `firmware_files`: the header and the source, as paths."""
    from downset.fitting.job import Listener
    from downset.fitting.memories import fit_to_memories
    from downset.fitting.memories_options import TwoMemoriesOptions
    from downset.reports.json_form import json_of
    from downset.reports.memories_document import memories_document
    from downset.reports.terminal import print_document

    context: Any = click.get_current_context()
    given = context.params
    _check(context)
    talk = console(stderr=True, quiet=given["quiet"])
    options = TwoMemoriesOptions(
        given["model"],
        given["fast"],
        given["slow"],
        distance_bytes=given["distance"],
        output=given["output"],
        kernels=given["kernels"],
        persistent=given["persistent"] or "fast",
        prices=given["prices"],
        larger=given["larger"],
        time_limit_s=search_s(given["time_limit"], given["work_limit"]),
        work_limit=given["work_limit"],
        inputs=given["inputs"],
        incumbent=given["incumbent"],
    )
    with reading(talk, given["model"], runs=True, limit_s=given["time_limit"]) as progress:
        result = fit_to_memories(options, Listener(progress))
        document = memories_document(result)
        if given["report_path"] is not None:
            write_page(given["report_path"], document, source=given["model"])
        _write_firmware(result, *firmware_files)
    if given["as_json"]:
        print_json("fit", json_of(document))
    else:
        firmware = ((file, "C++ for firmware") for file in firmware_files)
        model_file = (result.output_path, f"{len(result.moves)} moves")
        written = written_lines({"--report": given["report_path"]}, model_file, *firmware)
        print_document(console(), worded(document), written=[] if given["quiet"] else written)
    for note in result.notes:
        talk.print(f"note: {printable(worded(note))}", style="dim", markup=False, soft_wrap=True)


def _check(context: Any) -> None:
    """Raise UsageError where one of the memories is missing, or an option has no meaning with them."""
    from downset.errors import UsageError

    given = context.params
    if given["fast"] is None or given["slow"] is None:
        raise UsageError("--fast and --slow together say what there is: give both, for example --fast 256KB --slow 8MB")
    if given["target"] not in (None, "tflm"):
        raise UsageError(f"--fast is for TFLite Micro (target tflm), not for {given['target']}")
    if given["header_path"] is not None and given["kernels"] is None:
        raise UsageError(
            "--header with --fast needs --kernels: the scratch of the firmware's kernels has to have room in the plan "
            "(--kernels reference for TFLite Micro's own)"
        )
    for option in context.command.params:
        source = context.get_parameter_source(option.name)
        if option.name not in _TAKEN and source is not None and source.name == "COMMANDLINE" and option.expose_value:
            raise UsageError(f"{option.opts[0]} has no meaning with --fast: leave it out")


def _write_firmware(result: MemoriesFit, header: Path | None, array: Path | None) -> None:
    from downset.formats.firmware_memories import memories_firmware

    if header is None:
        return
    files = memories_firmware(result, include="" if array is None else header.name)
    write_picture(array, files.source, source=result.model)
    write_picture(header, files.header, source=result.model)
