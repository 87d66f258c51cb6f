"""The search for stages and the choice among whole schedules: what is found, refused, left out, and said."""

import json
import math
import re
from dataclasses import replace

import jsonschema
import onnx
import pytest

from downset.errors import InvalidPlan, UnsupportedError, UsageError
from downset.executor.arena import seeded_inputs
from downset.executor.device import open_device
from downset.executor.stage_engine import check_plan, stage_engine
from downset.formats.reading import load
from downset.graph.core import fingerprint
from downset.reports.json_form import json_of
from downset.reports.stages import peer_lines, stage_document
from downset.reports.terminal import text_of
from downset.reports.time_steps import stage_next_steps
from downset.results.plans import Evidence, StagePlan
from downset.results.stages import StageCandidate, StageResult, peer_times
from downset.stages.check import verify_stages
from downset.stages.prepared import planned_graph, prepare
from downset.stages.problem import Stage
from downset.stages.unit_graph import PATTERNS, group_units
from downset.tuning.choice import Timed, choose, noise
from downset.tuning.search import StageLimits
from downset.tuning.timer import StageTimer
from downset.tuning.tune import tune_stages
from tests.cli.test_cli import SCHEMAS
from tests.command import typed
from tests.executor.test_stages import close, expected
from tests.networks import branchy, random_network


@pytest.mark.parametrize("batch", [None, 3])
def test_search_measure_choose_run(tmp_path, batch):
    path = branchy(tmp_path / "m.onnx")
    graph = prepare(load(path), batch=batch)
    device = open_device("cpu", threads=2)
    result = tune_stages(graph, device, limits=StageLimits(timings=30), runs=3)
    plan = result.plan
    verify_stages(planned_graph(graph, plan), plan)
    assert result.timings_used <= len(plan.units) + 30
    assert [candidate.name for candidate in result.candidates][:2] == ["sequential", "greedy"]
    assert all(len(candidate.seconds) == 3 for candidate in result.candidates)
    assert plan.evidence.method in [candidate.name for candidate in result.candidates]
    assert (result.speedup == 1.0) == (plan.evidence.method == "sequential")
    values = seeded_inputs(graph)
    engine = stage_engine(graph, plan, device, values)
    close([value.numpy() for value in engine.outputs()], expected(path, graph, values, batch or 1))
    engine.close()


def test_a_plan_for_something_else_is_refused(tmp_path):
    loaded = load(branchy(tmp_path / "m.onnx"))
    graph = prepare(loaded)
    device = open_device("cpu", threads=2)
    plan = tune_stages(graph, device, limits=StageLimits(timings=1), runs=1).plan
    check_plan(graph, plan, device)
    with pytest.raises(InvalidPlan, match="batch 1, not for 2"):
        check_plan(prepare(loaded, batch=2), plan, device)
    with pytest.raises(InvalidPlan, match="1 thread"):
        check_plan(graph, plan, open_device("cpu", threads=1))
    other = prepare(load(branchy(tmp_path / "other.onnx", channels=5)))
    assert fingerprint(other) != plan.model
    with pytest.raises(InvalidPlan, match="model"):
        check_plan(other, plan, device)


def test_one_operator_and_no_operator(tmp_path):
    one = prepare(load(random_network(tmp_path / "m.onnx", seed=5, operators=1)))
    result = tune_stages(one, open_device("cpu", threads=2), runs=1)
    assert result.plan.evidence.method == "sequential"
    empty = replace(one, ops=(), outputs=one.inputs)
    with pytest.raises(UnsupportedError, match="nothing to stage"):
        tune_stages(empty, open_device("cpu"))


def test_an_operator_without_a_kernel_is_named(tmp_path):
    graph = load(branchy(tmp_path / "m.onnx"))
    ops = tuple(replace(op, kind="NonMaxSuppression") if op.kind == "MaxPool" else op for op in graph.ops)
    with pytest.raises(UnsupportedError, match=r"MaxPool_.*NonMaxSuppression \(1"):
        tune_stages(replace(graph, ops=ops), open_device("cpu"))


def timed(rounds, sequential=(1.0, 1.1), best="other"):
    others = [StageCandidate("other", (), False, (0.8, 0.9))] if best else []
    return Timed((StageCandidate("sequential", (), False, sequential), *others), best, tuple(rounds))


def test_a_winner_by_luck_is_not_taken():
    """Of equal candidates the best of the first rounds is no better in fresh ones."""
    chosen, gain, why = choose(timed((1.0, 1.01 if at % 2 else 0.99) for at in range(20)))
    assert (chosen.name, gain) == ("sequential", 1.0)
    assert "not beyond the spread" in why
    chosen, gain, _ = choose(timed([(1.0, 0.8)] * 20))
    assert (chosen.name, gain) == ("other", 1.25)
    assert choose(timed([], best=""))[0].name == "sequential"


def test_timings_that_tell_nothing_say_so():
    """A machine under load: each round may be twice another."""
    wild = timed(((1.0, 2.0 if at % 2 else 0.5) for at in range(20)), sequential=(1.0, 1.0, 2.0, 2.5))
    chosen, gain, why = choose(wild)
    assert (chosen.name, gain) == ("sequential", 1.0)
    assert "vary too much for a verdict" in why
    assert "quiet machine" in why
    assert "sequential alone took" in noise(wild)
    assert noise(timed([])) is None
    # A clear win is one though the other's rounds spread; where sequential's own do, nothing is concluded.
    assert choose(timed((1.0, 0.9 if at % 2 else 0.3) for at in range(20)))[0].name == "other"
    loud = timed((2.0 if at % 2 else 1.0, 0.3) for at in range(20))
    assert choose(loud)[0].name == "sequential"
    assert "quiet machine" in choose(loud)[2]


def test_rounds_that_are_all_lost_are_an_answer():
    """Both run in each round, so a count of rounds tells however far the times spread."""
    loud = timed(((2.0 if at % 2 else 1.0), 16.0) for at in range(15))
    chosen, _, why = choose(loud)
    assert chosen.name == "sequential" and why.startswith(
        "the best other, other, was slower than sequential in each of"
    )
    assert "quiet machine" not in why and "vary too much" not in why
    one_won = timed((1.0, 0.5 if at == 3 else 2.0) for at in range(15))
    assert "slower than sequential in 14 of 15" in choose(one_won)[2]


def test_the_candidate_that_is_asked_for_is_taken_whatever_its_time_is():
    slower = timed([(1.0, 2.0)] * 15)
    chosen, gain, why = choose(slower, required=True)
    assert (chosen.name, gain) == ("other", 0.5)
    assert why.startswith("it was asked for, and was slower than sequential in each of 15")
    chosen, gain, why = choose(timed([], best=""), required=True)
    assert (chosen.name, gain, why) == ("sequential", 1.0, "it was asked for")


def test_every_candidate_can_be_asked_for(tmp_path, monkeypatch):
    """The plan has its stages, or those of the candidate that is the same."""
    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    monkeypatch.setattr(StageTimer, "_measure", by_formula)
    device = open_device("cpu", threads=2)
    listed = {one.name: one for one in tune_stages(graph, device, runs=1).candidates}
    assert len(listed) > 3
    for name in ("sequential", "greedy", "parallel", "merge", "both", "both, barriers"):
        result = tune_stages(graph, device, runs=1, candidate=name)
        taken = result.plan.evidence.method
        assert result.asked and (
            taken == name or (name not in listed and result.why.startswith(f"{name} has the same"))
        )
        assert (result.plan.stages, result.plan.barriers) == (listed[taken].stages, listed[taken].barriers)
        verify_stages(planned_graph(graph, result.plan), result.plan)
        assert json_of(stage_document(result))["asked"]
    with pytest.raises(UsageError, match="did you mean 'greedy'"):
        tune_stages(graph, device, runs=1, candidate="greed")
    with pytest.raises(UsageError, match="pools swapped' is not one of this network's: 'sequential', 'greedy'"):
        tune_stages(
            prepare(load(random_network(tmp_path / "one.onnx", seed=5, operators=1))),
            device,
            runs=1,
            candidate="greedy, pools swapped",
        )


def by_formula(self, stage):
    """A time of a stage that is the same again, far below real ones: groups side by side help, and merging more."""
    units, longest = len(stage.units), max(map(len, stage.groups))
    return 1e-9 * (1.5 if stage.merged else longest + 0.1 * units if len(stage.groups) > 1 else units)


@pytest.mark.parametrize(
    ("network", "limits", "named"),
    [
        ("branchy", {}, set()),
        ("branchy", {"timings": 5}, {"timings"}),
        ("branchy", {"timings": 20}, {"timings"}),
        ("branchy", {"max_ops": 1}, {"max_ops"}),
        ("branchy", {"max_groups": 2}, {"max_groups"}),
        ("branchy", {"work": 100}, {"work"}),
        ("branchy", {"seconds": 1e-5}, {"seconds"}),
        ("branchy", {"all_seconds": 1e-9}, {"all_seconds"}),
        ("random", {"timings": 200}, {"timings"}),
        ("random", {"timings": 400}, {"max_ops", "timings"}),
        ("chain", {"timings": 1, "max_ops": 1, "max_groups": 1, "seconds": 1e-9}, set()),
    ],
)
def test_a_limit_is_named_only_where_a_larger_one_times_more_stages(tmp_path, monkeypatch, network, limits, named):
    """The search with the named values times more stages than the one whose limits ended or narrowed it."""
    monkeypatch.setattr(StageTimer, "_measure", by_formula)
    path = tmp_path / "m.onnx"
    if network == "chain":
        chain(path, 6)
    else:
        branchy(path) if network == "branchy" else random_network(path, seed=3, operators=16)
    graph, device = prepare(load(path)), open_device("cpu", threads=1)
    result = tune_stages(graph, device, limits=StageLimits(**limits), runs=1)
    assert set(result.further) == named
    for name, value in result.further.items():
        assert value > getattr(StageLimits(**limits), name)
    steps = [
        step.text for step in stage_next_steps(replace(result, bound_s=1e-12)) if step.text.startswith("Time more")
    ]
    if not named:
        assert steps == []
        return
    (step,) = steps
    assert all(f"{name}=" in step for name in named)
    option = {"timings": "--budget-timings", "seconds": "--time-limit", "work": "--work-limit"}
    assert all(option.get(name, name.replace("max_", "--max-")) in typed(step, "stage") for name in named)
    more = tune_stages(graph, device, limits=StageLimits(**{**limits, **result.further}), runs=1)
    assert more.timings_used > result.timings_used


def chain(path, length):
    names = [f"t{at}" for at in range(length + 1)]
    kinds = ("Sin", "Cos", "Relu")
    nodes = [onnx.helper.make_node(kinds[at % 3], [names[at]], [names[at + 1]]) for at in range(length)]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in (names[0], names[-1])]
    model = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(onnx.helper.make_model(model, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), str(path))


def beside(ours, theirs):
    """The step to a candidate of less memory, with these seconds by round."""
    plan = StagePlan(((0,),), (Stage(((0,),)),), True, "", "", "", "", 1, 0, "", Evidence("fast", 1, 1, True))
    candidates = (StageCandidate("both, barriers", (), True, theirs, 5), StageCandidate("fast", (), True, ours, 9))
    (step,) = stage_next_steps(StageResult(plan, candidates, 1, None, 1.0, ""))
    return step.text


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ((1.0,) * 15, (1.25,) * 15, "it was slower in 15 of 15 rounds (measured), by 250 ms in the median."),
        ((1.0,) * 15, (0.75,) * 15, "it was faster in 15 of 15 rounds (measured), by 250 ms in the median."),
        ((1.0, 4.0) * 8, (2.0, 8.0) * 8, "slower in 16 of 16 rounds (measured); by how much is not known, because"),
        ((1.0, 2.0) * 8, (2.0, 1.0) * 8, "whether it is slower is not known"),
        ((1.0,) * 15, (1.0,) * 15, "whether it is slower is not known"),
    ],
)
def test_what_less_memory_costs_is_told_only_where_it_is_known(ours, theirs, says):
    said = beside(ours, theirs)
    assert said.startswith("Where memory counts more, take the candidate both, barriers (candidate='both, barriers'): ")
    assert says in said and " 0 s " not in said


def test_others_beside_the_plan_and_when_nothing_is_said_of_them():
    assert peer_lines({}) == peer_lines({"downset": [1.0]}) == []
    times = {"downset": [0.02] * 9, "PyTorch": [0.03] * 9, "ONNX Runtime": [0.01] * 9}
    assert peer_lines(times) == [] and peer_times(times).ratio("ONNX Runtime") == "2.00x"
    assert peer_lines({"downset": [0.02] * 9, "PyTorch": [0.03] * 9}) == []
    wild = [0.02, 0.02, 0.04, 0.08]
    # Times that do not overlap tell, however far one of them spreads.
    faster = {"downset": wild, "ONNX Runtime": [0.001] * 4}
    assert peer_lines(faster) == []
    assert peer_times(faster).ratio("ONNX Runtime") == "20.00x or more (the p10 of this plan over its p90)"
    assert peer_lines({"downset": [0.001] * 4, "ONNX Runtime": wild}) == []
    for ours, others in ((wild, [0.025] * 4), ([0.025] * 4, wild)):
        (said,) = peer_lines({"downset": ours, "ONNX Runtime": others, "PyTorch": [1.0] * 4})
        assert said.startswith("it is not known whether ONNX Runtime is faster")


def test_runtimes_are_timed_apart_from_each_other(monkeypatch):
    """A run that follows another runtime's shares processors with threads of that runtime that still look for work."""
    device, said = open_device("cpu"), []
    monkeypatch.setattr("downset.executor.device.time.sleep", lambda seconds: said.append("rest"))
    calls = {name: lambda _, name=name: said.append(name) for name in ("one", "two")}
    device.time_whole(calls, [], runs=1, apart=True)
    assert [said[at : at + 3] for at in range(0, len(said), 3)] == [
        ["rest", name, name] for name in ("one", "two", "two", "one", "one", "two")
    ]


def test_a_block_with_too_many_endings_is_cut_and_searched(tmp_path, monkeypatch):
    from downset.stages import endings

    graph = prepare(load(random_network(tmp_path / "m.onnx", seed=3, operators=16)))
    monkeypatch.setattr(endings, "_MOST_PAIRS", 60)
    # More timings than there are stages: what is searched is searched to the end.
    result = tune_stages(graph, open_device("cpu", threads=1), limits=StageLimits(timings=10_000), runs=3)
    cuts = [note for note in result.notes if "were cut into" in note]
    assert len(cuts) == len(set(cuts)) > 0, "a cut holds for all strategies"
    assert not any("was not searched" in note for note in result.notes)
    verify_stages(planned_graph(graph, result.plan), result.plan)


def test_patterns_of_units_can_be_replaced(tmp_path):
    path = branchy(tmp_path / "m.onnx")
    graph = prepare(load(path))
    device = open_device("cpu", threads=2)
    values = seeded_inputs(graph)
    for patterns, largest in (((), 1), ((("Conv", "Relu"),), 2), ((("Concat", "Relu"),), 1), (PATTERNS, 3)):
        plan = tune_stages(graph, device, limits=StageLimits(timings=5, patterns=patterns), runs=1).plan
        assert max(map(len, plan.units)) == largest, patterns
        check_plan(graph, plan, device)
        engine = stage_engine(graph, plan, device, values)
        close([value.numpy() for value in engine.outputs()], expected(path, graph, values))
        engine.close()


def test_sequential_is_timed_once_whatever_its_order(tmp_path, monkeypatch):
    from downset.tuning.search import StageSearch

    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    predecessors = group_units(graph).predecessors
    order = list(range(len(predecessors)))
    at = next(at for at in order[:-1] if not predecessors[at + 1] >> at & 1)
    order[at], order[at + 1] = order[at + 1], order[at]
    monkeypatch.setattr(StageSearch, "stages", lambda *_: tuple(Stage(((unit,),)) for unit in order))
    result = tune_stages(graph, open_device("cpu", threads=2), runs=1)
    flat = [c for c in result.candidates if not c.variant and all(len(s.units) == 1 for s in c.stages)]
    assert [candidate.name for candidate in flat] == ["sequential"]


def test_without_time_blocks_are_left_unsearched_and_said(tmp_path):
    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    result = tune_stages(graph, open_device("cpu", threads=1), limits=StageLimits(all_seconds=1e-9), runs=3)
    assert any("no time was left" in note for note in result.notes)
    verify_stages(planned_graph(graph, result.plan), result.plan)
    with pytest.raises(UsageError, match="above 0 s"):
        StageLimits(all_seconds=0)


@pytest.mark.parametrize(("unit_s", "known"), [(1e-9, True), (100.0, False)])
def test_no_bound_is_stated_that_a_candidate_beats(tmp_path, monkeypatch, unit_s, known):
    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    monkeypatch.setattr(StageTimer, "_measure", lambda self, stage: unit_s * len(stage.units))
    result = tune_stages(graph, open_device("cpu", threads=1), runs=3)
    fastest = min(candidate.percentile(0.1) for candidate in result.candidates)
    assert result.plan.evidence.bound <= fastest
    assert any("no bound is known" in note for note in result.notes) != known
    printed = {"kind": "stage", "schema": 1, "ok": True, "error": None, **json_of(stage_document(result))}
    jsonschema.validate(printed, json.loads((SCHEMAS / "stage.json").read_text()))
    text = text_of(stage_document(result))
    if known:
        assert 0 < printed["bound_s"] <= fastest
        assert re.search(r"bound: \S+ .*s \(the longest path", text)
    else:
        assert printed["bound_s"] is None
        assert "bound: not known" in text


def test_limits_that_are_none(tmp_path):
    for limit in ({"timings": math.nan}, {"max_ops": math.nan}, {"max_groups": 10**20}, {"timings": 0}):
        with pytest.raises(UsageError, match="from 1 to"):
            StageLimits(**limit)
    for limit in ({"seconds": math.nan}, {"all_seconds": math.nan}, {"seconds": -1.0}):
        with pytest.raises(UsageError, match="above 0 s"):
            StageLimits(**limit)
    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    for wrong in ({"runs": 0}, {"seed": -1}):
        with pytest.raises(UsageError, match="at least"):
            tune_stages(graph, open_device("cpu", threads=1), limits=StageLimits(timings=1), **wrong)
    for threads in (0, 1025, 10**20, math.nan):
        with pytest.raises(UsageError, match="threads"):
            open_device("cpu", threads=threads)


def test_a_candidate_that_cannot_be_built_is_left_out(tmp_path, monkeypatch):
    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    device = open_device("cpu", threads=2)
    build = type(device).engine

    def engine(self, binder, program, **options):
        if any(len(step.units) > 1 for step in program.steps):
            raise UnsupportedError("operator 'x' cannot run in a CUDA graph here: out of memory")
        return build(self, binder, program, **options)

    monkeypatch.setattr(type(device), "engine", engine)
    result = tune_stages(graph, device, runs=3)
    assert {"sequential", "greedy"} <= {candidate.name for candidate in result.candidates}
    assert any("out of memory" in note and "left out" in note for note in result.notes)
    assert not any(stage.merged for stage in result.plan.stages)
    monkeypatch.setattr(type(device), "engine", lambda self, *_, **__: engine_fails())
    with pytest.raises(UnsupportedError, match="nothing runs"):
        tune_stages(graph, device, runs=3)


@pytest.mark.parametrize("apart", [1.0, 0.01, float("nan"), 1e-5])
def test_a_candidate_with_other_outputs_is_left_out(tmp_path, monkeypatch, apart):
    """However fast it is. Rounding is not another output."""
    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    device = open_device("cpu", threads=2)
    build = type(device).engine

    class Wrong:
        def __init__(self, engine, scale):
            self.engine, self.scale, self.close = engine, scale, engine.close

        def __call__(self, values):
            return [value * self.scale for value in self.engine(values)]

    def engine(self, binder, program, **options):
        whole = len(options["outputs"]) == len(graph.outputs) and sum(len(s.units) for s in program.steps) > 5
        merged = any(len(step.units) > 1 for step in program.steps)
        right = build(self, binder, program, **options)
        return Wrong(right, 1.0 + apart) if whole and merged else right

    monkeypatch.setattr(type(device), "engine", engine)
    monkeypatch.setattr(StageTimer, "_measure", lambda self, stage: 1e-6 if stage.merged else float(len(stage.units)))
    result = tune_stages(graph, device, runs=3)
    names = {candidate.name for candidate in result.candidates}
    assert {"sequential", "greedy"} <= names
    left_out = [note for note in result.notes if "outputs differ from sequential's" in note]
    if apart == 1e-5:
        assert not left_out
        assert "merge" in names
    else:
        assert any("'merge'" in note for note in left_out)
        assert not any(member.merged for candidate in result.candidates for member in candidate.stages)


def engine_fails():
    raise UnsupportedError("nothing runs")
