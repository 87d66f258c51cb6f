"""What ships by default: the least memory within the limits of time and file size. Times are injected, so that they are
the same in every run."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

from downset.errors import DownsetError, UsageError
from downset.fitting import cheap_strips, choosing, planning
from downset.fitting import strips as fitting_strips
from downset.fitting.cheap_strips import least_strips
from downset.fitting.fit import fit
from downset.fitting.job import FitOptions
from downset.fitting.trials import Trials
from downset.formats.reading import load
from downset.graph.cost import macs
from downset.partial.search import partial_front
from downset.reports.fit_document import fit_document
from downset.reports.fit_sentences import gain_line
from downset.reports.fit_steps import fit_next_steps
from downset.results.policy import LARGER, LARGER_MAPPED, NO_LIMITS, SLOWER, Policy
from downset.results.sessions import Latency
from downset.rewrites.concat.choose import choose_rewrites
from downset.runtimes import rounds, tflm
from downset.runtimes.targets import TARGETS
from tests.command import typed
from tests.fitting.test_fit_rewrite import tflite_model
from tests.fitting.test_fit_strips import Net, strips
from tests.models import installed_model

WORK = {"time_limit_s": math.inf, "work_limit": 1000}


def latency(ratio, spread=0.0):
    return Latency(ratio / 100, 15, ratio, ratio - spread, ratio + spread, 0.01)


def pseudo_ratio(original, path):
    """A time that grows with arithmetic and operators, never below what the arithmetic says."""
    one, other = load(original), load(path)
    return macs(other) / macs(one) + 0.004 * (len(other.ops) - len(one.ops))


@pytest.fixture
def times(monkeypatch):
    """The files that were timed, by path, with the ratio that each was given; `times.spread` widens the intervals, and
    `times.ratio` tells a time."""
    state = SimpleNamespace(given={}, spread=0.0, ratio=pseudo_ratio)

    def time(paths, limit=None, **options):
        ratios = [1.0, *(state.ratio(paths[0], path) for path in paths[1:])]
        state.given |= dict(zip(paths, ratios, strict=True))
        return [latency(ratio, state.spread * (place > 0)) for place, ratio in enumerate(ratios)]

    monkeypatch.setitem(TARGETS, "tflm", replace(TARGETS["tflm"], time=time))
    return state


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Early maps that are large, and late layers with most of the weights."""
    net = Net(6, dtype="int8")
    x = net.conv(net.start(48, 48, 2), 12, 3)
    x = net.conv(net.conv(x, 12, 3, 2), 8, 3, 2)
    x = net.conv(net.conv(x, 32, 3, 2), 48, 3, 2)
    return net.save(tmp_path_factory.mktemp("policy") / "m.tflite", [net.conv(x, 4, 1)])


def test_a_larger_limit_never_leaves_out_more():
    draw = random.Random(3)
    for _ in range(500):
        one = latency(draw.uniform(0.8, 1.6), draw.uniform(0, 0.2))
        limits = [*sorted([draw.uniform(1, 2) for _ in range(3)]), None]
        kept = [Policy(limit, limit).standing(one) == "within" for limit in limits]
        assert kept == sorted(kept) and kept[-1]
        before, after = draw.randrange(1, 1000), draw.randrange(1, 2000)
        sizes = [Policy(limit, limit).keeps_size(before, after) for limit in limits]
        assert sizes == sorted(sizes) and sizes[-1] and (after > before or all(sizes))
        for limit in limits[:-1]:
            standing = Policy(limit).standing(one)
            assert (standing == "within") == (one.ratio_high <= limit)
            assert (standing == "above") == (one.ratio_low > limit)
    assert Policy().standing(None) == "near" and NO_LIMITS.standing(None) == "within"


def test_what_may_stand_elsewhere_in_another_run_is_near():
    """Two runs of one file, whose intervals are as wide and moved by no more than their width."""
    draw, differ = random.Random(4), 0
    for _ in range(2000):
        ratio, spread = draw.uniform(0.9, 1.3), draw.uniform(0.001, 0.1)
        one, other = latency(ratio, spread), latency(ratio + draw.uniform(-2, 2) * spread, spread)
        standings = [Policy().standing(each) for each in (one, other)]
        if standings[0] != standings[1]:
            differ += 1
            assert Policy().is_near(one) and Policy().is_near(other)
    assert differ > 100
    assert not Policy().is_near(latency(1.0, 0.01)) and not Policy().is_near(latency(1.2, 0.01))


@pytest.mark.parametrize("wide", [False, True])
def test_a_choice_that_the_time_limit_changed_is_told(model, times, tmp_path, wide):
    """A slower machine is one with less time. Times of runs are injected; so only the searches may differ."""
    path = model
    if wide:
        net = Net(8, dtype="int8")
        made = [net.start(12, 12, 3)]
        for place in range(24):
            made.append(net.conv(made[max(0, place - 5 * (place % 3))], 3 + 5 * (place % 4), 3))
        path = net.save(tmp_path / "wide.tflite", [net.concat(made[-8:])])
    files, told = {}, {}
    for seconds in (1e-4, 0.01, 0.1, 30.0):
        result = fit(path, output=tmp_path / "o.tflite", time_limit_s=seconds)
        files[seconds] = (tmp_path / "o.tflite").read_bytes()
        told[seconds] = any("the time limit ended a search" in note for note in result.notes)
    assert told[1e-4]
    assert len({data for seconds, data in files.items() if not told[seconds]}) <= 1
    changed = [seconds for seconds, data in files.items() if data != files[30.0]]
    assert (changed or wide) and all(told[seconds] for seconds in changed if not told[30.0])


def test_a_number_ends_the_trials_and_not_the_time_that_they_take(model, times, tmp_path, monkeypatch):
    """So that a busy machine ships the same file. What is left out is told."""
    monkeypatch.setattr(cheap_strips, "_TIMED", 0)
    result = fit(model, output=tmp_path / "o.tflite", time_limit_s=30.0)
    assert not strips(result)
    assert any(note == "further plans in strips were not tried: 0 files were timed" for note in result.notes)
    assert not any("the time limit ended a search" in note for note in result.notes)


@pytest.mark.parametrize("late", [0, 1])
def test_a_form_in_which_time_ended_the_search_is_told_whichever_it_is(model, times, tmp_path, monkeypatch, late):
    """The searches of both forms of a network end by their numbers of choices, but for one, which time ends."""
    searched = itertools.count()

    def one_late(graph, **options):
        front = partial_front(graph, **options)
        return replace(front, stopped_by="time" if next(searched) == late else "work")

    monkeypatch.setattr(fitting_strips, "partial_front", one_late)
    result = fit(model, output=tmp_path / "o.tflite", time_limit_s=30.0)
    assert next(searched) > 2 and any("the time limit ended a search" in note for note in result.notes)


def test_time_that_ends_the_search_for_rewritings_is_told(tmp_path, times, monkeypatch):
    path = tflite_model(tmp_path / "m.tflite")

    def late(graph, **options):
        return replace(choose_rewrites(graph, **options), in_time=False)

    notes = {}
    for search in (choose_rewrites, late):
        monkeypatch.setattr(planning, "choose_rewrites", search)
        notes[search] = fit(path, output=tmp_path / "o.tflite", time_limit_s=30.0).notes
    told = [
        search for search, listed in notes.items() if any("the time limit ended a search" in note for note in listed)
    ]
    assert told == [late]


def test_options_state_the_policy_and_strips_that_are_asked_for_lift_the_defaults():
    options = FitOptions("m")
    assert options.policy() == Policy(SLOWER, LARGER) and options.policy(mapped=True) == Policy(SLOWER, LARGER_MAPPED)
    assert replace(options, slower=2.0, larger=3.0).policy(mapped=True) == Policy(2.0, 3.0)
    for asked in ({"max_recompute": 0.0}, {"strips": 2}):
        assert replace(options, **asked).policy() == NO_LIMITS
        assert replace(options, **asked, slower=1.5).policy() == Policy(1.5, None)


def test_what_ships_is_within_the_limits_and_larger_limits_never_ship_more_bytes(model, times):
    """The oracle: all plans that are tried where every one of them is refused, with their bytes, times and sizes."""
    size, shipped, tried = model.stat().st_size, {}, []

    class Refusing(Trials):
        def keeps_size(self, file):
            taken = tflm.measure(file.path).total_bytes
            tried.append((taken, pseudo_ratio(model, file.path), file.path.stat().st_size))
            return False

    def every_limit(job, searches, trials, best):
        least_strips(job, searches, Refusing(job, trials.original, NO_LIMITS), best)
        for slower, larger in product((1.03, 1.06, 1.1, None), (1.05, 1.1, 1.25, None)):
            files, _ = least_strips(job, searches, Trials(job, trials.original, Policy(slower, larger)), best)
            most = slower or math.inf, larger or math.inf
            for file in files:
                assert file.latency.ratio_high <= most[0] and file.path.stat().st_size <= most[1] * size
            kept = [nbytes for nbytes, ratio, file in tried if ratio <= most[0] and file <= most[1] * size]
            shipped[most] = min(file.measured_bytes() for file in (best, *files))
            assert shipped[most] == min([best.measured_bytes(), *kept])
        return least_strips(job, searches, trials, best)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(choosing, "least_strips", every_limit)
        default = fit(model, **WORK)
    assert len(tried) > 3 and strips(default)
    for (limits, nbytes), (others, more_bytes) in product(shipped.items(), repeat=2):
        assert any(map(float.__gt__, map(float, limits), map(float, others))) or more_bytes <= nbytes
    assert len(set(shipped.values())) > 3, "the cases tell limits apart"
    assert default.measured.after == shipped[SLOWER, LARGER] < default.measured.before


def test_the_same_times_give_the_same_file(model, times, tmp_path):
    files = [tmp_path / f"{number}.tflite" for number in range(2)]
    results = [fit(model, output=path, **WORK) for path in files]
    assert strips(results[0]) and files[0].read_bytes() == files[1].read_bytes()


def test_the_upper_end_of_an_interval_decides_and_what_is_near_is_told(model, times):
    """An order is refused only where it is surely slower, since it runs the same operators."""
    times.ratio = lambda original, path: 1.0
    whole = fit(model, rewrite="off", slower=1.0, larger=1.0, **WORK)
    assert not strips(whole)
    for spread, ships, near in ((0.01, True, False), (0.06, True, True), (0.11, False, True)):
        times.spread = spread
        result = fit(model, **WORK)
        assert bool(strips(result)) is ships
        assert any("is near the limit (slower=1.1)" in note for note in result.notes) is near
        assert ships or result.measured.after == whole.measured.after
    times.spread, times.ratio = 0.0, lambda original, path: 1.2
    result = fit(model, **WORK)
    assert result.shipped == "original"


def test_the_runtime_is_not_named_as_the_reason_where_the_policy_is(times):
    times.spread, times.ratio = 0.0, lambda original, path: 1.2
    result = fit(installed_model("pymicro-wakeword", "alexa.tflite"), **WORK)
    assert result.shipped == "original" and result.together.arena.arena_bytes < result.arena.after
    assert gain_line(result) == "A smaller plan exists, beyond the limits of time and file size."
    assert not any("the runtime took less memory" in note for note in result.notes)
    assert any("left out by slower=1.1: " in note for note in result.notes)


def test_what_was_refused_is_offered_with_the_limits_that_ship_it(model, times):
    for limits in ({"slower": 1.01, "larger": 9.0}, {"slower": 9.0, "larger": 1.05}):
        few = fit(model, **limits, **WORK)
        (step,) = (step for step in fit_next_steps(few) if step.text.startswith("Where memory counts more"))
        more = eval(
            step.text.split("(", 1)[1].split("): strips")[0], {"downset": SimpleNamespace(fit=fit), "math": math}
        )
        assert more.measured.after <= few.measured.after - step.gained_bytes


def test_nothing_timed_ships_no_strips(model, monkeypatch):
    monkeypatch.setitem(TARGETS, "tflm", replace(TARGETS["tflm"], time=None, measure=None))
    result = fit(model, **WORK)
    assert not strips(result) and result.in_strips is not None


def test_files_that_bring_no_code_are_timed_and_run_as_ever_with_trust(model, times, tmp_path):
    """With trust nothing was timed, and PyTorch was to run files of every format: `fit` ended with a LoadError."""
    files = [tmp_path / f"{trust}.tflite" for trust in (False, True)]
    results = [fit(model, output=path, trust=trust, **WORK) for path, trust in zip(files, (False, True), strict=True)]
    assert strips(results[0]) and files[0].read_bytes() == files[1].read_bytes()
    assert results[0].outputs == results[1].outputs


def test_a_memory_limit_goes_beyond_the_defaults_only_where_nothing_within_them_fits(model, times):
    default = fit(model, **WORK)
    within = fit(model, ram_bytes=default.measured.after, **WORK)
    assert (within.measured.after, within.beyond_policy) == (default.measured.after, False)
    times.ratio = lambda original, path: 2.0
    whole = fit(model, slower=2.0, max_recompute=0.0, **WORK).measured.after
    limit = (whole + fit(model, slower=1.0, **WORK).measured.after) // 2
    beyond = fit(model, ram_bytes=limit, **WORK)
    assert beyond.beyond_policy and beyond.measured.after <= limit
    said = fit_document(beyond).verdict.detail
    assert "Nothing within the limits of time and file size (--slower 1.10x and --larger 1.25x) fits" in typed(said)
    with pytest.raises(DownsetError) as stated:
        fit(model, ram_bytes=limit, slower=1.1, **WORK)
    assert stated.value.result.ram.state == "not known"


@pytest.mark.parametrize("asked", [{"strips": 8}, {"max_recompute": 0.1}])
def test_strips_that_are_asked_for_are_searched_under_a_stated_limit_of_time_and_one_of_memory(model, times, asked):
    """What ships without the limit of memory fits it; and nothing is proven by what the limit of time leaves out."""
    times.ratio = lambda original, path: 2.0
    shipped = fit(model, slower=2.0, **asked, **WORK)
    limit = shipped.measured.after
    assert strips(shipped) and limit < fit(model, slower=1.0, **WORK).measured.after
    assert fit(model, ram_bytes=limit, slower=2.0, **asked, **WORK).measured.after <= limit
    with pytest.raises(DownsetError) as stated:
        fit(model, ram_bytes=limit, slower=1.1, **asked, **WORK)
    assert stated.value.result.ram.state == "not known"
    assert not strips(stated.value.result)


def test_limits_below_one_are_refused(model):
    for name in ("slower", "larger"):
        with pytest.raises(UsageError, match=f"{name} must be a factor from 1"):
            fit(model, **{name: 0.9})


class Clock:
    """A clock that a run of a file moves on."""

    def __init__(self, monkeypatch, ratios, noise=0.0):
        self.now, self.draw, self.runs = 0.0, random.Random(5), [0] * len(ratios)
        monkeypatch.setattr(rounds.time, "process_time", lambda: self.now)
        self.files = [(lambda: None, self._run(place, ratio, noise)) for place, ratio in enumerate(ratios)]

    def _run(self, place, ratio, noise):
        def run():
            self.runs[place] += 1
            self.now += 0.01 * ratio * (1 + self.draw.uniform(-noise, noise))

        return run


@pytest.mark.parametrize(
    ("ratios", "noise", "limit", "counted"),
    [
        ((1.0, 1.02), 0.0, None, rounds.ROUNDS),
        ((1.0, 1.02), 0.01, 1.1, 6),
        ((1.0, 1.08), 0.02, 1.1, rounds.ROUNDS),
        ((1.0, 1.5), 0.01, 1.1, 6),
        ((1.0, 1.1), 0.2, 1.1, rounds.DECIDED_ROUNDS),
        ((300.0, 310.0), 0.0, 1.1, 1),
        ((1.0,), 0.0, 1.1, rounds.ROUNDS),
    ],
)
def test_rounds_go_on_while_a_limit_lies_in_the_interval_and_there_is_time(ratios, noise, limit, counted, monkeypatch):
    clock = Clock(monkeypatch, ratios, noise)
    seconds = rounds.round_seconds(clock.files, limit=limit, budget_s=2.0)
    assert len(seconds) == counted and clock.runs[0] == counted + (counted > 1)
    for column, ratio in zip(seconds.T, ratios, strict=True):
        assert column == pytest.approx(0.01 * ratio, rel=1.01 * noise or 1e-9)


def test_short_runs_are_repeated_until_a_clock_can_tell_them_apart(monkeypatch):
    clock = Clock(monkeypatch, (0.01, 0.02))
    seconds = rounds.round_seconds(clock.files)
    assert clock.runs[0] == clock.runs[1] > 20 * rounds.ROUNDS
    assert seconds.T[0] == pytest.approx(1e-4) and seconds.T[1] == pytest.approx(2e-4)
