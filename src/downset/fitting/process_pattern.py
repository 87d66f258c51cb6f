"""ONNX Runtime's memory pattern, tried once it is known what ships: it makes brief runs faster.

Without it a run asks the arena for a block for each tensor, about a microsecond each. With it a session takes one block
from its second run of a size on, as large as the runtime lays out the first one: where that makes the process larger,
the pattern stays off. It stays off for a range of sizes, too: blocks of changing sizes leave gaps in the arena.
"""

from __future__ import annotations

from dataclasses import replace

from downset.errors import DownsetError
from downset.fitting.attempts import ALIKE, Attempt
from downset.fitting.job import Job
from downset.fitting.process_race import Race
from downset.messages import Message
from downset.results.sessions import WITH_PATTERN
from downset.runtimes.targets import Sessions

__all__ = ["quicker"]

_BRIEF_S = 0.02
"""Seconds of a run from which blocks of the arena do not show."""

_ROUNDS = 7, 1001
"""The least and the most rounds in which both run: brief runs need many."""


def quicker(job: Job, race: Race, best: Attempt) -> tuple[Attempt, Attempt | None]:
    """The file with the memory pattern, where its runs take less time and its process no more, with the original by
    default as it was measured in turns with it; else `best`, and None."""
    sessions = job.target.sessions
    if sessions is None or job.ranges is not None or best.growth.cpu_s >= _BRIEF_S:
        return best, None
    try:
        other = _with_pattern(job, sessions, best)
    except DownsetError as error:
        job.notes.add(Message("the memory pattern was not tried: ", error.message))
        return best, None
    read = race.in_turns(best, other) if other is not None else []
    if not read:
        return best, None
    default, usual, faster = read
    most_more = ALIKE * usual.peak_bytes
    larger = faster.peak_bytes > usual.peak_bytes + most_more
    anonymous = faster.growth.peak_anonymous_bytes > usual.growth.peak_anonymous_bytes + most_more
    if larger or anonymous or not race.fits(faster):
        return best, None
    race.measured.append(faster)
    return faster, default


def _with_pattern(job: Job, sessions: Sessions, best: Attempt) -> Attempt | None:
    """The file opened with the memory pattern, its arena as large as that needs; None where it is not faster, to the
    certainty of the rounds in which both run."""
    settings, given = best.file.settings, {"shapes": job.options.shapes, "seed": job.options.seed}
    pattern = None if settings is None else WITH_PATTERN.get(settings.name)
    if settings is None or pattern is None:
        return None
    measured = None
    if settings.region_bytes != pattern.region_bytes:
        pattern, taken = sessions.narrow(best.file.path, pattern, **given)
        measured = taken.nbytes
    pairs = [(best.file.path, settings), (best.file.path, pattern)]
    _, latency = sessions.time(pairs, rounds=_ROUNDS, **given)
    if latency.ratio_high >= 1.0:
        return None
    return replace(best, file=replace(best.file, settings=pattern, measured=measured))
