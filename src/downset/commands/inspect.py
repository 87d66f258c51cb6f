"""`downset inspect`: the contents of a model, and the live bytes while each operator runs."""

from __future__ import annotations

from dataclasses import replace

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.inputs import tell_note
from downset.commands.options import (
    console,
    size_options,
    time_limit_option,
    trust_option,
    worker_memory_option,
)
from downset.commands.waiting import reading
from downset.commands.wording import worded
from downset.messages import Message
from downset.process.limits import PARSING_S
from downset.text import counted

__all__ = ["inspect"]


@click.command()
@click.argument("model", type=click.Path())
@click.option(
    "--memory", "--target", "memory", help="Memory model; default tflm for .tflite, ort for .onnx, else live."
)
@size_options
@time_limit_option("For reading.")
@worker_memory_option
@trust_option
@json_option("inspect")
def inspect(
    model: str,
    memory: str | None,
    shapes: dict[str, tuple[int, ...]],
    dims: dict[str, int],
    time_limit: float,
    trust: bool,
    as_json: bool,
) -> None:
    """Operators, tensors, width and number of downsets of MODEL, and the live bytes at each operator."""
    from downset.errors import OpenShapeError
    from downset.formats.reading import load, load_open, open_sizes
    from downset.reports.inspection import inspect as look_into
    from downset.reports.inspection import inspect_open, inspection_document
    from downset.reports.json_form import json_of
    from downset.reports.terminal import print_document

    with reading(console(stderr=True), model, limit_s=max(time_limit, PARSING_S)) as progress:
        sizes = open_sizes(model, shapes=shapes, dims=dims)
        network = None if sizes.known else load_open(model)
        missing = Message("the peak and live bytes need sizes that the file leaves open: ", sizes.wanted)
        if network is None:
            try:
                loaded = load(model, shapes=shapes, dims=dims, trust=trust)
            except OpenShapeError as error:
                network = load_open(model)
                missing = Message("the peak and live bytes are not known: ", error.message)
        if network is None:
            progress(f"looking into {counted(len(loaded.ops), 'operator')}")
            inspection = replace(look_into(loaded, memory=memory), open_sizes=sizes.sizes)
        else:
            inspection = inspect_open(network, sizes.sizes, missing=missing, memory=memory)
        document = inspection_document(inspection)
    tell_note(console(stderr=True), inspection.note)
    if as_json:
        print_json("inspect", json_of(document))
    else:
        print_document(console(), worded(document))
