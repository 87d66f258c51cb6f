"""Which choices of partial execution are priced first: a sequence that does not depend on the limits.

Source: ours.
Names: a *choice* is a segment, a number of strips, whether they advance evenly, and the operators that recompute.
    A *unit* of recomputing is an operator with the pointwise operators behind it that read only its result.
Complexity: a round for each step of work, which composes the front once and ranks the segments once.
Deviations: where a segment has at most `EVERY_SUBSET` units, every set of recomputing units is a choice. Elsewhere the
sets are all units, none, each alone, and unions of those that free the most bytes for each extra MAC.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, combinations

from downset.budget import Clock
from downset.errors import UnsupportedError
from downset.graph.core import Graph
from downset.graph.row_form import SAME, RowForm
from downset.partial.front import Option, Options, PartialPlan, Useful, compose, front_of
from downset.partial.price import Price, Pricing
from downset.partial.rewrite import InStrips
from downset.partial.segments import Cuts, Segment, find_segments
from downset.results.plans import StoppedBy, ended_by

__all__ = ["ChoiceSearch", "step_within"]

EVERY_SUBSET = 4
"""The most units of a segment of which every set is tried."""
_FIRST = 200
"""The choices before the first round: finest strips."""


@dataclass(slots=True)
class PricedStep:
    """The options at a step of work, and at the end. `whole`: the transients of the operators without strips."""

    whole: Sequence[int]
    useful: list[Useful]
    front: list[PartialPlan] | None = None

    def composed(self, clock: Clock) -> list[PartialPlan]:
        """The front, composed once; plans of lower peaks are left out where the time of the clock is up."""
        if self.front is not None:
            return self.front
        front = compose(self.whole, self.useful, clock)
        self.front = front if clock.left_s() > 0 else None
        return front


@dataclass(slots=True)
class ChoiceSearch:
    """Choices of one network, priced until a limit is reached."""

    graph: Graph
    form: RowForm
    pricing: Pricing
    max_strips: int | None
    clock: Clock
    options: Options = field(init=False)
    priced: int = 0
    complete: bool = True
    stopped_by: StoppedBy = ""
    refused: bool = False
    """Whether a limit refused a choice, so that no further one is priced."""
    apart: bool = False
    """Whether the choices to try next are ranked by prices without overlaps."""
    shown: Options = field(init=False)
    """Options with the prices by which choices are ranked."""
    prices: dict[tuple[Segment, int, bool, frozenset[int]], Price | None] = field(default_factory=dict)
    """Prices found so far."""
    steps: list[PricedStep] = field(default_factory=list)
    kept_at: int = -1
    """The number of choices priced when the last of `steps` was added."""
    next_step: int = 0
    """The number of choices priced at which the next one is added."""
    made_by: Sequence[int] = field(init=False)
    read_by: Sequence[Sequence[int]] = field(init=False)

    read_until: Sequence[int] = field(init=False)
    """`_spared_until` of the network."""

    def __post_init__(self) -> None:
        self.made_by, self.read_by = self.graph.producers(), self.graph.consumers()
        self.read_until = _spared_until(self.form)
        self.shown = self.options = Options(self.pricing.around.transient)

    def list_segments(self, cuts: Cuts, listing: Clock) -> tuple[Cuts, list[Segment]]:
        """The segments between these cuts, and whether they were all listed in time."""
        segments: list[Segment] = []
        for segment in find_segments(self.graph, self.form, cuts=cuts, most_results=2):
            if listing.left_s() == 0:
                self.stopped_by = "time"
                return replace(cuts, listed=False), segments
            segments.append(segment)
        return cuts, segments

    def _keep_step(self) -> None:
        if self.kept_at == self.priced:
            return
        self.kept_at = self.priced
        if self.apart:
            self.steps.append(PricedStep(self.shown.whole, self.shown.useful()))
        self.steps.append(PricedStep(self.options.whole, self.options.useful()))

    def explore(self, segments: Sequence[Segment], bound: int, *, apart: bool = False) -> None:
        """Price choices until a limit is reached."""
        self.apart, around = apart, self.pricing.around
        if self.pricing.model.kernels is not None:
            self.shown = Options(around.apart if apart else around.transient)
        helpful, sparing = self.ranked(segments, bound)
        self.price(helpful)
        self.price(sparing)
        self._keep_step()

    def ranked(self, segments: Sequence[Segment], bound: int) -> tuple[list[Segment], list[Segment]]:
        """(segments in which the network without strips exceeds the bound, others that may save arithmetic). In all
        other segments strips save nothing, so a plan without them is as good."""
        whole = self.shown.whole
        above = (0, *accumulate(int(nbytes > bound) for nbytes in whole))
        read_until = self.read_until
        useful, sparing = [], []
        for segment in segments:
            if above[segment.first] < above[segment.stop]:
                useful.append(segment)
            elif read_until[segment.first] < segment.stop:
                sparing.append(segment)
        return useful, sparing

    def price(self, segments: Sequence[Segment]) -> None:
        """Price choices in rounds. Each goes on to the next step of work: half of it for segments of the plans on the
        front so far, a third for the finest strips of further segments, where the most bytes are live first, and the
        rest for few strips of the segments that lead to the least peak. In the end every choice is priced."""
        highest = _highest(self.shown.whole, segments)
        waiting = deque(sorted(segments, key=lambda one: (-highest[one], one.stop - one.first, one.first)))
        finest: dict[Segment, int] = {}
        left: dict[tuple[int, int], Iterator[bool]] = {}
        few: set[Segment] = set()

        def price_finest(until: int) -> None:
            while waiting and self.priced < until and not self.refused:
                segment = waiting.popleft()
                if (least := self._finest(segment)) is not None:
                    finest[segment] = least
                    left[segment.first, segment.stop] = self._choices(segment)

        def price_next(place: tuple[int, int]) -> bool:
            """Whether the next choice of the segment at this place was one of few strips; False where none is left."""
            is_few = next(left[place], None) if place in left else False
            if is_few is None:
                del left[place]
            return bool(is_few)

        price_finest(_FIRST)
        while not self.refused and (waiting or left):
            begin = self.priced
            end = _step_after(begin)
            hot = [place for place in self._on_front() if place in left]
            while hot and self.priced < (begin + end + 1) // 2 and not self.refused:
                for place in hot:
                    price_next(place)
                hot = [place for place in hot if place in left]
            price_finest(self.priced + (end - begin) // 3)
            ranked = self._ranked(finest, highest)
            for segment in ranked:
                if segment not in few and self.priced < end and not self.refused:
                    few.add(segment)
                    while price_next((segment.first, segment.stop)) and not self.refused:
                        pass
            for segment in ranked if len(few) == len(finest) else ():
                place = segment.first, segment.stop
                while place in left and self.priced < end and not self.refused:
                    price_next(place)

    def _on_front(self) -> list[tuple[int, int]]:
        """Where the segments of the plans on the front so far begin and stop, the plans of least peak first."""
        self._keep_step()
        plans = self.steps[-2 if self.apart else -1].composed(self.clock)
        return [*dict.fromkeys((part.first, part.stop) for plan in reversed(plans) for part in plan.segments)]

    def _ranked(self, finest: Mapping[Segment, int], highest: Mapping[Segment, int]) -> list[Segment]:
        """Segments with which the least peak is possible come first, by their finest strips and those of the others."""
        before, behind = _least_around(self.shown.whole, finest)
        return sorted(
            finest,
            key=lambda one: (
                max(before[one.first], finest[one], behind[one.stop]),
                -highest[one],
                finest[one],
                one.stop - one.first,
                one.first,
            ),
        )

    def _choices(self, segment: Segment) -> Iterator[bool]:
        """Price the choices of a segment one by one: numbers of strips that are powers of two, the other numbers, then
        the sets that recompute. Yields whether it was one of the first."""
        listed = self._strips(segment)
        few = [(even, strips) for even, strips in listed if not even and strips.bit_count() == 1]
        several = [*few, *(one for one in listed if one not in few)]
        for number, (even, strips) in enumerate(several):
            self._try(segment, strips, even, frozenset())
            yield number < len(few)
        units = self._units(segment)
        if len(units) > EVERY_SUBSET:
            self.complete = False  # sets that are not tried may be better
            for option in front_of(option for option in self.shown.of(segment) if not option.part.recomputed):
                self._recompute_by_gain(segment, option, units)
                yield False
            return
        sets = [frozenset().union(*chosen) for chosen in _subsets(units) if chosen]
        for even, strips in several:
            for recomputed in sets:
                self._try(segment, strips, even, recomputed)
                yield False

    def _spent(self) -> bool:
        if self.clock.over():
            self.complete, self.refused = False, True
            self.stopped_by = ended_by((self.stopped_by, self.clock.stopped_by()))
        return self.refused

    def _finest(self, segment: Segment) -> int | None:
        """The peak of its finest strips, of even ones where no others are possible."""
        listed = self._strips(segment)
        for even in (False, True):
            strips = max((count for one, count in listed if one == even), default=0)
            price = self._try(segment, strips, even, frozenset()) if strips else None
            if price is not None:
                return price.peak_bytes
        return None

    def _strips(self, segment: Segment) -> list[tuple[bool, int]]:
        """The pairs (even, strips) to try, from few strips to many. One strip leaves out rows that nothing reads."""
        plans = []
        for even in (False, True):
            rows = self.pricing.most_strips(segment, even=even)
            counts = {-(-rows // height) for height in range(1, rows)}
            if self.read_until[segment.first] < segment.stop and not even:
                counts.add(1)
            most = self.max_strips or max(rows, 1)
            plans += [(count, even) for count in counts if count <= most]
        return [(even, count) for count, even in sorted(plans)]

    def _try(self, segment: Segment, strips: int, even: bool, recomputed: frozenset[int]) -> Price | None:
        key = segment, strips, even, recomputed
        part = InStrips(segment.first, segment.stop, strips, recomputed, even)
        if key in self.prices:
            price = self.prices[key]
        else:
            if self.priced >= self.next_step:
                self._keep_step()
                self.next_step = _step_after(self.priced)
            if self._spent():
                return None
            price = self.prices[key] = self._priced(segment, part)
        if price is None:
            return None
        if self.apart:
            price = replace(price, peak_bytes=price.apart_bytes)
        if self.shown is not self.options:
            self.shown.add(segment, Option(part, price))
        return price

    def _priced(self, segment: Segment, part: InStrips) -> Price | None:
        """The price of a choice that was not priced before; None where there are no such strips."""
        self.priced += 1
        self.clock.count(1)
        try:
            price = self.pricing.strips(segment, part.strips, recomputed=part.recomputed, even=part.even)
        except UnsupportedError:
            return None
        self.options.add(segment, Option(part, price))
        return price

    def _recompute_by_gain(self, segment: Segment, option: Option, units: Sequence[frozenset[int]]) -> None:
        strips, even, price = option.part.strips, option.part.even, option.price
        self._try(segment, strips, even, frozenset(segment.operators))
        gains = []
        for unit in units:
            alone = self._try(segment, strips, even, unit)
            if alone is not None and alone.peak_bytes < price.peak_bytes:
                gain = (price.peak_bytes - alone.peak_bytes) / max(alone.extra_macs - price.extra_macs, 1)
                gains.append((-gain, min(unit), unit))
        together: frozenset[int] = frozenset()
        for _, _, unit in sorted(gains, key=lambda item: item[:2]):
            together |= unit
            self._try(segment, strips, even, together)

    def _units(self, segment: Segment) -> list[frozenset[int]]:
        """Sets of operators that recompute together: an operator, and pointwise operators behind it that are the only
        readers. Operators that make a result of the segment always keep it, so their units are left out."""
        made_by, read_by = self.made_by, self.read_by
        unit_of: dict[int, int] = {}
        for index in segment.operators:
            op = self.form.ops[index]
            source = made_by[op.inputs[0].tensor] if op.inputs else -1
            follows = (
                source in unit_of
                and len(op.inputs) == 1
                and op.inputs[0].map == SAME
                and not op.macs_per_row
                and len(read_by[op.inputs[0].tensor]) == 1
            )
            unit_of[index] = unit_of[source] if follows else index
        units: dict[int, set[int]] = {}
        for index, unit in unit_of.items():
            units.setdefault(unit, set()).add(index)
        results = {made_by[tensor] for tensor in segment.results}
        return [frozenset(unit) for unit in units.values() if unit.isdisjoint(results)]


def _highest(whole: Sequence[int], segments: Sequence[Segment]) -> dict[Segment, int]:
    """The peak of each segment without strips."""
    highest: dict[Segment, int] = {}
    first, stop, most = -1, 0, 0
    for segment in sorted(segments, key=lambda one: (one.first, one.stop)):
        if segment.first != first:
            first, stop, most = segment.first, segment.first, 0
        most = max(most, max(whole[stop : segment.stop], default=0))
        highest[segment], stop = most, segment.stop
    return highest


def _least_around(whole: Sequence[int], finest: Mapping[Segment, int]) -> tuple[list[int], list[int]]:
    """By position: the least peak of the operators before it, and of those from it on, with any of these segments in
    their finest strips."""
    stopping, beginning = defaultdict(list), defaultdict(list)
    for segment, nbytes in finest.items():
        stopping[segment.stop].append((segment.first, nbytes))
        beginning[segment.first].append((segment.stop, nbytes))
    before, behind = [0] * (len(whole) + 1), [0] * (len(whole) + 1)
    for place, nbytes in enumerate(whole, start=1):
        alone = max(before[place - 1], nbytes)
        before[place] = min((max(before[first], peak) for first, peak in stopping[place]), default=alone)
        before[place] = min(before[place], alone)
    for place in reversed(range(len(whole))):
        alone = max(behind[place + 1], whole[place])
        behind[place] = min((max(behind[stop], peak) for stop, peak in beginning[place]), default=alone)
        behind[place] = min(behind[place], alone)
    return before, behind


_STEPS = (1, 2, 3, 5, 7)


def step_within(work: int) -> int:
    """The largest step of work that does not exceed `work`."""
    power = 10 ** (len(str(work)) - 1)
    return max((step * power for step in _STEPS if step * power <= work), default=0)


def _step_after(work: int) -> int:
    """The smallest step of work that exceeds `work`."""
    power: int = 10 ** (len(str(work)) - 1)
    return min(step * power for step in (*_STEPS, 10) if step * power > work)


def _spared(form: RowForm) -> list[tuple[int, int]]:
    """(maker, last reader) of tensors of which no single operator is known to read every row. Strips may leave rows of
    them out. A segment without such a tensor and all its readers computes every row."""
    last: dict[int, int] = {}
    read_all = set(form.outputs)
    for index, op in enumerate(form.ops):
        for item in op.inputs:
            last[item.tensor] = index
            rows = form.rows[item.tensor]
            if item.map is None or (item.map.has_no_gaps and item.map((0, op.rows), rows) == (0, rows)):
                read_all.add(item.tensor)
    return [
        (index, last.get(tensor, index))
        for index, op in enumerate(form.ops)
        for tensor in op.outputs
        if tensor not in read_all
    ]


def _spared_until(form: RowForm) -> list[int]:
    """By operator: the least last reader of a tensor of `_spared` that this or a later operator makes; without one, the
    number of operators."""
    until = [len(form.ops)] * (len(form.ops) + 1)
    for maker, last in _spared(form):
        until[maker] = min(until[maker], last)
    for index in reversed(range(len(form.ops))):
        until[index] = min(until[index], until[index + 1])
    return until


def _subsets(units: Sequence[frozenset[int]]) -> Iterator[tuple[frozenset[int], ...]]:
    return chain.from_iterable(combinations(units, size) for size in range(len(units) + 1))
