"""Holds the peak of a graph whose kernels are fused against the limit within which operators run again.

They were chosen before, by an estimate that does not know every kernel. Above the limit, a step is planned again with
less. If no plan keeps to the limit, one in which nothing runs again is tried, and the plan of least peak stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from downset.integrations.code_fingerprint import code_fingerprint
from downset.integrations.user_warning import warn_user
from downset.text import format_bytes

__all__ = ["NOTHING", "PlanAgain", "RecomputeSettings", "check_peak"]

NOTHING = 1 << 62
"""The target of the plan in which nothing runs again."""


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
    lower: list[int] = field(default_factory=list)
    """The estimated peaks of the latest graph's choices that hold less than the one that was taken."""
    targets: list[int] = field(default_factory=list)
    """The limits of later plans, of which the last holds: fused kernels held more than the limit."""
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
    """Whether PlanAgain has ended the compile of the latest of them."""

    def divides(self) -> None:
        """Take note that a graph is divided. A plan of the graph before says nothing about another one."""
        if not self.ended:
            self.divided += 1
            self.targets.clear()
            self.fused.clear()
        self.ended = False

    def target(self) -> int | None:
        return self.targets[-1] if self.targets else self.peak_bytes

    def uuid(self) -> str:
        return f"downset {code_fingerprint()} {self.peak_bytes} {self.choices} {self.link_bytes_s} {self.targets[-1:]}"

    def within(self) -> tuple[Any, ...]:
        """The settings that caches see, without the receiver of reports."""
        return self.uuid(), self.peak_bytes, self.choices, self.link_bytes_s


def check_peak(settings: RecomputeSettings, peak_bytes: int) -> None:
    """Record the peak of a graph, as reports state it; that of a plan is the most of its graphs. Above the limit it
    raises PlanAgain or, for the last plan of a step and for graphs that are not planned again, warns."""
    limit, target = settings.peak_bytes, settings.target()
    if limit is None or target is None:
        return
    settings.fused[target] = max(peak_bytes, settings.fused.get(target, 0))
    if peak_bytes <= limit:
        return
    smaller = _smaller(settings, target * limit // peak_bytes) if target != NOTHING else None
    first = settings.divided < 2  # the graphs before another one have run
    if settings.most_plans > 1 and first and (following := _next_target(settings, target, smaller)) is not None:
        settings.targets.append(following)
        settings.ended = True
        raise PlanAgain
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


def _smaller(settings: RecomputeSettings, estimate: int) -> int | None:
    """The largest peak of a choice that holds less than the one taken, up to this estimate, or the least of them."""
    within = [peak for peak in settings.lower if peak <= estimate]
    return max(within) if within else min(settings.lower, default=None)


def _next_target(settings: RecomputeSettings, target: int, smaller: int | None) -> int | None:
    """The target of the plan after one that holds more than the limit once its kernels are fused: a smaller one, then
    that of the plan in which nothing runs again, unless even its estimate is higher, and at last that of the plan that
    held least. None if that is the latest."""
    if target in (settings.peak_bytes, *settings.targets)[: len(settings.targets)]:
        return None  # it held least
    if smaller is not None and len(settings.targets) + 1 < settings.most_plans:
        return smaller
    least = min(settings.fused.values())
    if NOTHING not in settings.fused and settings.none and least > settings.none[-1]:
        return NOTHING
    best = max(of for of, peak in settings.fused.items() if peak == least)  # the largest: it runs the least again
    return None if best == target else best
