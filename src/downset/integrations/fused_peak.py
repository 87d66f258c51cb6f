"""Holds the peak of a graph whose kernels are fused against the limit within which operators run again.

They were chosen before, by an estimate that does not know every kernel. Above the limit, a step is planned again with
less; far below it, with more, so that less runs again. The cheapest plan within the limit stays. If none keeps to it,
one in which nothing runs again is tried, and the plan of least peak stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from downset.integrations.code_fingerprint import code_fingerprint
from downset.integrations.user_warning import warn_user
from downset.text import format_bytes

__all__ = ["NOTHING", "PeakCheck", "PlanAgain", "RecomputeSettings", "check_free", "check_peak"]

NOTHING = 1 << 62
"""The target of the plan in which nothing runs again."""
_FULL = 0.9
"""The share of the limit above which a plan uses it."""
_HOPED = 0.97
"""The share of the limit that a plan with more is to hold, so that few are planned in vain."""
_WORTH = 0.9
"""The most seconds that a plan with more may take for what runs again, as a share of those before: a compile until its
kernels are fused takes long."""


class PeakCheck(Protocol):
    """Takes the peak of an ordered graph, and whether it is the last of those that are compiled together."""

    def __call__(self, peak_bytes: int, *, last: bool) -> None: ...


class PlanAgain(BaseException):
    """Ends a compile before its kernels are compiled: they would hold more than the limit, and another choice of what
    runs again may hold less. Compiling again takes it. No `Exception`, because the compiler would handle it."""


@dataclass(slots=True)
class RecomputeSettings:
    peak_bytes: int | None
    """The limit; None for the least peak that takes next to no time."""
    choices: int | None
    report: Callable[[Any], None] | None
    not_within: list[int] = field(default_factory=list)
    """The peaks of graphs for which no choice keeps to the limit, as the user was told."""
    warned: list[int] = field(default_factory=list)
    """The peaks above the limit, once kernels are fused, of which the user was told."""
    front: list[tuple[int, float]] = field(default_factory=list)
    """The choices of the latest graph: their estimated peaks, and the seconds that they add."""
    taken: tuple[int, float] = (0, 0.0)
    """The one of them that was taken."""
    targets: list[int] = field(default_factory=list)
    """The limits of later plans, of which the last holds: fused kernels held more than the limit, or far less."""
    fused: dict[int, int] = field(default_factory=dict)
    """The peak of each plan once its kernels are fused, by its target."""
    none: list[int] = field(default_factory=list)
    """The estimated peak of the latest graph if nothing runs again."""
    most_plans: int = 1
    link_bytes_s: float | None = None
    """Bytes a second between the device and its host, over which results move; None if nothing does."""
    divided: int = 0
    """How many graphs were divided into a forward and a backward graph."""
    ended: bool = False
    """Whether PlanAgain has ended the compile of the latest graph."""

    def begins(self) -> bool:
        """Take note that a graph is planned. A plan of the graph before says nothing about another one. Returns whether
        it is another one."""
        ended, self.ended = self.ended, False
        if not ended:
            for of in (self.targets, self.fused, self.front, self.none):
                of.clear()
        return not ended

    def divides(self) -> None:
        """Take note that a graph is divided."""
        self.divided += self.begins()

    def plan_again(self, target: int) -> NoReturn:
        """End the compile: the next plan of this graph has that target."""
        self.targets.append(target)
        self.ended = True
        raise PlanAgain

    def target(self) -> int | None:
        return self.targets[-1] if self.targets else self.peak_bytes

    def uuid(self) -> str:
        return f"downset {code_fingerprint()} {self.peak_bytes} {self.choices} {self.link_bytes_s} {self.targets[-1:]}"

    def within(self) -> tuple[Any, ...]:
        """The settings that caches see, without the receiver of reports."""
        return self.uuid(), self.peak_bytes, self.choices, self.link_bytes_s


def check_peak(settings: RecomputeSettings, peak_bytes: int, *, last: bool) -> None:
    """Record the peak of a graph, as reports state it; that of a plan is the most of its graphs, of which this may be
    the `last`. It raises PlanAgain where another plan may hold less, or take less time within the limit; otherwise it
    warns above the limit."""
    limit, target = settings.peak_bytes, settings.target()
    if limit is None or target is None:
        return
    settings.fused[target] = max(peak_bytes, settings.fused.get(target, 0))
    above = peak_bytes > limit
    if not (above or last):
        return
    smaller = _smaller(settings, target, limit) if above else None
    first = settings.divided < 2  # the graphs before another one have run
    if settings.most_plans > 1 and first:
        following = _next_target(settings, target, smaller, limit)
        if following is not None:
            settings.plan_again(following)
    if not above:
        return
    if peak_bytes in settings.warned or (settings.not_within and target != NOTHING):
        return
    advice = f"try peak_bytes={smaller}" if smaller else "no choice that was tried holds less by that one"
    if target == NOTHING:
        advice = "it runs nothing again, because what was tried would hold more"
    elif settings.most_plans == 1:
        advice += "; a step without a limit may hold less: measure both"
    settings.warned.append(peak_bytes)
    warn_user(
        f"once its kernels are fused this graph peaks at {format_bytes(peak_bytes)} B by an estimate of what they "
        f"allocate, above the {format_bytes(limit)} B that were asked for: downset chose what runs again before, by an "
        f"estimate of its own; {advice}"
    )


def check_free(settings: RecomputeSettings, peak_bytes: int, *, last: bool) -> None:
    """Hold the peak of a whole step without a limit, in which something runs again, against the estimate of the step in
    which nothing does: kernels of the copies may hold what it saves. Above it, PlanAgain is raised for that step, and
    once more where it holds more."""
    if not (last and settings.none):
        return
    target = settings.target()
    settings.fused[target or 0] = peak_bytes
    if (target is None and peak_bytes > settings.none[-1]) or (target == NOTHING and peak_bytes > settings.fused[0]):
        settings.plan_again(NOTHING if target is None else 0)


def _smaller(settings: RecomputeSettings, target: int, limit: int) -> int | None:
    """The largest peak of a choice that is expected within the limit, by what the latest plan holds, or the least of
    all choices."""
    if target == NOTHING:
        return None
    lower = [peak for peak, _ in settings.front if peak < settings.taken[0]]
    within = [peak for peak in lower if peak <= target * limit // settings.fused[target]]
    return max(within) if within else min(lower, default=None)


def _larger(settings: RecomputeSettings, target: int, limit: int) -> int | None:
    """The largest peak of a choice that is expected within the limit and saves time; None where the latest plan uses
    the limit, or nothing is worth a compile."""
    peak, seconds = settings.taken
    held = settings.fused[target]
    if not held or held > _FULL * limit:
        return None
    most = peak * _HOPED * limit / held
    return max((of for of, cost in settings.front if peak < of <= most and cost <= _WORTH * seconds), default=None)


def _next_target(settings: RecomputeSettings, target: int, smaller: int | None, limit: int) -> int | None:
    """The target of the next plan; None if the latest one stays.

    While none keeps to the limit, it is a smaller one, then that of the plan in which nothing runs again, unless even
    its estimate is higher. While all keep to it, it is a larger one. At last it is that of the best plan."""
    if target in (settings.peak_bytes, *settings.targets)[: len(settings.targets)]:
        return None  # it is the best
    within = [of for of, peak in settings.fused.items() if peak <= limit]
    if len(settings.targets) + 1 < settings.most_plans:
        following = None
        if not within:
            following = smaller
        elif len(within) == len(settings.fused):
            following = _larger(settings, target, limit)
        if following is not None:
            return following
    least = min(settings.fused.values())
    if not within and NOTHING not in settings.fused and settings.none and least > settings.none[-1]:
        return NOTHING
    best = max(within or [of for of, peak in settings.fused.items() if peak == least])  # it runs the least again
    return None if best == target else best
