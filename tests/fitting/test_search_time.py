"""The time limit of `fit` is one limit: all searches of a fit together get no more of it than there is."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import pytest

from downset.budget import INTERRUPTED, Budget
from downset.errors import DownsetError, LimitReached
from downset.fitting import candidates, placing, planning, preparing, proving, strips
from downset.fitting import fit as fitting
from downset.fitting.fit import fit
from downset.fitting.job import SearchTime
from downset.formats.reading import load
from downset.partial.front import PartialPlan
from downset.partial.price import Price
from downset.process.isolation import Worker
from downset.process.limits import OPERATOR_S, RUNNING_S, worker_s
from downset.results.comparisons import Proof
from downset.runtimes.compare import compare
from downset.runtimes.ort import optimise_offline
from tests.fitting.test_fit_rewrite import WITHIN, tflite_model
from tests.fitting.test_fit_strips import network
from tests.models import branchy_model

LIMIT_S = 8.0
SEARCHES = (
    (planning, "plan_together"),
    (planning, "choose_rewrites"),
    (strips, "partial_front"),
    (placing, "plan_arena"),
    (candidates, "plan_arena"),
)
"""The functions that search, where `fitting` calls them."""


class Clock:
    """A clock on which a search takes as long as it is allowed to, up to `most_s`, and everything else takes no
    time. The searches
    visit a few states each."""

    def __init__(self, monkeypatch, most_s=math.inf):
        self.now_s, self.granted, self.planned, self._most_s = 0.0, [], 0, most_s
        monkeypatch.setattr(preparing, "SearchTime", partial(SearchTime, now=lambda: self.now_s))
        for home, name in SEARCHES:
            monkeypatch.setattr(home, name, self._spending(name, getattr(home, name)))

    def _spending(self, name, search):
        def call(*arguments, **options):
            if limits := options.get("limits"):
                seconds = limits.time_limit_s
                options["limits"] = type(limits)(limits.max_recompute, limits.max_strips, 20, math.inf)
            else:
                seconds = options.pop("time_limit_s", math.inf)
                options |= {"time_limit_s": math.inf}
                if options.get("method") not in ("tflm_greedy", "litert_greedy"):
                    options["work_limit"] = 20
            seconds = min(seconds, self._most_s)
            self.granted.append((name, seconds))
            self.now_s += seconds
            return search(*arguments, **options)

        return call

    def total(self):
        return sum(seconds for _, seconds in self.granted)


def models(tmp_path):
    return {
        "strips": network(tmp_path / "strips.tflite"),
        "rewrites": tflite_model(tmp_path / "rewrites.tflite"),
        "onnx": branchy_model(tmp_path / "m.onnx"),
    }


OPTIONS = ({}, {"max_recompute": 0.5}, {"front": True}, {"ram_bytes": 2_000}, {"ram_bytes": 2_000, "strips": 4})


def fitted(path, **options):
    """The result, also where the network does not fit."""
    try:
        return fit(path, time_limit_s=LIMIT_S, **options)
    except DownsetError as error:
        return error.result


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "default")
@pytest.mark.parametrize("name", ["strips", "rewrites", "onnx"])
def test_searches_that_use_all_they_are_given_end_within_the_limit(name, options, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    if name == "onnx":  # there a limit of what is planned is that of the arena
        options = {key.replace("ram_bytes", "arena_bytes"): value for key, value in options.items()}
    result = fitted(models(tmp_path)[name], **options)
    assert clock.total() <= LIMIT_S * (1 + 1e-9)
    assert result.arena.after <= result.arena.before


@pytest.mark.parametrize(
    ("name", "options", "left_out"),
    [
        ("strips", {}, ["segments in strips were not looked for"]),
        ("strips", {"max_recompute": 0.5}, ["not computed in strips"]),
        ("strips", {"front": True}, ["no front"]),
        ("strips", {"ram_bytes": 10_000}, ["not computed in strips"]),
        ("rewrites", {}, ["not rewritten", "segments in strips were not looked for"]),
        ("onnx", {}, ["segments in strips were not looked for"]),
    ],
)
def test_after_the_limit_no_search_begins_and_the_notes_say_what_is_left_out(
    name, options, left_out, tmp_path, monkeypatch
):
    clock, model = Clock(monkeypatch), models(tmp_path)[name]
    monkeypatch.setattr(planning, "plan", _late(clock, planning.plan))
    monkeypatch.setattr(fitting, "plan", planning.plan)
    result = fitted(model, **options)
    begun = [(name, seconds) for name, seconds in clock.granted[clock.planned :] if seconds > 0]
    assert begun == []
    assert [note for note in result.notes if note.endswith(": the time limit was over")] == [
        f"{what}: the time limit was over" for what in left_out
    ]
    assert result.ram is None or result.ram.state == "not known", "what was not searched is not proven"


def _late(clock, plan):
    """`plan`, after which the time is over."""

    def call(job, graph):
        planned = plan(job, graph)
        with job.search_time.running():
            clock.now_s += 2 * LIMIT_S
        clock.planned = len(clock.granted)
        return planned

    return call


@pytest.mark.parametrize(("share", "least"), [(0.0, 2), (1.0, 1)])
def test_where_the_search_for_strips_takes_all_the_time_one_plan_is_tried(share, least, tmp_path, monkeypatch):
    clock, tried = Clock(monkeypatch, most_s=0.0), []
    search, find_peaks = strips.partial_front, placing.OrderPlacing._find_peaks

    def searching(*arguments, **options):
        clock.now_s += share * LIMIT_S
        return search(*arguments, **options)

    def finding(*arguments):
        tried.append(1)
        return find_peaks(*arguments)

    monkeypatch.setattr(strips, "partial_front", searching)
    monkeypatch.setattr(placing.OrderPlacing, "_find_peaks", finding)
    result = fit(network(tmp_path / "m.tflite"), time_limit_s=LIMIT_S, max_recompute=0.5)
    assert any(rewrite.kind == "row-wise" for rewrite in result.rewrites)
    assert len(tried) == 1 if least == 1 else len(tried) >= least


@pytest.mark.own_processes("runtimes")
def test_a_run_gets_more_time_for_each_operator(tmp_path, monkeypatch):
    asked, ask = [], Worker.ask

    def asking(worker, function, arguments, *, timeout_s=None):
        asked.append((function, timeout_s or worker_s(RUNNING_S)))
        return ask(worker, function, arguments, timeout_s=timeout_s)

    monkeypatch.setattr(Worker, "ask", asking)
    model = network(tmp_path / "m.tflite")
    operators = len(load(model).ops)
    result = fit(model, time_limit_s=0.1, output=tmp_path / "f.tflite")
    runs = {seconds for function, seconds in asked if function != "verify_here"}
    assert result.measured is not None and runs == {RUNNING_S + OPERATOR_S * operators}
    asked.clear()
    compare(model, tmp_path / "f.tflite")
    assert {seconds for function, seconds in asked if function != "verify_here"} == runs
    model = branchy_model(tmp_path / "m.onnx")
    operators = len(load(model).ops)
    asked.clear()
    optimise_offline(model, tmp_path / "o.onnx")
    assert asked == [("optimise_here", RUNNING_S + OPERATOR_S * operators)]


@pytest.mark.parametrize("proven", [True, False])
def test_where_runs_take_too_long_a_proof_ships_the_file_and_without_one_the_original_ships(
    proven, tmp_path, monkeypatch
):
    def compared(*arguments, **options):
        raise LimitReached("the runs took too long")

    monkeypatch.setattr(proving, "compare_outputs", compared)
    if not proven:
        monkeypatch.setattr(proving, "prove", lambda *_, **__: Proof(False, "no reason"))
    model = tflite_model(tmp_path / "m.tflite")
    result = fit(model, output=tmp_path / "f.tflite", time_limit_s=1, **WITHIN)
    told = [line for line in (*result.notes, result.outputs.note) if "the runs took too long" in line]
    assert told
    assert result.ships_plan is proven
    assert ((tmp_path / "f.tflite").read_bytes() == model.read_bytes()) is not proven
    assert result.outputs.proof.proven and (result.outputs.equal is None) is proven


def test_time_passes_while_a_search_runs_and_once_in_searches_inside_it():
    now_s = [0.0]
    left = SearchTime(10.0, now=lambda: now_s[0])

    def passes(seconds):
        now_s[0] += seconds

    passes(100)
    assert left.left_s == 10 and not left.over
    with left.running():
        passes(2)
        with left.running():
            passes(3)
        assert left.left_s == 5
    passes(100)
    assert left.left_s == 5
    with left.running():
        passes(6)
        assert (left.left_s, left.over) == (0, "the time limit was over")
    assert (left.left_s, left.over) == (0, "the time limit was over")


def test_none_is_left_once_it_is_interrupted():
    left, clock = SearchTime(math.inf), Budget(math.inf).start()
    assert left.left_s == math.inf and not left.over
    assert (clock.left_s(), clock.over(), clock.stopped_by()) == (math.inf, False, "")
    INTERRUPTED.set()
    try:
        assert (left.left_s, left.over) == (0, "the search was interrupted")
        assert (clock.left_s(), clock.over(), clock.stopped_by()) == (0, True, "interrupt")
    finally:
        INTERRUPTED.clear()
    assert left.left_s == clock.left_s() == math.inf


@pytest.mark.parametrize("each_s", [0.01, 0.3, 1.0, 2.5, 4.9, 6.0, 40.0])
def test_no_plan_in_strips_is_begun_that_would_end_late(each_s, monkeypatch):
    """The first is looked at and placed in any case: there is no result without it."""
    now_s = [0.0]

    def found(placing_, plan):
        now_s[0] += each_s
        placing_.peaks[plan], placing_.beside[plan] = (plan.price.peak_bytes,) * 2, 0

    def place(*_):
        now_s[0] += each_s
        return None, SimpleNamespace(arena_bytes=1000)

    monkeypatch.setattr(placing, "time", SimpleNamespace(process_time=lambda: now_s[0]))
    monkeypatch.setattr(placing, "placed", place)
    monkeypatch.setattr(placing.OrderPlacing, "_find_peaks", found)
    monkeypatch.setattr(placing.OrderPlacing, "_forms_of", lambda *_: ())
    left = SearchTime(10.0, now=lambda: now_s[0])
    plans = [PartialPlan((part,), Price(part, part)) for part in range(100)]
    placings = placing.OrderPlacing(None, {}, "ort", None, 1.0, search_time=left)
    assert placings.least(plans, lambda arena, beside: arena + beside) is not None
    assert now_s[0] <= max(10.0, 2 * each_s) + 1e-9
    assert now_s[0] > 10 - 2 * each_s or len(placings.files_of) == len(plans)  # and the time is used
