"""`fit` computes segments in strips where nothing else fits, and by default only where that costs little."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset.errors import InfeasibleError, LimitReached, UsageError
from downset.fitting import offer as offers
from downset.fitting import placing, planning
from downset.fitting import strips as strips_of_fit
from downset.fitting.candidates import PlannedGraph
from downset.fitting.fit import fit
from downset.fitting.job import FitOptions, Job
from downset.fitting.offer import fit_call
from downset.fitting.strip_notes import arithmetic
from downset.fitting.strips import files_of, search_forms, search_strips, strip_forms
from downset.formats.reading import load
from downset.joint.order_and_arena import plan_together
from downset.partial.price import Pricing
from downset.partial.search import PartialLimits, partial_front
from downset.reports.document import Picture
from downset.reports.fit_document import fit_document
from downset.reports.fit_sentences import gain_line
from downset.reports.fit_steps import fit_next_steps
from downset.reports.json_form import json_of
from downset.reports.text import report
from downset.runtimes import ort, tflm
from downset.runtimes.targets import TARGETS
from tests.command import typed
from tests.strip_networks import SAME, StripNet

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


class Net(StripNet):
    def conv(self, x, out, kernel, stride=1):
        sizes = self._window(x, (kernel, kernel), (stride, stride), (1, 1), SAME)
        weights = self._weights(x, (out, kernel, kernel, self.channels(x)), 0)
        return self.add_op(
            "CONV_2D",
            (x, *weights),
            (1, *sizes, out),
            "Conv2DOptions",
            strideH=stride,
            strideW=stride,
            padding=SAME,
            dilationHFactor=1,
            dilationWFactor=1,
            fusedActivationFunction=0,
        )


def network(path):
    """Early maps that are large, and a result that is small: no order or placement helps."""
    net = Net(6, dtype="int8")
    x = net.conv(net.start(48, 48, 2), 12, 3)
    x = net.conv(net.conv(x, 12, 3, 2), 8, 3, 2)
    return net.save(path, [net.conv(x, 2, 1)])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = network(tmp_path_factory.mktemp("net") / "m.tflite")
    return path, fit(path, time_limit_s=5)


def strips(result):
    return [rewrite for rewrite in result.rewrites if rewrite.kind == "row-wise"]


def test_a_plan_in_strips_within_a_limit_is_told_what_needs_less(plain, tmp_path):
    """The command of the step writes a file that takes no more than the step says. The plan within the limit is the
    cheapest, so no longer search is proposed."""
    path, whole = plain
    within = fit(path, output=tmp_path / "w.tflite", ram_bytes=whole.measured.after - 1, time_limit_s=5)
    assert strips(within)
    texts = [step.text for step in fit_next_steps(within)]
    assert not any("Search longer" in text for text in texts)
    (step,) = (step for step in fit_next_steps(within) if "in strips of rows" in step.text)
    text = typed(step.text)
    assert text.startswith("Compute more in strips of rows, with no more arithmetic (downset fit ")
    command = shlex.split(text.split("(")[1].split(")")[0])
    assert command[-2:] == ["--max-recompute", "0%"] and "--ram" not in command
    least = fit(path, max_recompute=0.0, time_limit_s=5)
    assert 0 < step.gained_bytes <= within.measured.after - least.measured.after


def test_strips_of_a_small_file_cost_too_much_to_be_made_by_default(plain):
    path, result = plain
    assert not strips(result)
    roomy = fit(path, ram_bytes=result.measured.after, time_limit_s=5)
    assert not strips(roomy)
    assert roomy.ram.state == "fits"


def test_what_fits_by_strips_alone_is_computed_in_strips(plain, tmp_path):
    path, result = plain
    limit = result.measured.after - 2000
    fitted = fit(path, output=tmp_path / "f.tflite", ram_bytes=limit, time_limit_s=10)
    assert strips(fitted)
    assert fitted.outputs.equal
    assert tflm.measure(tmp_path / "f.tflite").total_bytes == fitted.measured.after <= limit
    said = json.loads(json.dumps(json_of(fit_document(fitted))))
    described = json.loads((SCHEMAS / "fit.json").read_text())["properties"]
    ends = [result.graph.tensors[tensor].nbytes for tensor in (*result.graph.inputs, *result.graph.outputs)]
    for key in ("peak_bytes", "arena_bytes"):
        jsonschema.validate(said[key], described[key])
        assert said[key]["space"] == "every plan in this order, with segments whole or in strips of rows"
        assert max(ends) < said[key]["bound"] <= said[key]["after"]
    assert "the lower bound holds for every plan in this order" in " ".join(report(fitted).split())
    said = json_of(fit_document(result))
    assert said["peak_bytes"]["space"] == "every order of the network that ships"


def test_an_operator_at_the_peak_that_needs_all_rows_is_named(tmp_path, plain):
    """A layer that reads its whole input, behind maps that are larger without strips."""
    net = Net(3, dtype="int8")
    x = net.conv(net.conv(net.start(32, 32, 2), 12, 3), 1, 3, 4)
    weights = net._weights(x, (6000, 64), 0)
    net.save(tmp_path / "m.tflite", [net.add_op("FULLY_CONNECTED", (x, *weights), (1, 6000), "FullyConnectedOptions")])
    fitted = fit(tmp_path / "m.tflite", max_recompute=0.0, time_limit_s=5)
    assert strips(fitted)
    (said,) = [note for note in fitted.notes if "all rows" in note]
    assert said.startswith("the peak is at Gemm t9: it needs all rows of its input at once")
    assert said.endswith(", and the sums of its parts would be rounded")
    assert not any("all rows" in note for note in plain[1].notes)


def test_next_steps_name_tensors_of_the_users_file(plain, tmp_path):
    """Strips make tensors of their own, which nobody can make smaller."""
    path, before = plain
    own = {tensor.name for tensor in load(path).tensors}
    result = fit(path, ram_bytes=before.measured.after * 2 // 3, time_limit_s=5)
    assert strips(result)
    for step in (*fit_next_steps(before), *fit_next_steps(result)):
        named = re.match(r"Halve tensor (\S+) ", step.text)
        assert named is None or named[1] in own
    assert any(step.text.startswith("Halve tensor") for step in fit_next_steps(before))


def test_less_is_proven_or_told_with_what_would_help(plain, tmp_path):
    path, result = plain
    with pytest.raises(LimitReached) as caught:
        fit(path, output=tmp_path / "f.tflite", ram_bytes=result.measured.after // 2, time_limit_s=5)
    message = str(caught.value)
    assert "the least found takes" in message
    limit, least = result.measured.after // 2, caught.value.figures["best_bytes"]
    assert f"takes {least:,} B, {least - limit:,} B above the limit" in message
    bound = re.search(r"every plan in this order, also in strips of rows, takes at least ([\d,]+) B", message)
    beside = result.measured.before - result.arena.before
    assert beside < int(bound[1].replace(",", "")) < least
    assert caught.value.result.ram.least_in_order_bytes == int(bound[1].replace(",", ""))
    assert message.index(bound[0]) < message.index("the least found takes")
    assert ("so that only another order may fit" in message) == (int(bound[1].replace(",", "")) > limit)
    assert "to make it fit: (1)" in message
    told = fit_next_steps(caught.value.result)
    assert "".join(step.text for step in told[:1]).rstrip(".") in message and told[0].suffices
    assert "\n" not in message
    with pytest.raises(InfeasibleError, match="inputs or outputs alone") as proven:
        fit(path, output=tmp_path / "f.tflite", ram_bytes=100, time_limit_s=5)
    assert "every plan in this order" not in str(proven.value), "the first line proves more"
    assert "its inputs or outputs alone need at least" in fit_document(proven.value.result).verdict.headline
    assert not list(tmp_path.iterdir())


def test_remedies_are_searched_for_in_the_time_that_is_left(plain, monkeypatch):
    path, result = plain
    searched = []

    def recorded(*args, limits, **options):
        started = time.perf_counter()
        found = partial_front(*args, limits=limits, **options)
        searched.append((limits.time_limit_s, time.perf_counter() - started))
        return found

    monkeypatch.setattr("downset.fitting.strips.partial_front", recorded)
    with pytest.raises(LimitReached, match=r"\(1\) max_recompute=.* and strips="):
        fit(path, ram_bytes=result.measured.after // 2, strips=2, time_limit_s=20)
    *first, (left_s, _) = searched
    assert 0 < left_s <= 0.4 * 20 - sum(spent for _, spent in first)


def test_strips_are_offered_with_a_command_that_gives_what_it_says(plain, run):
    """The file of a few kilobytes would grow by more than a quarter."""
    path, result = plain
    (offered,) = [step for step in fit_next_steps(result) if "strips of rows" in step.text]
    command = re.search(r"\((downset .*?)\)", typed(offered.text))[1]
    words = shlex.split(command)
    assert words[:-1] == ["downset", "fit", str(path), "--time-limit", "5s", "--larger"]
    status, out, _ = run(*words[1:], "--slower", "9x", "--json", "-q")
    after = json.loads(out)["measured"]["after"]
    told = result.measured.after - offered.gained_bytes
    assert status == 0 and f"take about {told:,} B" in offered.text
    assert after <= 1.01 * told < result.measured.after
    assert "computed whole" in gain_line(result) and not strips(result)


def test_strips_are_offered_where_nobody_asked_for_them_and_they_need_less(plain, tmp_path):
    path, result = plain
    for options in ({"max_recompute": 0.0}, {"strips": 2}, {"front": True}, {"ram_bytes": result.measured.after}):
        assert fit(path, time_limit_s=5, **options).in_strips is None
    net = Net(6, dtype="int8")
    flat = net.save(tmp_path / "flat.tflite", [net.conv(net.start(1, 1, 8), 4, 1)])
    assert fit(flat, time_limit_s=2).in_strips is None


def test_what_was_not_searched_for_is_offered_without_a_figure(plain):
    path, _ = plain
    offer = fit(path, time_limit_s=math.inf, work_limit=0).in_strips
    assert offer is not None and offer.gained_bytes is None
    assert "may need less (downset.fit" in offer.text
    assert "time_limit_s=math.inf, work_limit=0, max_recompute=0.0)" in offer.text
    assert typed(offer.text).count("--work-limit 0 --max-recompute 0%)") == 1


def test_plans_of_too_many_operators_are_offered_without_a_figure_and_not_placed(plain, monkeypatch):
    path, _ = plain
    placed = []
    monkeypatch.setattr(strips_of_fit, "_MOST_OPERATORS", 1)
    monkeypatch.setattr(placing.OrderPlacing, "look_at", lambda *arguments: placed.append(arguments))
    step = fit(path, time_limit_s=5).in_strips
    assert step is not None and step.gained_bytes is None and not placed
    assert "may need less (downset.fit" in step.text


def test_an_offer_places_no_plan_of_many_operators(plain, monkeypatch):
    """Where all that need less have too many, it has no figure."""
    path, _ = plain
    placed, look_at = [], placing.OrderPlacing.look_at

    def looked_at(self, plan):
        placed.append(len(self.graph.ops) + plan.price.extra_operators)
        look_at(self, plan)

    monkeypatch.setattr(placing.OrderPlacing, "look_at", looked_at)
    monkeypatch.setattr(offers, "_within_larger_limits", lambda *arguments: placed.clear())  # from here on, the offer
    monkeypatch.setattr(offers, "_PLACED_TIMES", 1)
    gains = []
    for most in (1, 20, 10_000):
        monkeypatch.setattr(offers, "_PLACED_OPERATORS", most)
        step = fit(path, time_limit_s=5, larger=1.0).in_strips
        assert step is not None and max(placed, default=0) <= most
        gains.append(step.gained_bytes)
    assert gains[0] is None and min(gains[1:]) > 0


def test_what_a_search_did_not_find_is_told_from_what_is_not_there(plain, tmp_path):
    path, _ = plain
    unfound = "not computed in strips: the search ended before it found any that lower the peak"
    assert unfound in fit(path, time_limit_s=math.inf, work_limit=0, max_recompute=0.0).notes
    net = Net(6, dtype="int8")
    flat = net.save(tmp_path / "flat.tflite", [net.conv(net.start(1, 1, 8), 4, 1)])
    assert "not computed in strips: that lowers no peak" in fit(flat, time_limit_s=2, max_recompute=0.0).notes


def test_the_command_of_an_offer_repeats_every_option():
    options = FitOptions(
        "m'n.tflite",
        output=Path("a b.tflite"),
        target="tflm",
        shapes={"x": (1, 3)},
        time_limit_s=2.5,
        seed=3,
        int8=True,
        slower=1.1,
    )
    call = fit_call(options)
    again = eval(str(call), {"downset": SimpleNamespace(fit=FitOptions)})
    assert again == replace(options, output="a b.tflite")
    assert shlex.split(typed(call)) == [
        "downset",
        "fit",
        "m'n.tflite",
        "-o",
        "a b.tflite",
        "--target",
        "tflm",
        "--shape",
        "x=1,3",
        "--time-limit",
        "2.5s",
        "--int8",
        "--slower",
        "1.10x",
    ]
    assert typed(fit_call(FitOptions("m.onnx"))) == "downset fit m.onnx", "defaults are left out"


def test_the_page_says_what_is_written_without_a_limit(plain):
    path, result = plain
    with pytest.raises(LimitReached) as caught:
        fit(path, ram_bytes=result.measured.after // 2, time_limit_s=5)
    (section,) = [one for one in fit_document(caught.value.result).sections if one.heading == "How to run it"]
    said = " ".join(section.parts[0].lines)
    assert "within the limits of time and file size is written" in said
    assert "max_recompute=1.0, without ram_bytes, asks for that" in said
    assert "--max-recompute 100%, without --ram, asks for that" in typed(section.parts[0]).lines[-1]


def test_limits_without_a_memory_limit_ask_for_the_least(plain, tmp_path):
    path, result = plain
    kept = fit(path, max_recompute=0.0, time_limit_s=10)
    assert strips(kept)
    assert kept.measured.after < result.measured.after
    few = fit(path, strips=2, time_limit_s=5)
    assert all(" in 2 strips" in rewrite.name for rewrite in strips(few))


def test_a_tenth_of_a_second_and_more_strips_than_rows_are_no_error(plain):
    path, result = plain
    quick = fit(path, strips=1000, time_limit_s=0.1)
    assert quick.measured.after <= result.measured.before
    with pytest.raises(UsageError, match="strips must be at least 2"):
        fit(path, strips=1)


def test_what_no_search_looked_at_is_not_called_impossible(plain):
    """A search that ends before the first strips: what orders need proves nothing about strips."""
    path, result = plain
    with pytest.raises(LimitReached, match="whether one exists is not known"):
        fit(path, ram_bytes=result.measured.after - 16, time_limit_s=math.inf, work_limit=0)


def test_the_front_is_measured(plain):
    path, result = plain
    shipped = fit(path, front=True, max_recompute=1.0, time_limit_s=5)
    rows = shipped.front
    assert [row.arena_bytes for row in rows] == sorted((row.arena_bytes for row in rows), reverse=True)
    (ships,) = [row for row in rows if row.ships]
    assert ships.segments == tuple(rewrite.name for rewrite in strips(shipped))
    assert ships.measured["total_bytes"] == shipped.measured.after
    weighed = [(row.arena_bytes, row.measured["total_bytes"], row.extra_macs, row.file_bytes) for row in rows]
    for row, others in zip(rows, weighed, strict=True):
        assert row.ships or not any(all(map(int.__lt__, other, others)) for other in weighed)
    figures = [part.draw() for part in fit_document(shipped).parts if isinstance(part, Picture)]
    (drawn,) = [figure for figure in figures if figure.name.startswith("Memory against arithmetic")]
    ((_, chart),), (behind,) = drawn.charts, drawn.tables
    heights = {mark.row: mark.y + mark.height / 2 for mark in chart.marks}
    assert [heights[name] for name in behind.ids] == pytest.approx(
        [*(row.measured["total_bytes"] for row in rows), shipped.measured.before]
    )
    assert behind.marked == {rows.index(ships)}
    for row in rows:
        assert row.measured["total_bytes"] == row.measured["head_bytes"] + row.measured["tail_bytes"]
        assert 0 < row.measured["cortex_m_tail_bytes"] < row.measured["tail_bytes"]
        assert row.file_bytes > path.stat().st_size
        assert row.before_s > 0 and row.latency.median_s > 0
    assert min(row.measured["head_bytes"] for row in rows) < result.measured.details["original"]["head_bytes"]


def test_lines_on_strips_shorten_names_and_count_fused_operators(plain, tmp_path):
    """Names as TensorFlow makes them, joined by semicolons: the data have all of them, screen, report and page few."""
    path, result = plain
    graph = load(path)
    ops = tuple(replace(op, name=";".join([f"{'block/' * 30}{at}"] * 4)) for at, op in enumerate(graph.ops))
    graph = replace(graph, ops=ops)
    job = Job(path, TARGETS["tflm"], FitOptions(path), tmp_path)
    plan = PlannedGraph(graph, plan_together(graph, memory="tflm", time_limit_s=1))
    search = search_strips(job, plan, PartialLimits(work_limit=100))
    (file, *_) = files_of(job, search, search.front.least, "strips")
    shown = replace(result, rewrites=file.rewrites)
    (done,) = [section for section in fit_document(shown).sections if section.heading == "What was done"]
    for lines in (str(report(shown)).split("\n"), done.parts[0].lines):
        told = [line for line in lines if line.startswith("rewritten: ")]
        assert len(told) == len(file.rewrites) > 0
        for line, rewrite in zip(told, file.rewrites, strict=True):
            assert len(line) < 300 < len(rewrite.name)
            assert line.count("…") == line.count(" and 2 more ") == 2
            assert rewrite.name.partition(" strips")[0].rpartition(" in ")[2] in line
    assert arithmetic(graph, graph) == "in strips the network computes as much as before"


def test_a_report_of_what_fits_begins_with_the_verdict(plain):
    path, result = plain
    roomy = fit(path, ram_bytes=result.measured.after, time_limit_s=2)
    assert str(report(roomy)).startswith(f"Fits {result.measured.after:,} B: ")
    assert str(report(roomy)).count(" B free") == 1
    assert f"{path.name} on TFLite Micro: " in str(report(result)).split("\n")[1]


def test_a_batch_that_the_file_leaves_open_stays_open_in_strips(tmp_path):
    random = np.random.default_rng(2)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("v", (8, 2, 3, 3)), ("w", (2, 8, 3, 3)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w"], ["y"], name="second", pads=[1, 1, 1, 1], strides=[2, 2]),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2, size, size])]
        for name, size in (("x", 24), ("y", 12))
    ]
    path, shapes = tmp_path / "m.onnx", {"x": (1, 2, 24, 24)}
    graph = helper.make_graph(nodes, "open", *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    job = Job(path, TARGETS["ort"], FitOptions(path, shapes=shapes), tmp_path)
    planned = load(path, shapes=shapes)
    plan = PlannedGraph(planned, plan_together(planned, memory="ort", time_limit_s=1))
    search = search_strips(job, plan, PartialLimits(work_limit=100))
    assert search.front.least.segments
    for file in files_of(job, search, search.front.least, "strips"):
        (given,) = onnx.load(str(file.path)).graph.input
        assert [dim.dim_param or dim.dim_value for dim in given.type.tensor_type.shape.dim] == ["n", 2, 24, 24]
        for batch in (1, 3):
            ours, theirs = (ort.run(name, shapes={"x": (batch, 2, 24, 24)})[0] for name in (file.path, path))
            assert ours.shape[0] == batch
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_plans_of_too_many_operators_are_left_out_with_a_note(plain, monkeypatch):
    """The time in which runtimes load a file grows faster than its operators: no such file is written or run."""
    path, _ = plain
    written = []
    write = planning.write_planned
    for home in (planning, strips_of_fit):
        monkeypatch.setattr(
            home, "write_planned", lambda job, plan, name: written.append(plan) or write(job, plan, name)
        )
    asked = fit(path, max_recompute=1.0, time_limit_s=3)
    most = max(len(plan.graph.ops) for plan in written if plan.rewrites)
    assert strips(asked) and not any("left out" in note for note in asked.notes)
    for limit in (most - 1, 5):
        written.clear()
        monkeypatch.setattr(strips_of_fit, "_MOST_OPERATORS", limit)
        bounded = fit(path, max_recompute=1.0, time_limit_s=3)
        assert any(f"in strips of more than {limit} operators" in note for note in bounded.notes)
        assert all(len(plan.graph.ops) <= limit for plan in written if plan.rewrites)
    assert "not computed in strips: plans of fewer operators lower no peak" in bounded.notes


def test_a_choice_is_priced_once_however_many_searches_try_it(plain, monkeypatch):
    """The second of the short searches tries most choices of the first one again, and finds what it finds alone."""
    path, _ = plain
    job = Job(path, TARGETS["tflm"], FitOptions(path), path.parent)
    network = load(path)
    forms = strip_forms(job, PlannedGraph(network, plan_together(network, memory="tflm", time_limit_s=1)))
    priced, native_price = [], Pricing._price

    def pricing(self, *choice):
        priced.append((id(self), *map(repr, choice)))
        return native_price(self, *choice)

    monkeypatch.setattr(Pricing, "_price", pricing)
    first, second = (PartialLimits(None, most, None, math.inf) for most in (4, 8))
    search_forms(job, forms, first)
    again = search_forms(job, forms, second).front
    assert len(set(priced)) == len(priced) >= again.priced
    alone = search_forms(job, replace(forms, pricings=tuple(map(_unpriced, forms.pricings))), second).front
    assert again == alone


def _unpriced(pricing):
    return Pricing(pricing.graph, pricing.form, pricing.model, persistent=pricing.persistent)


def test_what_is_only_told_of_places_few_plans(plain, monkeypatch):
    """Whatever the time limit is: of each group the plans of the lowest prices."""
    path, _ = plain
    placed, least = [], placing.OrderPlacing.least
    monkeypatch.setattr(
        placing.OrderPlacing, "least", lambda *given, **more: placed.append(len(given[1])) or least(*given, **more)
    )
    gains = [fit(path, time_limit_s=seconds, slower=1.0).in_strips.gained_bytes for seconds in (10.0, 1_000.0)]
    assert placed and max(placed) <= 2
    assert gains[0] == gains[1]
