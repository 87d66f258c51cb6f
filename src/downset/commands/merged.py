"""`downset stage --export`: a network with its merges as an .onnx file, where ONNX Runtime is faster with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downset.commands.envelope import print_json
from downset.commands.inputs import tell_note
from downset.commands.options import check_runs, console
from downset.commands.pictures import written_lines
from downset.commands.waiting import counting, reading
from downset.commands.wording import worded

__all__ = ["run_export"]

_OTHERS = {
    "output": "-o",
    "report_path": "--report",
    "trace_path": "--trace",
    "streams_path": "--ort-streams",
    "batch": "--batch",
}
"""Options with which --export is not given, by parameter."""


def run_export(model: str, options: Mapping[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Merge MODEL, measure it in ONNX Runtime, and write it to the path of --export where that is faster. `options`:
    those of `downset stage`."""
    from downset.errors import UsageError
    from downset.formats.reading import known_sizes
    from downset.process.whole_files import check_output
    from downset.reports.json_form import json_of
    from downset.reports.merged import merged_document
    from downset.reports.terminal import print_document
    from downset.tuning.merged_file import check_merged_candidate, export_merged

    check_merged_candidate(options["candidate"])
    named = [option for name, option in _OTHERS.items() if options[name] is not None]
    named += ["--device"] if options["device"] != "cpu" else []
    named += ["--dtype"] if options["dtype"] != "model" else []
    if named:
        raise UsageError(f"--export only writes merges for ONNX Runtime on a CPU: leave out {' and '.join(named)}")
    check_runs(options["runs"])
    path = options["export_path"]
    for each in (model, path):
        if Path(each).suffix.lower() != ".onnx":
            raise UsageError(f"--export merges an .onnx file into another, and {each} is not one")
    check_output(path, source=model)
    talk = console(stderr=True, quiet=quiet)
    with reading(talk, model):
        sizes = known_sizes(model, shapes=options["shapes"], dims=options["dims"])
    tell_note(talk, sizes.note)
    with counting(talk) as progress:
        result = export_merged(
            model,
            path,
            shapes=options["shapes"],
            dims=options["dims"],
            threads=(1, 2) if options["threads"] is None else (options["threads"],),
            runs=options["runs"],
            candidate=options["candidate"],
            progress=progress,
        )
    document = merged_document(result, title=Path(model).name)
    if as_json:
        print_json("stage", json_of(document))
        return
    written = [] if quiet or not result.output_path else written_lines({}, (path, "the network with its merges"))
    print_document(console(), worded(document), written=written)
