"""Chooses the file that ships: the candidate that takes least, within a limit of time, and computes the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from downset.errors import InvalidPlan
from downset.fitting.candidates import Candidate, Job, compare, differences_elsewhere
from downset.fitting.measuring import least, time, without_slower
from downset.results import Comparison
from downset.text import format_bytes

__all__ = ["Narrowed", "choose", "narrowing"]

Narrowed = Callable[[Candidate], Candidate]


def narrowing(job: Job) -> Narrowed:
    """A function that gives a candidate the settings by which its arena holds least; each is asked for once."""
    narrowed_by_label: dict[str, Candidate] = {}

    def narrowed(item: Candidate) -> Candidate:
        sessions = job.target.sessions
        if sessions is None or item.settings is None or not item.settings.arena:
            return item
        if item.label not in narrowed_by_label:
            settings, taken = sessions.narrow(item.path, item.settings, shapes=job.shapes, seed=job.seed)
            narrowed_by_label[item.label] = replace(item, settings=settings, measured=taken.nbytes)
        narrower = narrowed_by_label[item.label]
        return replace(item, settings=narrower.settings, measured=narrower.measured)

    return narrowed


def choose(
    job: Job, candidates: Sequence[Candidate], narrowed: Narrowed, slower: float | None, too_slow: Collection[str]
) -> tuple[Candidate, Comparison, list[Candidate], list[str]]:
    """(the best file that computes the same, the comparison of its outputs, the candidates among which it was chosen,
    notes). Neither the head nor the total may grow; of equals the first is chosen. `too_slow`: labels of candidates
    that are known to be too slow."""
    considered = [item for item in candidates if item.label not in too_slow and not item.head_grew(candidates[0])]
    timed, notes = time(job, considered, deciding=slower is not None)
    left, said = without_slower(timed, slower)
    notes += said
    while True:
        chosen = least(job, left, narrowed)
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
            notes.append(f"not rewritten: {error}")
            left = [item for item in left if not item.rewrites]
