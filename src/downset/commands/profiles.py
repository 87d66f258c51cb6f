"""`downset profiles`: lists and clears the measured latencies kept on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.options import console

__all__ = ["profiles"]


@click.group()
def profiles() -> None:
    """List or clear the latencies measured on this machine."""


@profiles.command("list")
@json_option("profiles")
def list_profiles(as_json: bool) -> None:
    """How many timings are kept, by device, library versions, element type and batch."""
    from downset.tuning.profiles import Profiles

    kept = Profiles()
    rows = kept.summary()
    if as_json:
        names = ("device", "versions", "dtype", "batch", "timings", "last_taken_at")
        listing = {"path": str(kept.path), "profiles": [dict(zip(names, row, strict=True)) for row in rows]}
        print_json("profiles", listing)
    else:
        out = console()
        out.print(f"{kept.path}: {sum(row[4] for row in rows)} timings", markup=False, soft_wrap=True)
        for device, versions, dtype, batch, count, last in rows:
            taken = datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d %H:%M")
            line = f"  {device}; {versions}; {dtype}; batch {batch}: {count} timings, the last {taken} UTC"
            out.print(line, markup=False, soft_wrap=True)
    _say(kept.notes)


@profiles.command("clear")
@json_option("profiles")
def clear_profiles(as_json: bool) -> None:
    """Remove all timings."""
    from downset.tuning.profiles import Profiles

    kept = Profiles()
    forgotten = kept.clear()
    if as_json:
        print_json("profiles", {"path": str(kept.path), "profiles": [], "forgotten": forgotten})
    else:
        console().print(f"{kept.path}: {forgotten} timings forgotten", markup=False, soft_wrap=True)
    _say(kept.notes)


def _say(notes: Sequence[str]) -> None:
    for note in notes:
        console(stderr=True).print(f"note: {note}", markup=False, soft_wrap=True)
