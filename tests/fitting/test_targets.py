"""Suffix, format, target and runtime are tables: rows say all that `load`, `export` and `fit` ask."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import get_args

import pytest

import downset as ds
from downset.arenas.ties import TiesName
from downset.commands.arena import arena as arena_command
from downset.commands.fit import fit as fit_command
from downset.commands.verify import verify as verify_command
from downset.errors import UnsupportedError, UsageError
from downset.fitting.candidates import Candidate, PlannedGraph
from downset.fitting.fit import fit
from downset.fitting.job import FitOptions, Job, RewriteName
from downset.fitting.measuring import measure
from downset.formats.reading import READERS, FileReader
from downset.formats.writing import WRITERS, FileWriter
from downset.memory.models import MEMORY_MODELS, MemoryName
from downset.results.fit import Rewrite
from downset.runtimes.compare import RUNTIMES, RuntimeName, compare_outputs
from downset.runtimes.targets import TARGETS, Taken, Target, TargetName, targets_of
from tests.networks import branchy


def choices(command, option):
    (found,) = (parameter for parameter in command.params if parameter.name == option)
    return tuple(found.type.choices)


def test_the_typed_names_are_those_of_the_tables_and_of_the_commands():
    assert get_args(MemoryName) == tuple(MEMORY_MODELS)
    assert get_args(TargetName) == tuple(TARGETS) == choices(fit_command, "target")
    assert get_args(RuntimeName) == tuple(RUNTIMES) == choices(verify_command, "runtime")
    assert get_args(RewriteName) == choices(fit_command, "rewrite")
    assert get_args(TiesName) == choices(arena_command, "ties")


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_target_can_be_fitted_to(target):
    """What it runs is read and written, a model says what it keeps, and some runtime compares."""
    assert target.suffixes
    assert set(target.suffixes) <= set(READERS)
    assert set(target.suffixes) <= set(WRITERS)
    assert target.memory in MEMORY_MODELS
    assert target.runners
    assert set(target.runners) <= set(get_args(RuntimeName))
    assert all(target in targets_of(suffix) for suffix in target.suffixes)
    if target.offsets:
        assert any(WRITERS[suffix].offsets for suffix in target.suffixes)


def test_an_unknown_runtime_is_named(tmp_path):
    with pytest.raises(UsageError, match="unknown runtime 'glow'; choose one of litert, tflm, ort"):
        compare_outputs(tmp_path / "a", tmp_path / "b", runtime="glow")


def test_a_format_is_a_line_in_two_tables(tmp_path, monkeypatch):
    graph = ds.load(branchy(tmp_path / "m.onnx"))
    order = ds.plan_order(graph, method="kahn")
    written = []
    monkeypatch.setitem(READERS, ".toy", FileReader(lambda path: replace(graph, name=path.stem)))
    monkeypatch.setitem(WRITERS, ".toy", FileWriter(lambda *given: written.append(given), needs_arena=True))
    path = tmp_path / "net.TOY"
    path.write_bytes(b"toy")
    assert ds.load(path).name == "net"
    with pytest.raises(UsageError, match=r"sizes in a \.toy file are fixed; shapes is for \.onnx and \.tflite"):
        ds.load(path, shapes={"x": (1,)})
    with pytest.raises(UsageError, match=r"or \.toy with an arena"):
        ds.export(path, graph, order)
    arena = ds.plan_arena(graph, order)
    ds.export(path, graph, order, arena)
    assert written == [(path, graph, order, arena)]


def test_a_target_is_a_row(tmp_path, monkeypatch):
    """A runtime that takes 7 bytes for each file it is given, and places tensors by itself."""
    model = branchy(tmp_path / "m.onnx")
    asked = []

    def seven(path, *, shapes, seed, trust):
        asked.append((path.name, seed))
        return Taken({"total_bytes": 7 * len(asked)})

    row = Target("mine", (".onnx",), "live", ("ort",), measure=seven, file_order=True)
    monkeypatch.setitem(TARGETS, "mine", row)
    found = fit(model, target="mine", seed=3, time_limit_s=1.0)
    assert (found.target, found.shipped) == ("mine", "original")
    assert (found.measured.runtime, found.measured.before) == ("mine", 7)
    assert asked[0] == ("m.onnx", 3)
    assert all(given[1:] == (3,) for given in asked[1:])
    assert found.notes == () or "took less memory in all" in found.notes[0]


@pytest.fixture
def job(tmp_path):
    def ask(path, **_):
        if path.name in ("broken", "lost"):
            raise UnsupportedError(f"cannot run {path.name}")
        return Taken({"total_bytes": len(path.name)})

    return Job(tmp_path / "m.onnx", replace(TARGETS["ort"], measure=ask, sessions=None), FitOptions(tmp_path), tmp_path)


def rewritten(name):
    return Candidate(name, Path(name), 5, PlannedGraph(None, None, (Rewrite("concat", (), "channel-wise", 1),)))


def test_measure_returns_what_it_measured_and_changes_nothing(job):
    first, second = Candidate("original", Path("four"), 5), Candidate("optimised", Path("eleven"), 5)
    given = [first, second]
    measured = measure(replace(job, target=replace(job.target)), given)
    assert given == [first, second]
    assert first.measured is None
    assert [candidate.measured for candidate in measured] == [{"total_bytes": 4}, {"total_bytes": 6}]
    assert [replace(candidate, measured=None) for candidate in measured] == given
    assert job.notes.lines == []
    with pytest.raises(FrozenInstanceError):
        first.measured = {}
    with pytest.raises(FrozenInstanceError):
        job.path = Path()
    assert measure(replace(job, target=replace(job.target, measure=None)), given) == given


def test_measures_are_all_or_none_and_a_rewritten_file_that_does_not_run_is_left_out(job):
    first = Candidate("original", Path("four"), 5)
    measured = measure(job, [first, rewritten("broken")])
    assert [candidate.name for candidate in measured] == ["original"]
    assert job.notes.lines == ["the broken file is left out: cannot run broken"]
    given = [first, rewritten("broken"), Candidate("order", Path("lost"), 5)]
    assert measure(job, given) == given
    assert job.notes.lines == ["the broken file is left out: cannot run broken", "not measured: cannot run lost"]
    assert job.notes.not_measured == "cannot run lost"
