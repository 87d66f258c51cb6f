"""Chooses the file that ships: the candidate that takes least, within the limits of memory and time, and computes the
same.

Where a runtime opens files with settings, a candidate is a file with its settings.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from downset.errors import InvalidPlan, LimitReached, UnsupportedError
from downset.fitting.candidates import Candidate
from downset.fitting.job import Job, Notes
from downset.fitting.measuring import (
    Narrowed,
    held_bytes,
    in_use,
    narrowing,
    processes_of,
    tell_apart,
    time,
    with_noise,
)
from downset.fitting.planning import Planned, search_in_strips
from downset.fitting.proving import compare, note_differences
from downset.fitting.strips import StripSearch, note_arithmetic, strips_within, taken_bytes
from downset.messages import Message, Setting
from downset.results.comparisons import Comparison
from downset.results.processes import ProcessFit
from downset.results.sessions import SessionTaken
from downset.text import format_bytes

__all__ = ["Candidates", "FileChoice", "choose", "least", "within_limit", "without_slower"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates as they were measured, the original first. `narrowed`: gives a candidate the settings by which its
    arena holds least. `limit_bytes`: the memory limit, less what the kernels named need in addition; None where there
    is none. `strips`: the search for strips, where no candidate was within the limit without."""

    files: Sequence[Candidate]
    narrowed: Narrowed
    limit_bytes: int | None = None
    strips: StripSearch | None = None

    @property
    def original(self) -> Candidate:
        return self.files[0]


@dataclass(frozen=True, slots=True)
class FileChoice:
    """The file that ships, and the comparison of its outputs. `rows` and `front`: as `tell_apart` returns them.
    `process`: what was measured of processes, where these decided."""

    file: Candidate
    outputs: Comparison
    rows: tuple[SessionTaken, ...]
    front: tuple[SessionTaken, ...]
    process: ProcessFit | None = None


def within_limit(job: Job, planned: Planned, files: Sequence[Candidate]) -> Candidates:
    """The candidates for the memory limit. Where none fits, files in strips are made; if one of them fits, only the
    original and these are candidates."""
    candidates = Candidates(files, narrowing(job))
    if job.planned_bytes is None:
        return candidates
    limit = job.planned_bytes
    candidates = replace(candidates, limit_bytes=limit)
    original, narrowed = candidates.original, candidates.narrowed
    beside = original.measured_bytes() - original.arena_bytes if original.measured else 0
    beside = max(beside, 0) if job.target.fixed_overhead else 0

    def fits(file: Candidate, more_bytes: int = 0) -> bool:
        return stays_within(file, limit, beside + more_bytes, narrowed)

    if any(map(fits, files)):
        return candidates
    job.may_search("not computed in strips")  # without time the search gives the bound that the verdict needs
    try:
        searches = search_in_strips(job, planned)
        striped, one_fits = strips_within(job, searches, original, limit - beside, fits)
    except UnsupportedError as error:
        job.notes.add(Message("not computed in strips: ", error.message))
        return candidates
    note_arithmetic(job, planned.best.graph, striped)
    return replace(candidates, files=[original, *striped] if one_fits else [*files, *striped], strips=searches[0])


def stays_within(file: Candidate, limit_bytes: int, beside_bytes: int, narrowed: Narrowed) -> bool:
    """Whether the runtime takes no more than `limit_bytes` for the candidate at every load; without a measurement
    whether the arena plus `beside_bytes` is no more."""
    if file.settings is None or file.measured is None:
        return taken_bytes(file, beside_bytes) <= limit_bytes
    if not file.settings.follows_file or file.measured["in_use_bytes"] > limit_bytes:
        return False
    return taken_bytes(narrowed(file), beside_bytes) <= limit_bytes


def choose(job: Job, candidates: Candidates, *, told_apart: bool = True) -> FileChoice:
    """The best file that computes the same, by proof or by runs, and is not known to be too slow after a second
    timing. Without `told_apart` it is not timed again, and the choice has no rows."""
    too_slow: set[str] = set()
    while True:
        attempt = replace(job, notes=Notes())
        choice = _choice(attempt, candidates, too_slow, told_apart=told_apart)
        if not known_slower(choice.rows, choice.file, job.options.slower):
            job.notes.add(*attempt.notes)
            return choice
        too_slow.add(choice.file.label)


def _choice(job: Job, candidates: Candidates, too_slow: Collection[str], *, told_apart: bool) -> FileChoice:
    """The best file that computes the same, other than those labelled as too slow. Neither the head nor the total may
    grow; of equals the first is chosen. With a memory limit the file is one whose memory is the same at every load, if
    there is one."""
    original = candidates.original
    considered = [item for item in candidates.files if item.label not in too_slow and not item.head_grew(original)]
    timed = time(job, considered) if told_apart or job.options.slower is not None else considered
    left, notes = without_slower(timed, job.options.slower)
    job.notes.add(*notes)
    while True:
        loaded_alike = left if candidates.limit_bytes is None else _same_at_every_load(left)
        chosen = least(job, loaded_alike, candidates.narrowed, candidates.limit_bytes)
        try:
            outputs = compare(job, original, chosen)
            break
        except InvalidPlan as error:
            job.notes.add(Message(f"the {chosen.label} file is left out: ", error.message))
            left = [item for item in left if item.label != chosen.label]
        except LimitReached as error:
            job.notes.add(Message(f"not the {chosen.name} file, whose outputs were not compared: ", error.message))
            left = [item for item in left if item.name == original.name]
    lost = min((item.arena_bytes for item in left if item.rewrites), default=chosen.arena_bytes)
    if not chosen.rewrites and lost < chosen.arena_bytes:
        job.notes.add(
            f"rewriting would give an arena of {format_bytes(lost)} B, but the runtime took less memory in all without "
            "it"
        )
    note_differences(job, original, chosen, outputs)
    rows, front = tell_apart(job, chosen, left, candidates.narrowed) if told_apart else ((), ())
    return FileChoice(chosen, outputs, rows, front)


def _same_at_every_load(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates whose memory is the same at every load; all where there are none."""
    return [item for item in candidates if item.settings is None or item.settings.follows_file] or candidates


def without_slower(candidates: Sequence[Candidate], slower: float | None) -> tuple[list[Candidate], list[str]]:
    """(the candidates that are not known to take more than `slower` times as long as the original, a note about the
    others). A candidate is known to if the lower end of its confidence interval is above `slower`."""
    if slower is None:
        return list(candidates), []
    refused = [item for item in candidates[1:] if item.latency and item.latency.ratio_low > slower]
    if not refused:
        return list(candidates), []
    least_refused = min(refused, key=Candidate.cost)
    assert least_refused.latency is not None
    latency = least_refused.latency
    note = Message(
        f"{len(refused)} candidates are left out by ",
        Setting("slower", slower),
        f", {least_refused.label} among them: {latency.ratio:.2f}x "
        f"({latency.ratio_low:.2f} to {latency.ratio_high:.2f}) as slow as the original",
    )
    return [item for item in candidates if item not in refused], [note]


def known_slower(rows: Sequence[SessionTaken], chosen: Candidate, slower: float | None) -> bool:
    """Whether the chosen candidate, timed again, is known to take more than `slower` times as long as the original."""
    latency = next((row.latency for row in rows[::-1] if row.settings == chosen.settings), None)
    return slower is not None and latency is not None and latency.ratio_low > slower


def least(
    job: Job,
    candidates: Sequence[Candidate],
    narrowed: Narrowed,
    ram_bytes: int | None = None,
) -> Candidate:
    """The candidate that takes least; of equals the first, so that the original ships where nothing measures less and
    the runtime's planner is not known. Where sessions were measured, first the candidate whose
    arena holds least is found for each of the settings, among files with concatenations taken apart and among the
    others. Of these, candidates are dropped whose process grows more than the smallest growth, beyond chance. The one
    whose arena holds least is the result. With `ram_bytes` only candidates that hold no more count; where there are
    none, the one that holds least is the result. `narrowed` gives a candidate its least arena. Files in strips are
    candidates only where they were asked for, so that they stand among the others; `growth` tells what they
    cost."""
    sessions = job.target.sessions
    if sessions is None or candidates[0].measured is None:
        by_runtime = job.target.place is None and candidates[0].measured is not None
        return min(candidates, key=Candidate.measured_bytes if by_runtime else Candidate.cost)
    groups: dict[tuple[str, bool], list[Candidate]] = {}
    for item in candidates:
        assert item.settings is not None
        apart = any(rewrite.kind != "row-wise" for rewrite in item.rewrites)
        groups.setdefault((item.settings.name, apart), []).append(item)
    least_held = [_least_held(group, narrowed) for group in groups.values()]
    if ram_bytes is not None:
        within = [item for item in least_held if held_bytes(item) <= ram_bytes]
        least_held = within or [min(least_held, key=Candidate.cost)]
    best = processes_of(job, sessions, least_held)
    grown = [item.process_bytes for item in best if item.process_bytes is not None]
    most = with_noise(min(grown)) if grown else 0
    return min((item for item in best if item.process_bytes is None or item.process_bytes <= most), key=Candidate.cost)


def _least_held(candidates: Sequence[Candidate], narrowed: Narrowed) -> Candidate:
    """The candidate whose arena holds least. Bytes in use are a lower bound of bytes held, so that only a few
    candidates are narrowed."""
    least: Candidate | None = None
    for item in sorted(candidates, key=in_use):
        if least is not None and in_use(item) >= least.cost()[0]:
            break
        tried = narrowed(item)
        if least is None or tried.cost() < least.cost():
            least = tried
    assert least is not None
    return least
