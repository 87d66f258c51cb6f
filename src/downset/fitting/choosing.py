"""Chooses the file that ships: of the candidates that keep to the policy and compute the same, that which takes least.

Where a runtime opens files with settings, a candidate is a file with its settings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from downset.errors import InvalidPlan, LimitReached, UnsupportedError
from downset.fitting.candidates import Candidate
from downset.fitting.cheap_strips import Refused, least_strips, search_cheap_strips
from downset.fitting.job import Job, Notes, policy_of
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
from downset.fitting.strip_notes import note_arithmetic
from downset.fitting.strips import StripSearch, strips_within, taken_bytes
from downset.fitting.trials import Trials, disk_bytes
from downset.messages import Message, Setting
from downset.reports.fit_sentences import ratio_text
from downset.results.comparisons import Comparison
from downset.results.policy import NO_LIMITS
from downset.results.processes import ProcessFit
from downset.results.sessions import SessionTaken
from downset.text import format_bytes

__all__ = ["Candidates", "FileChoice", "candidates_of", "choose", "least"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates as they were measured, the original first. `trials`: their times and sizes compared with those
    of the original, and the policy. `narrowed`: gives a candidate the settings by which its arena holds least.
    `limit_bytes`: the memory limit, less what the kernels named need in addition; None where there is none.
    `searches`: the short searches for strips, and `refused` the plans that do not keep to the policy. `strips`: the
    search for strips within the memory limit, where nothing within the policy fits. `beyond`: the policy does not
    count, as nothing within it fits."""

    files: Sequence[Candidate]
    trials: Trials
    narrowed: Narrowed
    limit_bytes: int | None = None
    searches: Sequence[StripSearch] = ()
    refused: Sequence[Refused] = ()
    strips: StripSearch | None = None
    beyond: bool = False

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


def candidates_of(job: Job, planned: Planned, files: Sequence[Candidate]) -> Candidates:
    """The candidates: these files, and one in strips that keeps to the policy. With a memory limit that none of them
    keeps, files in strips beyond the policy are made; if one of them fits, only the original and these are
    candidates."""
    # Sessions are timed here where a limit asks for that, else where they are told apart.
    timed = files if job.target.sessions is not None and job.options.slower is None else time(job, files)
    candidates = Candidates(timed, Trials(job, timed[0], policy_of(job.options, job.target)), narrowing(job))
    candidates = _with_cheap_strips(job, planned, candidates)
    return candidates if job.planned_bytes is None else _within_limit(job, planned, candidates)


def _with_cheap_strips(job: Job, planned: Planned, candidates: Candidates) -> Candidates:
    """The candidates with the plan in strips that takes least within the policy, where no option asks for others."""
    options = job.options
    if options.limits_strips or options.rewrite == "off":
        return candidates
    if options.front or job.planned_bytes is not None:  # another search follows, which says why it was not made
        may_search = not job.search_time.over
    else:
        may_search = job.may_search("segments in strips were not looked for")
    if not may_search:
        return candidates
    job.listener.progress("looking for segments in strips")
    may_ship = job.target.time is not None and candidates.original.measured is not None
    searches = search_cheap_strips(job, planned, may_ship=may_ship)
    candidates, trials = replace(candidates, searches=searches), candidates.trials
    if not may_ship:
        return candidates
    original = candidates.original
    kept = [file for file in candidates.files if not file.rewrites and not file.head_grew(original)]
    best = least(job, kept, candidates.narrowed)
    striped, refused = least_strips(job, searches, trials, best)
    return replace(candidates, files=[*candidates.files, *striped], refused=refused)


def _within_limit(job: Job, planned: Planned, candidates: Candidates) -> Candidates:
    """The candidates for the memory limit."""
    assert job.planned_bytes is not None
    limit = job.planned_bytes
    candidates = replace(candidates, limit_bytes=limit)
    original, narrowed, trials = candidates.original, candidates.narrowed, candidates.trials
    beside = original.measured_bytes() - original.arena_bytes if original.measured else 0
    beside = max(beside, 0) if job.target.fixed_overhead else 0

    def fits(file: Candidate, more_bytes: int = 0) -> bool:
        return stays_within(file, limit, beside + more_bytes, narrowed)

    fitting = [file for file in candidates.files if fits(file)]
    if any(map(trials.keeps, fitting)):
        return candidates
    stated = job.options.states_policy  # limits that are stated hold, also where nothing within them fits
    if stated and not job.options.limits_strips:
        return replace(candidates, strips=candidates.searches[0] if candidates.searches else None)
    if not stated:
        candidates = replace(candidates, trials=Trials(job, original, NO_LIMITS, trials.latencies), beyond=True)
        if fitting:
            return candidates
    job.may_search("not computed in strips")  # without time the search gives the bound that the verdict needs
    try:
        searches = search_in_strips(job, planned)
        striped, one_fits = strips_within(job, searches, original, limit - beside, fits)
    except UnsupportedError as error:
        job.notes.add(Message("not computed in strips: ", error.message))
        return candidates
    note_arithmetic(job, planned.best.graph, striped)
    files = [original, *striped] if one_fits and not stated else [*candidates.files, *striped]
    return replace(candidates, files=files, strips=searches[0])


def stays_within(file: Candidate, limit_bytes: int, beside_bytes: int, narrowed: Narrowed) -> bool:
    """Whether the runtime takes no more than `limit_bytes` for the candidate at every load; without a measurement
    whether the arena plus `beside_bytes` is no more."""
    if file.settings is None or file.measured is None:
        return taken_bytes(file, beside_bytes) <= limit_bytes
    if not file.settings.follows_file or file.measured["in_use_bytes"] > limit_bytes:
        return False
    return taken_bytes(narrowed(file), beside_bytes) <= limit_bytes


def choose(job: Job, candidates: Candidates) -> FileChoice:
    """The best file that keeps to the policy and computes the same, by proof or by runs. Sessions are timed a second
    time, and one that is then known to be too slow does not ship."""
    too_slow: set[str] = set()
    while True:
        attempt = replace(job, notes=Notes())
        choice = _choice(attempt, candidates, too_slow)
        latency = next((row.latency for row in choice.rows[::-1] if row.settings == choice.file.settings), None)
        if latency is None or candidates.trials.policy.standing(latency) != "above":
            job.notes.add(*attempt.notes)
            return choice
        too_slow.add(choice.file.label)


def _choice(job: Job, candidates: Candidates, too_slow: Collection[str]) -> FileChoice:
    """The best file that keeps to the policy and computes the same, other than those labelled as too slow. Neither the
    head nor the total may grow; of equals the first is chosen. With a memory limit the file is one whose memory is the
    same at every load, if there is one."""
    original, trials = candidates.original, candidates.trials
    considered = [item for item in candidates.files if item.label not in too_slow and not item.head_grew(original)]
    if original.latency is None:
        considered = time(job, considered)
    left = considered
    if job.target.sessions is not None:
        left = [item for item in considered if trials.keeps(item)]
    if candidates.limit_bytes is not None:
        left = _same_at_every_load(left)
    while True:
        chosen = least(job, left, candidates.narrowed, candidates.limit_bytes)
        if not trials.keeps(chosen):
            left = [item for item in left if item.label != chosen.label]
            continue
        try:
            outputs = compare(job, original, chosen)
            break
        except InvalidPlan as error:
            job.notes.add(Message(f"the {chosen.label} file is left out: ", error.message))
            apart = chosen.plan if chosen.rewrites else None
            left = [item for item in left if item.label != chosen.label and (apart is None or item.plan is not apart)]
        except LimitReached as error:
            job.notes.add(Message(f"not the {chosen.name} file, whose outputs were not compared: ", error.message))
            left = [item for item in left if item.name == original.name]
    _note_left_out(job, trials, considered, chosen)
    lost = min((item.arena_bytes for item in left if item.rewrites), default=chosen.arena_bytes)
    if not chosen.rewrites and lost < chosen.arena_bytes:
        job.notes.add(
            f"rewriting would give an arena of {format_bytes(lost)} B, but the runtime took less memory in all without "
            "it"
        )
    note_differences(job, original, chosen, outputs)
    rows, front = tell_apart(job, chosen, considered, candidates.narrowed)
    return FileChoice(trials.timed(chosen), outputs, rows, front)


def _same_at_every_load(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates whose memory is the same at every load; all where there are none."""
    return [item for item in candidates if item.settings is None or item.settings.follows_file] or candidates


def _note_left_out(job: Job, trials: Trials, timed: Sequence[Candidate], chosen: Candidate) -> None:
    """Add notes about candidates of less memory that the policy leaves out, and about times near its limit."""
    less = [item for item in timed if item.cost() < chosen.cost() and not trials.keeps(item)]
    if less:
        item = min(less, key=Candidate.cost)
        latency = trials.timed(item).latency
        why = "not timed" if latency is None else f"{ratio_text(latency)} the time of the original"
        if not trials.keeps_size(item):
            times = disk_bytes(item.path) / disk_bytes(trials.original.path)
            why, setting = f"{times:.2f}x the bytes on disk", Setting("larger", trials.policy.larger)
        else:
            setting = Setting("slower", trials.policy.slower)
        said = f"{item.label} is" if len(less) == 1 else f"{len(less)} candidates, {item.label} among them, are"
        job.notes.add(Message(f"{said} left out by ", setting, f": {why}"))
    for item in (*less[:1], chosen):
        trials.note_near(item)


def least(
    job: Job,
    candidates: Sequence[Candidate],
    narrowed: Narrowed,
    ram_bytes: int | None = None,
) -> Candidate:
    """The candidate that takes least; of equals the first, so that the original ships where nothing measures less and
    the runtime's planner is not known. Where sessions were measured, first the candidate whose
    arena holds least is found for each of the settings, among files with concatenations taken apart and among the
    others. Of these, candidates are dropped whose process grows more than the smallest growth, beyond chance, unless
    strips were asked for, whatever they cost. The one whose arena holds least is the result. With `ram_bytes` only
    candidates that hold no more count; where there are none, the one that holds least is the result. `narrowed` gives a
    candidate its least arena. Files in strips are candidates only where they were asked for, so that they stand among
    the others; `growth` tells what they cost."""
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
    most = with_noise(min(grown)) if grown and not job.options.limits_strips else math.inf
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
