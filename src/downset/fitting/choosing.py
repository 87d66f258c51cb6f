"""Chooses the file that ships: the candidate that takes least, within a limit of time, and computes the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from downset.errors import InvalidPlan
from downset.fitting.candidates import Candidate, Job, compare, differences_elsewhere
from downset.fitting.measuring import least, time, without_slower
from downset.messages import Message
from downset.results.fit import Comparison
from downset.text import format_bytes

__all__ = ["Narrowed", "choose", "narrowing"]

Narrowed = Callable[[Candidate], Candidate]


def narrowing(job: Job) -> Narrowed:
    """A function that gives a candidate the settings by which its arena holds least; each is asked for once."""
    narrow_files: dict[tuple[str, int], Candidate] = {}

    def narrowed(item: Candidate) -> Candidate:
        sessions = job.target.sessions
        if sessions is None or item.settings is None or not item.settings.arena:
            return item
        key = (item.label, id(item.plan))  # what is kept refers to the plan, so that no other gets its number
        if key not in narrow_files:
            settings, taken = sessions.narrow(item.path, item.settings, shapes=job.shapes, seed=job.seed)
            narrow_files[key] = replace(item, settings=settings, measured=taken.nbytes)
        narrower = narrow_files[key]
        return replace(item, settings=narrower.settings, measured=narrower.measured)

    return narrowed


def choose(
    job: Job,
    candidates: Sequence[Candidate],
    narrowed: Narrowed,
    slower: float | None,
    too_slow: Collection[str],
    ram_bytes: int | None = None,
) -> tuple[Candidate, Comparison, list[Candidate], list[str]]:
    """(the best file that computes the same, the comparison of its outputs, the candidates among which it was chosen,
    notes). Neither the head nor the total may grow; of equals the first is chosen. `too_slow`: labels of candidates
    that are known to be too slow. With `ram_bytes` the file is one whose memory is the same at every load, if there is
    one."""
    considered = [item for item in candidates if item.label not in too_slow and not item.head_grew(candidates[0])]
    timed, notes = time(job, considered, deciding=slower is not None)
    left, said = without_slower(timed, slower)
    notes += said
    while True:
        chosen = least(job, left if ram_bytes is None else _same_at_every_load(left), narrowed, ram_bytes)
        try:
            outputs = compare(job, candidates, chosen)
            lost = min((item.arena_bytes for item in left if item.rewrites), default=chosen.arena_bytes)
            if not chosen.rewrites and lost < chosen.arena_bytes:
                notes.append(
                    f"rewriting would give an arena of {format_bytes(lost)} B, but the runtime took less memory in all "
                    "without it"
                )
            return chosen, outputs, left, notes + differences_elsewhere(job, candidates[0], chosen, outputs)
        except InvalidPlan as error:
            if not chosen.rewrites:
                raise
            notes.append(Message("not rewritten: ", error.message))
            left = [item for item in left if not item.rewrites]


def _same_at_every_load(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates whose memory is the same at every load; all where there are none."""
    return [item for item in candidates if item.settings is None or item.settings.follows_file] or candidates
