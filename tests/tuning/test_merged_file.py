"""`export_merged` and `downset stage --export`: a file where it is faster, by a clock that tests set; else one line."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest

import downset as ds
from downset.results.merged import FileTimes
from downset.runtimes import ort_timed
from downset.tuning import merged_file
from tests.cli.test_cli import SCHEMAS
from tests.command import output_of
from tests.equivalence.merged_networks import MergeNet, every_merge


@pytest.fixture
def model(tmp_path):
    return every_merge(tmp_path / "m.onnx", batch="batch")


def clock(monkeypatch, ratios, spread=0.0):
    """The file of a candidate takes `ratios[name, threads]` times the original, or `ratios[name]`. Lists what was
    opened. With `spread` every second latency is that much longer."""
    opened = []

    def turns(paths, feeds, *, threads, rounds):
        file = Path(paths[1])
        opened.append((file.stem, threads))
        ratio = ratios.get((file.stem, threads), ratios.get(file.stem, 1.5))
        noise = [1 + spread * (turn % 2) for turn in range(rounds)]
        return [[(0.01 * more, 0.01), (0.01 * ratio * more, 0.01 * ratio)] for more in noise]

    monkeypatch.setattr(merged_file, "turns", turns)
    return opened


def test_a_file_is_written_where_it_is_faster_and_keeps_what_is_open(model, tmp_path, monkeypatch):
    opened = clock(monkeypatch, {"stacked": 0.8, "pools_swapped": 0.9})
    out = tmp_path / "merged.onnx"
    found = ds.export_merged(model, out)
    assert (found.chosen, found.asked, found.slower) == ("stacked", False, False)
    assert found.ratio == pytest.approx(0.8) and found.output_path == str(out)
    # With `stacked` the merges of `pools swapped` are the same, so `greedy` has no file of its own.
    assert {name for name, _ in opened} == {"stacked", "pools_swapped", "separables_merged", "padded", "all"}
    assert opened.count(("stacked", 1)) == 1 + 3  # once in the search, three times afresh
    assert ds.compare(model, out).verdict() == "proven"
    before, after = onnx.load(str(model)), onnx.load(str(out))
    assert [*before.graph.input] == [*after.graph.input] and [*before.graph.output] == [*after.graph.output]
    assert before.opset_import == after.opset_import
    assert after.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert found.other_sizes == ("batch = 2",)
    assert ds.compare(model, out, shapes={"x0": (5, 3, 6, 5)}).verdict() == "proven"


@pytest.mark.parametrize(
    ("ratios", "chosen", "says"),
    [
        ({"stacked": 1.01}, "", "the best candidate, stacked, takes 1.010"),  # not slower, and not faster
        ({("stacked", 1): 0.5, ("stacked", 2): 1.03}, "", "takes 0.500 of the processor time"),
        ({("stacked", 1): 0.9, ("stacked", 2): 1.02, "padded": 0.95}, "padded", "padded takes 0.950"),
        ({"stacked": 0.9, "padded": 0.8}, "padded", "in 15 fresh rounds"),
    ],
)
def test_the_rule(model, tmp_path, monkeypatch, ratios, chosen, says):
    clock(monkeypatch, {"greedy": 1.0, **ratios})
    out = tmp_path / "merged.onnx"
    found = ds.export_merged(model, out)
    assert found.chosen == chosen and says in found.why
    assert out.exists() == bool(chosen) and found.output_path == (str(out) if chosen else "")


def test_greedy_takes_one_family_more_as_long_as_that_is_faster(model, tmp_path, monkeypatch):
    clock(monkeypatch, {"stacked": 0.9, "separables_merged": 0.8, "greedy": 0.7, "all": 0.75})
    found = ds.export_merged(model, tmp_path / "merged.onnx")
    assert found.chosen == "greedy"
    (greedy,) = [one for one in found.candidates if one.name == "greedy"]
    assert greedy.families == ("separables merged", "stacked")
    assert ds.compare(model, tmp_path / "merged.onnx").verdict() == "proven"


@pytest.mark.parametrize("fresh", [{}, {("stacked", 1): 0.5, ("stacked", 2): 1.03}], ids=["slower", "on two threads"])
def test_a_file_that_loses_in_fresh_rounds_is_not_written(model, tmp_path, monkeypatch, fresh):
    clock(monkeypatch, fresh)
    first, plain = set(), merged_file.turns

    def flattered(paths, feeds, *, threads, rounds):
        key = (Path(paths[1]).stem, threads)
        rows = plain(paths, feeds, threads=threads, rounds=rounds)
        if key not in first:
            first.add(key)
            return [[original, (0.005, 0.005)] for original, _ in rows]
        return rows

    monkeypatch.setattr(merged_file, "turns", flattered)
    found = ds.export_merged(model, tmp_path / "merged.onnx")
    assert found.chosen == "" and "in 15 fresh rounds" in found.why and not (tmp_path / "merged.onnx").exists()


def test_what_varies_too_much_does_not_count():
    quiet = tuple((1.0, 0.9) for _ in range(10))
    loud = tuple((1.0 + turn % 2, 3.0 + turn % 2) for turn in range(10))
    assert FileTimes(1, loud, quiet).ratios == (pytest.approx(0.9),) and FileTimes(1, loud, quiet).faster
    assert FileTimes(2, loud, loud).ratios == () and not FileTimes(2, loud, loud).faster
    assert len(FileTimes(1, loud, loud).ratios) == 1  # one thread's processor time counts on a busy machine, too
    assert FileTimes(2, quiet, quiet).ratios == (pytest.approx(0.9),) * 2


def test_nothing_to_merge_is_one_line(tmp_path, monkeypatch):
    clock(monkeypatch, {})
    net = MergeNet()
    path = net.save(tmp_path / "m.onnx", [net.window(net.input(2, (4, 4)), 2, [1, 1], [0] * 4)])
    said = output_of("stage", path, "--export", tmp_path / "out.onnx")
    assert said == "nothing to gain: no operators can be merged\n" and not (tmp_path / "out.onnx").exists()


def test_merges_that_no_family_makes_are_said_to_be_none(model, tmp_path, monkeypatch):
    clock(monkeypatch, {})
    monkeypatch.setattr(merged_file, "merge_families", lambda graph, sites, families: (graph, 0))
    assert ds.export_merged(model, tmp_path / "out.onnx").why == "no operators can be merged"


def test_the_command_prints_the_gain_the_condition_and_its_schema(model, tmp_path, monkeypatch):
    clock(monkeypatch, {"padded": 0.5})
    schema = json.loads((SCHEMAS / "stage.json").read_text())
    out = tmp_path / "merged.onnx"
    said = output_of("stage", model, "--export", out)
    assert said.startswith("padded: 2.00x in ONNX Runtime\n") and "condition: finite values" in said
    assert f"written: {out} (the network with its merges)" in said
    printed = json.loads(output_of("stage", model, "--export", out, "--json"))
    jsonschema.validate(printed, schema)
    assert printed["merged"]["chosen"] == "padded" and printed["merged"]["output"] == str(out)
    assert printed["merged"]["ratio"] == pytest.approx(0.5)
    assert "condition: finite values" in output_of("verify", model, out)
    proof = json.loads(output_of("verify", model, out, "--json"))["proof"]
    assert proof["finite"] is True and proof["exact"] is False
    clock(monkeypatch, {})
    printed = json.loads(output_of("stage", model, "--export", tmp_path / "none.onnx", "--json"))
    jsonschema.validate(printed, schema)
    assert printed["merged"]["output"] is None and not (tmp_path / "none.onnx").exists()


def test_a_candidate_that_is_asked_for_is_written_though_it_is_slower(model, tmp_path, monkeypatch, fails):
    clock(monkeypatch, {})
    out = tmp_path / "merged.onnx"
    said = output_of("stage", model, "--export", out, "--candidate", "stacked", "--threads", "1")
    assert said.startswith("stacked taken, as asked for: 0.67x, slower than the original\n") and out.exists()
    fails(2, "stage", model, "--export", out, "--candidate", "stackd", says="did you mean 'stacked'?")
    fixed = every_merge(tmp_path / "fixed.onnx")
    fails(2, "stage", fixed, "--export", out, "--candidate", "greedy", says="no candidate 'greedy'; it has 'stacked'")


def test_a_name_with_the_merges_of_an_earlier_one_stands_for_that(tmp_path, monkeypatch):
    clock(monkeypatch, {})
    net = MergeNet()
    x = net.input(2, (4, 4))
    path = net.save(tmp_path / "m.onnx", [net.window(x, 2, [1, 1], [0] * 4) for _ in range(2)])
    found = ds.export_merged(path, tmp_path / "out.onnx", candidate="all")
    assert found.chosen == "stacked" and [one.name for one in found.candidates] == ["stacked"]


def test_mistakes_are_one_line(model, tmp_path, fails):
    out = tmp_path / "merged.onnx"
    fails(2, "stage", model, "--export", model, says="being read")
    fails(2, "stage", model, "--export", tmp_path / "m.tflite", says="not one")
    fails(2, "stage", model, "--export", out, "-o", tmp_path / "p.json", says="leave out -o")
    fails(2, "stage", model, "--export", out, "--device", "cuda", says="leave out --device")
    fails(2, "stage", model, "--export", out, "--runs", "3", says="at least 15")
    fails(5, "stage", tmp_path / "none.onnx", "--export", out, says="none.onnx")
    with pytest.raises(ds.UsageError, match="threads"):
        ds.export_merged(model, threads=())
    assert not out.exists()


def test_a_refused_file_is_not_written(model, tmp_path, monkeypatch):
    clock(monkeypatch, {"stacked": 0.5})
    monkeypatch.setattr(merged_file, "compare", lambda *_, **__: ds.Comparison(False, 1.0, "ort", "apart"))
    found = ds.export_merged(model, tmp_path / "merged.onnx")
    assert found.chosen == "" and "was refused" in found.why and not (tmp_path / "merged.onnx").exists()
    with pytest.raises(ds.InvalidPlan, match="refused"):
        ds.export_merged(model, tmp_path / "merged.onnx", candidate="stacked")


def test_files_take_turns_in_processes_of_their_own(model, tmp_path):
    feeds = {"x0": np.zeros((1, 3, 6, 5), np.float32)}
    rows = ort_timed.turns([model, model], feeds, threads=1, rounds=2)
    assert len(rows) == 2 and all(len(row) == 2 and min(min(pair) for pair in row) > 0 for row in rows)
    with pytest.raises(ds.UnsupportedError):
        ort_timed.turns([model, tmp_path / "none.onnx"], feeds, threads=1, rounds=1)
