"""Chooses what ONNX Runtime opens by the growth of the whole process: forms of the model with mapped weights, against
the original with the options that users set by hand.

Candidates are few, and each is measured in one new process; those that may win are measured again, in turns with the
original by default. Where a network is so small that no process can show what is done with it, the arena decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from downset.errors import DownsetError
from downset.fitting.attempts import LEAST_GAIN, Attempt, fastest_within, smallest
from downset.fitting.candidates import Candidate
from downset.fitting.choosing import Candidates, FileChoice, choose
from downset.fitting.job import Job
from downset.fitting.mapped_forms import SameOutputs, forms_of, levels_of
from downset.fitting.measuring import in_use
from downset.fitting.planning import Planned
from downset.fitting.process_pattern import quicker
from downset.fitting.process_race import Race, measured_once, processes_moment, processes_s
from downset.fitting.proving import at_other_sizes, compare, compare_form
from downset.fitting.race_strips import RaceStrips
from downset.fitting.strip_notes import note_arithmetic
from downset.fitting.trials import in_strips
from downset.formats.onnx.data_files import stored_bytes
from downset.graph.core import Graph
from downset.messages import Message, Setting
from downset.results.comparisons import Comparison
from downset.results.policy import LARGER
from downset.results.processes import ProcessFit
from downset.results.sessions import BY_HAND, DEFAULT, TRIMMED, SessionTaken

__all__ = ["capped", "choose_by_process", "in_file_order", "race_of"]

_ROOM_BYTES = 1 << 16
"""Bytes by which a small file may be larger than the original, whatever the share."""


def race_of(job: Job, original: Candidate) -> Race | None:
    """The race of processes, in which the original by default is measured. None where the arena decides: where its
    limit or strips were asked for, where the target has no sessions or the system reports no resident memory, and where
    the network is so small that nothing done with it changes the process by as much as `LEAST_GAIN`."""
    began = processes_moment()
    default = _default_of(job, original)
    return None if default is None else Race(job, default, processes_s(began))


def in_file_order(job: Job) -> Job:
    """The job with candidates measured in the order of the file alone, where processes decide what else they are opened
    with."""
    sessions = job.target.sessions
    assert sessions is not None
    return replace(job, target=replace(job.target, sessions=replace(sessions, fitted=sessions.fitted[:1])))


def choose_by_process(job: Job, planned: Planned, candidates: Candidates, race: Race | None) -> FileChoice:
    """The file and the settings by which the process grows least, with all that was measured of processes; without a
    race the choice by the arena."""
    if race is None:
        return choose(job, _held_to_size(job, candidates))
    graph, strips = planned.best.graph, RaceStrips(job, planned, candidates, race)
    candidates = replace(candidates, files=[*candidates.files, *strips.least()])
    least, *others = least_in_use(candidates)
    job.listener.progress("measuring processes")
    same = SameOutputs(job, graph)
    race.enter(_candidates(job, same, candidates, least))
    race.enter_others(_form_attempts(job, same, others))
    while files := strips.further():
        race.enter_more(_form_attempts(job, same, files))
        candidates = replace(candidates, files=[*candidates.files, *files])
    return _chosen(job, graph, candidates, race)


def _held_to_size(job: Job, candidates: Candidates) -> Candidates:
    """The candidates under the usual limit of bytes on disk, where no other limit was asked for: a file that holds more
    constants than the original may have many times its bytes. What says how a file was made takes some itself."""
    options, policy = job.options, candidates.trials.policy
    if job.target.sessions is None or policy.larger is not None or options.limits_strips or job.planned_bytes:
        return candidates
    larger = max(LARGER, 1 + _ROOM_BYTES / stored_bytes(job.path))
    return replace(candidates, trials=replace(candidates.trials, policy=replace(policy, larger=larger)))


def least_in_use(candidates: Candidates) -> list[Candidate]:
    """The file of the fewest bytes in use, among those that keep to the policy and run in their order. Behind it the
    least of each other kind, rewritten, in strips, or neither: by what a process takes, another one may be the least.
    """
    files = [file for file in candidates.files if file.settings is not None and file.settings.follows_file]
    kept = [candidates.original, *(file for file in files if candidates.trials.keeps(file))]
    least = min(kept[1:], key=in_use, default=candidates.original)
    kinds: dict[tuple[bool, bool], Candidate] = {}
    for file in sorted(kept[1:], key=in_use):
        kinds.setdefault((bool(file.rewrites), in_strips(file)), file)
    return [least, *(file for file in kinds.values() if file is not least and file.name != "original")]


def capped(job: Job, choice: FileChoice) -> FileChoice:
    """The choice with an arena that is allowed no more than `arena_bytes`, where that was given and the session has an
    arena: a run that needs more is an error of ONNX Runtime then."""
    settings, limit = choice.file.settings, job.options.arena_bytes
    if limit is None or settings is None or not settings.arena or choice.file.measured is None:
        return choice
    if choice.file.measured["held_bytes"] > limit:
        return choice  # no file is written then
    cap = settings.with_cap(limit)
    rows = tuple(
        replace(row, settings=cap) if (row.file, row.settings) == (choice.file.name, settings) else row
        for row in choice.rows
    )
    return replace(choice, file=replace(choice.file, settings=cap), rows=rows)


def _default_of(job: Job, original: Candidate) -> Attempt | None:
    """The original by default with its first reading; None where processes do not decide."""
    by_arena = job.options.arena_bytes is not None or (job.options.limits_strips and job.options.ram_bytes is None)
    if job.target.sessions is None or original.measured is None or by_arena:
        return None
    job.listener.progress("measuring the process of the original")
    (default,) = measured_once(job, [Attempt(replace(original, settings=DEFAULT), by_hand=True)])
    if not default.readings:
        job.notes.add("the growth of the process was not measured: this system does not report it, or a run failed")
        return None
    movable = 2 * stored_bytes(job.path) + original.measured["in_use_bytes"]
    decides = job.options.ram_bytes is not None or movable >= LEAST_GAIN * default.growth.peak_bytes
    return default if decides else None


def _form_attempts(job: Job, same: SameOutputs, sources: Sequence[Candidate]) -> list[Attempt]:
    """The forms with mapped weights of these files that compute the same."""
    attempts: list[Attempt] = []
    for source in () if job.options.one_file else sources:
        for level in levels_of(source):
            count = len(attempts)
            for form in forms_of(job, source, level):
                outputs = same.of(form)
                if outputs is not None:
                    attempts.append(Attempt(form.opened(form.settings[0]), form=form, outputs=outputs))
            if len(attempts) > count:
                break
    return attempts


def _candidates(job: Job, same: SameOutputs, candidates: Candidates, least: Candidate) -> list[Attempt]:
    """The attempts other than the original by default, the likeliest first: forms with mapped weights that compute the
    same, the original with options that are set by hand, and files that need no other file. `least`: the file from
    which forms are made in addition to those of the original; in place of the original the optimised one."""
    optimised = [file for file in candidates.files if file.name == "optimised"][:1]
    second = optimised if least.name == "original" else [least]
    forms = _form_attempts(job, same, [candidates.original, *second])
    by_hand = [Attempt(replace(candidates.original, settings=settings), by_hand=True) for settings in BY_HAND]
    whole = [Attempt(replace(candidates.original, settings=TRIMMED[1]))]
    if least.name != "original":
        whole.append(Attempt(replace(least, settings=TRIMMED[0])))
    return [*forms[:2], *by_hand, *forms[2:], *whole]


def _chosen(job: Job, graph: Graph, candidates: Candidates, race: Race) -> FileChoice:
    """The choice among what the race measured."""
    while True:
        timed = race.timed()
        best = smallest(timed) if job.options.ram_bytes is None else fastest_within(timed, job.options.ram_bytes)
        try:
            outputs = _outputs(job, candidates, best)
            break
        except DownsetError as error:  # the original is not compared
            job.notes.add(Message(f"not the {best.file.label} file: ", error.message))
            race.refuse(best)
    best, default = quicker(job, race, race.narrowed(best))
    read = [*race.measured, *timed, *filter(None, [default])]
    rows = {(one.file.name, one.file.settings.name): one.row() for one in read if one.file.settings}
    by_hand = min((one for one in timed if one.by_hand), key=lambda one: one.peak_bytes)
    process = ProcessFit(tuple(rows.values()), best.row(), by_hand.row(), race.slower, race.larger)
    file = _with_arena(job, best.file)
    if in_strips(best.origin):
        note_arithmetic(job, graph, [best.origin])
    job.notes.add(race.note, *_notes(job, best, race.hopeful))
    if near := race.near(best):
        job.notes.add(f"takes about as much memory, so that another run may choose it: {near}")
    shown = (_taken(candidates.original, default or timed[0]), _taken(file, best))
    return FileChoice(file, outputs, shown, (), process)


def _outputs(job: Job, candidates: Candidates, best: Attempt) -> Comparison:
    """The comparison of what ships with the original. Raises InvalidPlan where they differ."""
    if best.form is not None and best.form.of_original:
        assert best.outputs is not None
        return at_other_sizes(job, best.file, best.outputs)
    if best.form is not None and best.form.level == "all":
        assert best.outputs is not None
        return compare_form(job, candidates.original, best.origin, best.file, best.outputs)
    return compare(job, candidates.original, best.origin)


def _with_arena(job: Job, file: Candidate) -> Candidate:
    """The candidate with what its arena holds: nothing where its settings turn the arena off."""
    sessions = job.target.sessions
    assert sessions is not None
    assert file.settings is not None
    if file.settings.options.get("enable_cpu_mem_arena") is False:
        return replace(file, measured={"total_bytes": 0, "held_bytes": 0, "in_use_bytes": 0})
    if file.mapped and file.measured is not None:
        return file
    (taken,) = sessions.measure(file.path, [file.settings], shapes=job.options.shapes, seed=job.options.seed)
    return replace(file, measured=taken.nbytes)


def _taken(file: Candidate, tried: Attempt) -> SessionTaken:
    assert file.measured is not None
    assert file.settings is not None
    measured = file.measured
    peak = tried.growth.peak_bytes
    return SessionTaken(file.name, file.settings, measured["in_use_bytes"], measured["held_bytes"], peak)


def _notes(job: Job, best: Attempt, measured: Sequence[Attempt]) -> list[str | Message]:
    if best.is_original and any(not one.is_original for one in measured):
        return [
            f"no other file is written: its process grows by no less than {LEAST_GAIN:.0%} under that of the original "
            "with its settings"
        ]
    if best.form is not None and best.form.bound is not None:
        bound = (
            "the file is for this kind of processor and this version of ONNX Runtime; elsewhere the program that opens "
        )
        if job.options.stream is None:
            return [f"{bound}it says so, and opens what runs everywhere"]
        return [Message(f"{bound}it ends and says so; ", Setting("one_file", True), " writes a file for all of them")]
    return []
