"""Reports as pages: what is drawn is what was planned, names are text, and nothing is loaded from elsewhere."""

import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import downset as ds
from downset.compiled import LiveBuffer, OrderReport, RecomputeReport, RepeatedOperator
from downset.graph.core import Graph, Op, Tensor
from downset.memory.liveness import profile
from downset.reports.arena_view import Operator, arena_view, moved_steps
from downset.reports.axes import Axis, tick_text, ticks
from downset.reports.charts import chart_svg
from downset.reports.document import Document, Picture, Section, Table, Verdict, columns
from downset.reports.memory_map import arena_chart, kind_styles, scale_of
from downset.reports.page.memory_figure import largest_tensors
from downset.reports.page.render import embedded, render
from downset.reports.page.trade_figure import TradeAxes, TradePoint, trade_figure
from downset.reports.plan_documents import arena_document, objects_document, order_document
from downset.results.inspections import StepNeed
from downset.results.plans import Arena, Evidence
from tests.plain_graphs import random_graph
from tests.strategies import generators

HOSTILE = '<script>alert("x")</script><img src=http://a.example/x onerror=alert(1)>&"\'\x1b[31m\u202e'


def next_of(markup):
    """The section of a page on what could be done next."""
    return markup[markup.index("What could be done next</h2>") :].split("</section>")[0]


class Elements(HTMLParser):
    """Every element with its attributes, and the text outside of scripts and styles."""

    def __init__(self, markup):
        super().__init__()
        self.found, self.text, self.inside = [], [], []
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.inside[-1:]):
            self.text.append(data)


def hostile_graph():
    """Names of tensors, operators and the graph that would be markup."""
    tensors = tuple(Tensor(f"{HOSTILE}{index}", (4, 4), "float32", 64) for index in range(4))
    ops = tuple(Op(f"{HOSTILE} {index}", f"a::{HOSTILE}", (index,), (index + 1,)) for index in range(3))
    return Graph(HOSTILE, tensors, ops, (0,), (3,)).check()


def pages(graph):
    order = ds.plan_order(graph)
    arena = ds.plan_arena(graph, order)
    shared = ds.plan_shared(arena.records)
    yield render(order_document(graph, order))
    yield render(order_document(graph, order, arena))
    yield render(arena_document(arena, capacity_bytes=10_000, title=HOSTILE))
    yield render(objects_document(shared, title=HOSTILE))


def test_names_from_a_model_are_text_and_never_markup():
    plain = {tag for page in pages(random_graph(random.Random(1), 3)) for tag, _ in Elements(page).found}
    for page in pages(hostile_graph()):
        elements = Elements(page)
        assert {tag for tag, _ in elements.found} <= plain
        assert sum(tag == "script" for tag, _ in elements.found) == 1
        assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
        assert '<script>alert("x")</script>' in "".join(elements.text)
        assert "\x1b" not in page and "\u202e" not in page


def test_a_page_names_nothing_outside_itself():
    for page in pages(random_graph(random.Random(2), 12)):
        elements = Elements(page)
        for tag, attributes in elements.found:
            for name in ("src", "href", "action", "data", "poster", "srcset"):
                target = attributes.get(name)
                assert target is None or target.startswith("#") or (tag, target) == ("link", "data:,")
        assert "default-src 'none'" in page
        assert "url(" not in page and "@import" not in page


def test_marks_name_rows_that_are_there():
    for page in pages(random_graph(random.Random(3), 20)):
        elements = Elements(page)
        ids = [attributes["id"] for tag, attributes in elements.found if tag == "tr" and "id" in attributes]
        named = {attributes["data-r"] for tag, attributes in elements.found if "data-r" in attributes}
        assert len(ids) == len(set(ids)) and named and named <= set(ids)


def test_the_five_largest_tensors_are_named():
    graph = random_graph(random.Random(5), 30)
    arena = ds.plan_arena(graph, ds.plan_order(graph))
    said = largest_tensors(arena_view("x", graph, range(30), arena))
    nbytes = sorted((record.nbytes for record in arena.records), reverse=True)[:5]
    assert [int(found.replace(",", "")) for found in re.findall(r"\(([\d,]+) B\)", said)] == nbytes
    assert said in render(order_document(graph, ds.plan_order(graph), arena))
    from xml.etree import ElementTree

    long = replace(arena, records=tuple(replace(record, id=f"{record.id:a<60}") for record in arena.records))
    for drawn, width_px in ((arena, 400), (long, 400), (long, 960)):  # with or without room in their rectangles
        root = ElementTree.fromstring(ds.memory_map([("x", drawn)], width_px=width_px))
        texts = [
            (element.text or "", float(element.get("y", 0))) for element in root.iter() if element.tag[-5:] == "}text"
        ]
        (heading,) = (y for text, y in texts if text == "Largest tensors")
        below = [(text, y) for text, y in texts if y > heading]
        assert [int(re.search(r"([\d,]+) B, steps", text)[1].replace(",", "")) for text, _ in below] == nbytes
        assert below[-1][1] < float(root.get("height")) and all(7 * len(text) < width_px for text, _ in below)


def test_a_map_says_what_it_takes():
    arena = ds.plan_arena([ds.Record("a", 0, 2, 100)])
    for wrong in (arena, [arena], [("after", ds)], [(arena, "after")], ["after"], {"after": arena}, None):
        with pytest.raises(ds.UsageError, match="takes a list of"):
            ds.memory_map(wrong)


def test_a_thousand_operators_make_less_than_a_megabyte():
    graph = random_graph(random.Random(4), 1000)
    order = ds.plan_order(graph, method="greedy")
    arena = ds.plan_arena(graph, order, method="greedy_by_size")
    before = arena_view("before", graph, range(1000), ds.plan_arena(graph, range(1000), method="greedy_by_size"))
    after = arena_view("after", graph, order.steps, arena)
    from downset.reports.page.memory_figure import memory_figure

    page = Document(
        "t", "", Verdict("plain", "h"), (Section("Memory", (Picture(lambda: memory_figure([before, after])),)),)
    )
    assert 200_000 < len(render(page).encode()) < 1_000_000


@given(generators(), st.integers(1, 12))
def test_what_a_map_draws_is_the_arena(rng, operators):
    graph = random_graph(rng, operators)
    order = ds.plan_order(graph, method="greedy")
    arena = ds.plan_arena(graph, order, method="greedy_by_size")
    view = arena_view("", graph, order.steps, arena)
    chart = arena_chart(view, kind_styles([view]), scale_of([view], None))
    drawn = [(mark.x, mark.y, mark.x + mark.width, mark.y + mark.height) for mark in chart.marks]
    wanted = [
        (start, offset, stop, offset + record.nbytes)
        for record, offset in zip(arena.records, arena.offsets, strict=True)
        for start, stop in record.active()
    ]
    assert drawn == wanted
    for one, other in combinations(drawn, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    assert max(top for *_, top in drawn) == arena.arena_bytes
    # Upside down in the picture: the first byte of the arena is at the floor of the plot.
    boxes = [
        [float(number) for number in found]
        for found in re.findall(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)" class="c', chart_svg(chart))
    ]
    assert [round(chart.y.extent - y - h, 3) for _, y, _, h in boxes] == [round(low, 3) for _, low, _, _ in wanted]


@given(st.permutations(range(7)))
def test_moved_operators_are_the_fewest_that_explain_the_order(steps):
    before = [Operator(f"op {index}", "Any", 0) for index in range(7)]
    after = [before[index] for index in steps]
    moved = moved_steps(before, after)
    left = [steps[step] for step in range(7) if step not in moved]
    assert left == sorted(left)
    longest = max(
        size for size in range(8) for kept in combinations(steps, size) if list(kept) == sorted(kept)
    )  # every sub-sequence
    assert len(moved) == 7 - longest


def test_new_operators_count_as_moved():
    one, two, new = (Operator(name, "Any", 0) for name in ("one", "two", "new"))
    assert moved_steps([one, two], [one, new, two]) == {1}


@given(st.floats(0, 1e9), st.floats(1, 1e12), st.sampled_from(["bytes", "steps", "s", "count"]))
def test_ticks_lie_inside_their_axis_and_rise(start, extent, unit):
    axis = Axis(start, start + extent, "", unit)
    found = ticks(axis)
    assert found == sorted(set(found)) and 1 <= len(found) <= 13
    slack = 1e-6 * max(extent, abs(start))
    assert all(start - slack <= tick <= start + extent + slack for tick in found)
    assert all(tick_text(tick, axis) for tick in found)


@pytest.mark.parametrize("title", ["memory", 'a "quoted" & <marked> one'])
def test_a_map_is_well_formed_and_captioned(title):
    from xml.etree import ElementTree

    graph = hostile_graph()
    order = ds.plan_order(graph)
    arena = ds.plan_arena(graph, order)
    views = [replace(arena_view("before", graph, order.steps, arena), scratch_bytes=32, tail_bytes=48)]
    root = ElementTree.fromstring(ds.memory_map(views, caption=title, limit_bytes=200))
    said = "".join(root.itertext())
    assert title in said and "in all" in said and "limit 200 B" in said and "peak" in said
    assert root.find(".//{*}script") is None
    assert f"tail: {48} B" in said


def test_a_report_is_text_and_a_page():
    graph = random_graph(random.Random(5), 6)
    order = ds.plan_order(graph)
    report = ds.report(graph, order)
    assert isinstance(report, str) and "random: an order of 6 operators" in report
    assert report.page().startswith("<!doctype html>")
    shown = report._repr_html_()
    assert shown == embedded(report.page()) and shown.startswith("<iframe srcdoc=")
    (tag, attributes), *rest = Elements(shown).found
    assert tag == "iframe" and not rest and attributes["srcdoc"] == report.page()
    assert attributes["sandbox"] == "allow-scripts"


def test_a_report_saves_its_page(tmp_path):
    arena = Arena((ds.Record("a", 0, 1, 8),), (0,), Evidence("naive", 8, 8, True))
    ds.report(arena).save(tmp_path / "out.html")
    assert "proven least" in (tmp_path / "out.html").read_text()
    for name in ("out.txt", "out.json", "page"):
        with pytest.raises(ds.UsageError, match=rf"save writes an HTML page: .*{name} must end in \.html or \.htm"):
            ds.report(arena).save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


def test_a_page_of_records_lists_records():
    """And one of a graph's arena tensors."""
    arena = ds.plan_arena([ds.Record("a", 0, 2, 8), ds.Record("b", 1, 3, 4)])
    records = ds.report(arena).page()
    assert ">Records (2 rows)<" in records and "Tensors (" not in records and ">record<" in records
    graph = random_graph(random.Random(5), 6)
    order = ds.plan_order(graph)
    assert ">Tensors (" in ds.report(graph, order, ds.plan_arena(graph, order)).page()


def test_a_map_marks_what_moved_and_says_a_limit_that_is_not_drawn():
    """The legend speaks of moved operators where there are some."""
    graph = random_graph(random.Random(6), 20)
    orders = (tuple(range(20)), ds.plan_order(graph, method="dfs").steps)
    views = [arena_view(f"{place}", graph, steps, ds.plan_arena(graph, steps)) for place, steps in enumerate(orders)]
    moved = moved_steps(views[0].operators, views[1].operators)
    drawn = ds.memory_map(views)
    assert moved and drawn.count('class="moved"') == len(moved) + 1 and "moved operator" in drawn
    same = ds.memory_map([views[0], views[0]])
    assert 'class="moved"' not in same and "moved operator" not in same
    tallest = max(view.total_bytes for view in views)
    assert f"limit {2 * tallest:,} B" in ds.memory_map(views, limit_bytes=2 * tallest)
    assert f"The limit of {5 * tallest:,} B is 5 times as high" in ds.memory_map(views, limit_bytes=5 * tallest)


def test_a_map_of_arenas_only_has_their_rectangles_and_is_lower():
    from xml.etree import ElementTree

    graph = random_graph(random.Random(6), 20)
    order = ds.plan_order(graph)
    views = [arena_view("x", graph, order.steps, ds.plan_arena(graph, order))]
    whole, alone = (ElementTree.fromstring(ds.memory_map(views, arenas_only=only)) for only in (False, True))
    rectangles = [
        [rect.attrib for rect in root.iter("{http://www.w3.org/2000/svg}rect") if rect.get("class") != "frame"][1:]
        for root in (whole, alone)
    ]
    assert rectangles[0] == rectangles[1] and len(rectangles[1]) > len(views[0].arena.records)
    said = ["".join(root.itertext()) for root in (whole, alone)]
    assert all((words in said[0], words in said[1]) == (True, False) for words in ("Live bytes", "Largest tensors"))
    assert int(alone.get("height")) < int(whole.get("height")) - 150


def test_dots_of_a_trade_do_not_cover_each_other():
    points = [(0.0, 100.0), (0.0, 98.0), (0.0, 50.0), (0.5, 40.0)]
    table = Table(columns("a"), [(str(place),) for place in range(4)])
    roles = ("original", "other", "other", "chosen")
    dots = [TradePoint(*point, role) for point, role in zip(points, roles, strict=True)]
    figure = trade_figure("t", dots, table, TradeAxes("cost", "share", "bytes"))
    ((_, chart),) = figure.charts
    assert sorted((mark.x, mark.y) for mark in chart.marks) == sorted(points)
    sizes = {mark.style: mark.dot_px for mark in chart.marks}
    size = sizes["c5"]
    assert sizes["c6"] >= 10 and sizes["c8"] >= 10, "dots that the legend names are seen among any others"
    styles = [mark.style for mark in chart.marks]
    assert styles == sorted(styles, key=("c8", "c6", "c5").index), "and lie below them"
    drawn = chart_svg(chart)
    assert drawn.index('class="curve ') < drawn.index('class="dot ')
    for one, other in combinations(points, 2):
        down = abs(one[1] - other[1]) / chart.y.extent * chart.height_px
        across = abs(one[0] - other[0]) / chart.x.extent * 270
        assert (down**2 + across**2) ** 0.5 >= size - 1e-9 or size == 4
    assert chart_svg(chart).count('class="dot ') == 4


@pytest.mark.parametrize(("limit", "drawn"), [(60, True), (10**6, False), (None, False)])
def test_a_trade_draws_the_limit_where_it_lies_among_the_points(limit, drawn):
    table = Table(columns("a"), [("0",), ("1",)])
    figure = trade_figure(
        "t",
        [TradePoint(0.0, 100.0), TradePoint(0.5, 40.0, "chosen")],
        table,
        TradeAxes("cost", "share", "bytes"),
        limit_bytes=limit,
    )
    assert ("limit 60 B" in chart_svg(figure.charts[0][1])) == drawn


def test_what_training_steps_tell_is_a_page():
    order = ds.plan_order(random_graph(random.Random(8), 3))
    needs = tuple(StepNeed(step, "addmm", f"{HOSTILE}{step}", 10 * step) for step in range(3))
    live = (LiveBuffer("buf0", 64, "model.py:7"),)
    told = OrderReport("graph 0 (forward)", 3, 200, 150, order, True, "op1", live, needs, needs[::-1])
    markup = ds.report(told).page()
    assert "model.py:7" in markup and "addmm" in markup and '<script>alert("x")' not in markup
    assert "moved operator" in markup
    assert "dashed: the best of Inductor&#39;s orders" in markup and "peak_bytes" not in markup
    for chosen in (True, False):  # an equal peak in our order or in Inductor's
        equal = ds.report(replace(told, inductor_bytes=order.peak_bytes, chosen=chosen)).page()
        assert ("holds less where kernels share a call" in equal) == chosen
    unproven = replace(order, evidence=replace(order.evidence, bound=1, proven=False))
    for graph, ours in (("graph 0 (training step)", order), ("graph 1 (backward)", unproven)):
        steps = next_of(ds.report(replace(told, graph=graph, order=ours)).page())
        assert "state peak_bytes" in steps and "Nothing is known" not in steps and "--" not in steps
        assert ("Search longer (a larger work_limit)" in steps) == (ours is unproven)
    relu = RepeatedOperator("relu", "net.py:7", 24, 2e-3)
    front = ((0.0, 200), (2e-3, 90), (5e-3, 60))
    again = RecomputeReport(100, 90, 2e-3, 200, (3e-3, 120), (relu,), front, 7, 0.1)
    markup = ds.report(again).page()
    for said in (
        "200 → 90 B",
        "peak that was asked for",
        "PyTorch&#39;s own choice",
        "peak_bytes=60: 30 B less, for 3 ms more",
        "peak_bytes=200: 2 ms less",
        "net.py:7",
        "2 ms",
    ):
        assert said in markup, said


def test_what_runs_twice_is_a_page_and_a_text():
    graph = random_graph(random.Random(9), 8)
    order = ds.plan_order(graph)
    found = ds.Recomputation(graph, order, (graph.ops[0].name,), 7.0, Evidence("r", 7, 7, True), ((0.0, 900), (7.0, 5)))
    report = ds.report(found)
    assert "1 operator run twice" in report and graph.ops[0].name in report
    assert "with 1 operator run twice" in report.page() and "Memory against what runs again" in report.page()
    assert f"<td>{graph.ops[0].name}<td>{graph.ops[0].kind}<td" in report.page()


def test_an_order_of_a_bare_problem_has_the_curve_of_its_live_bytes():
    storages = (ds.Storage(10, (0,), (1, 2)), ds.Storage(40, (2,), (3,)), ds.Storage(5, (1,), (3,)))
    problem = ds.OrderProblem(((), (0,), (0,), (1, 2)), (*storages, ds.Storage(5, (3,), (), kept=True)))
    order = ds.plan_order(problem)
    said = ds.report(problem, order)
    needs = profile(problem, order.steps)
    step = needs.index(max(needs))
    assert (
        f"Peak {max(needs)} B\n" in said
        and f"the peak is at step {step}, operator {order.steps[step]}\n" in f"{said}\n"
    )
    page = said._repr_html_()
    assert "Live bytes" in page and all(f"operator {index}" in page for index in range(4))
    with pytest.raises(ds.InvalidPlan, match="4 operators; this order, of 1 steps"):
        ds.report(problem, replace(order, steps=(0,)))
    with pytest.raises(ds.UsageError, match="with its order alone"):
        ds.report(problem, ds.plan_arena([ds.Record("r", 0, 1, 8)]))
