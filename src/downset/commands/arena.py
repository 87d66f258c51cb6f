"""`downset arena`: for people who have only records, and want an offset or an object for each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.method_names import METHODS
from downset.commands.options import BYTES, SECONDS, console, path_option, search_s, work_limit_option
from downset.commands.pictures import (
    check_pictures,
    map_option,
    not_written_lines,
    report_option,
    trace_option,
    write_memory_pictures,
    write_page,
    written_lines,
)
from downset.commands.waiting import waiting
from downset.commands.wording import worded
from downset.process.garbage import uncollected

if TYPE_CHECKING:
    from downset.arenas.ties import TiesName
    from downset.memory.records import Record
    from downset.reports.document import Document
    from downset.results.plans import Arena, SharedObjects

    _Planner = Callable[[Sequence[Record], str, TiesName, dict[str, Any], int | None], Arena | SharedObjects]

__all__ = ["arena"]


@click.command()
@click.argument("records_csv", type=click.Path())
@click.option(
    "--capacity", type=BYTES, help="Bytes that the arena, or the objects, must fit into; exit 3 if that is impossible."
)
@click.option(
    "--align",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Every offset is a multiple of this number.",
)
@click.option(
    "--form",
    type=click.Choice(["offsets", "objects"]),
    default="offsets",
    show_default=True,
    help="Offsets in one arena, or shared objects that records use one after another.",
)
@click.option(
    "--method",
    default="best",
    show_default=True,
    help=f"For offsets: {METHODS['plan_arena']}. For objects: {METHODS['plan_shared']}.",
)
@click.option(
    "--ties",
    type=click.Choice(["tflite", "paper"]),
    default="tflite",
    show_default=True,
    help="Which of equal records comes first: as in TFLite's code, or as in the memory-management paper.",
)
@click.option("--time-limit", type=SECONDS, default="10s", show_default=True, help="Time for the search.")
@work_limit_option
@path_option("-o", "--output", help="Write the records with an offset (or object) column; - is stdout.")
@report_option
@map_option("Also draw the arena into this SVG file, with the capacity where one is given.")
@trace_option
@json_option("arena")
@click.pass_context
def arena(
    context: click.Context,
    records_csv: str,
    capacity: int | None,
    align: int,
    form: str,
    method: str,
    ties: TiesName,
    time_limit: float,
    work_limit: int | None,
    output: str | None,
    report_path: str | None,
    map_path: str | None,
    trace_path: str | None,
    as_json: bool,
) -> None:
    """Give every record of RECORDS_CSV (id,lower,upper,size; upper exclusive; - is stdin) an offset in one arena, or an
    object.

    Method best tries the heuristics and lowers their best. Up to 5,000 records it then goes on to the exact search if
    there is a gap to the bound. With --capacity the search ends at the first placement that fits.
    """
    from pathlib import Path

    from downset.errors import InfeasibleError, LimitReached, UsageError
    from downset.formats.records_csv import read_records, records_to_csv
    from downset.memory.records import aligned
    from downset.process.whole_files import check_output, write_whole
    from downset.reports.json_form import json_of
    from downset.reports.terminal import print_document
    from downset.results.plans import Arena
    from downset.text import printable

    context.with_resource(uncollected())  # records are in no cycles, and there may be millions
    if output == "-" and as_json:
        raise UsageError("-o - and --json would both write to stdout; name a file for one of them")
    if output not in (None, "-"):
        check_output(output, source=records_csv)
    pictures = {"--report": report_path, "--map": map_path, "--trace": trace_path}
    check_pictures(pictures, others={"-o": None if output == "-" else output}, source=records_csv)
    if form == "objects" and (map_path is not None or trace_path is not None):
        raise UsageError("--map and --trace draw offsets; --report draws shared objects too")
    records = aligned(read_records(records_csv), align)
    talk = console(stderr=True)
    if not records:
        talk.print(printable(f"no records: {records_csv} holds a header alone"), markup=False, soft_wrap=True)
    seconds = search_s(time_limit, work_limit)
    limits = {"time_limit_s": seconds, "work_limit": work_limit}
    planner: _Planner = _place if form == "offsets" else _share
    what = f"placing {len(records)} records" if form == "offsets" else f"sharing objects among {len(records)} records"
    with waiting(talk, what, limit_s=seconds):
        try:
            plan = planner(records, method, ties, limits, capacity)
        except (InfeasibleError, LimitReached) as error:
            if any(pictures.values()):
                # Without a search the error has no plan. The picture then shows the plan for any capacity.
                best: Any = error.result or planner(records, method, ties, limits, None)
                _draw(best, _document(best, records_csv, capacity), pictures, records_csv, capacity)
            error.add_lines([*written_lines(pictures), *not_written_lines(None if output == "-" else output)])
            raise
    document = _document(plan, records_csv, capacity)
    _draw(plan, document, pictures, records_csv, capacity)
    if isinstance(plan, Arena):
        text = records_to_csv(records, offsets=plan.offsets)
    else:
        text = records_to_csv(records, object_of=plan.object_of)
    if output == "-":
        if sys.stdout.isatty():  # so that no control characters reach a terminal
            text = "\n".join(map(printable, text.split("\n")))
        sys.stdout.write(text)
        sys.stdout.flush()
    elif output is not None:
        write_whole(output, text.encode(), source=Path(records_csv))
    if as_json:
        print_json("arena", json_of(document))
        return
    what = "the records with offsets" if form == "offsets" else "the records with objects"
    written = written_lines(pictures, (None if output == "-" else output, what))
    print_document(console(stderr=output == "-"), worded(document), written=written)


def _document(plan: Arena | SharedObjects, source: str, capacity: int | None) -> Document:
    from pathlib import Path

    from downset.reports.plan_documents import arena_document, objects_document
    from downset.results.plans import Arena

    if isinstance(plan, Arena):
        return arena_document(plan, capacity_bytes=capacity, title=Path(source).name)
    return objects_document(plan, capacity_bytes=capacity, title=Path(source).name)


def _draw(
    plan: Arena | SharedObjects, document: Document, paths: Mapping[str, str | None], source: str, capacity: int | None
) -> None:
    """Write the pictures of an arena or of shared objects, which may exceed the capacity."""
    from downset.reports.arena_view import record_view
    from downset.results.plans import Arena

    write_page(paths["--report"], document, source=source)
    if isinstance(plan, Arena):
        views = [record_view("of the records", plan)]
        write_memory_pictures(paths, views, caption=document.title, limit_bytes=capacity, source=source)


def _place(
    records: Sequence[Record], method: str, ties: TiesName, limits: dict[str, Any], capacity: int | None
) -> Arena:
    from downset.arenas.exact import MOST_RECORDS
    from downset.arenas.plan import plan_arena

    plan = plan_arena(records, method=method, ties=ties, capacity_bytes=capacity, **limits)
    if method == "best" and capacity is None and not plan.evidence.proven and len(records) <= MOST_RECORDS:
        further = plan_arena(records, method="exact", ties=ties, **limits)
        return further if further.arena_bytes < plan.arena_bytes or further.evidence.proven else plan
    return plan


def _share(
    records: Sequence[Record], method: str, ties: TiesName, limits: dict[str, Any], capacity: int | None
) -> SharedObjects:
    from downset.arenas.plan import plan_shared

    plan = plan_shared(records, method=method, ties=ties, capacity_bytes=capacity, **limits)
    if method == "best" and capacity is None and not plan.evidence.proven:
        return plan_shared(records, method="exact", ties=ties, **limits)
    return plan
