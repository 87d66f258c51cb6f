"""A result is a document once: terminal, page and JSON show what stands there, and nothing else."""

import html
import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import downset as ds
from downset.clusters.model import Cluster, Device, Network
from downset.pipelines.problem import chain_problem
from downset.reports.document import JSON_ONLY, PAGE, TERMINAL, Column, Document, Section, Steps, Table, Value, Verdict
from downset.reports.documents import document_of
from downset.reports.fit_document import fit_document
from downset.reports.inspection import inspection_document
from downset.reports.json_form import json_of
from downset.reports.page.render import render
from downset.reports.pipeline_documents import served_document, simulation_document, split_document
from downset.reports.terminal import text_of
from downset.results.serving import Served
from tests.cluster_toml import cluster_toml
from tests.models import branchy_model
from tests.plain_graphs import random_graph

SRC = Path(ds.__file__).parent
NUMBER = 987_654_321


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """A document of each kind of result, by the name of its schema where it has one."""
    folder = tmp_path_factory.mktemp("documents")
    path = branchy_model(folder / "net.onnx")
    (folder / "c.toml").write_text(cluster_toml({"a": 1e9, "b": 1e9}))
    graph, fit = ds.load(path), ds.fit(path, target="torch", rewrite="off", time_limit_s=1)
    order = ds.plan_order(graph)
    arena = ds.plan_arena(graph, order)
    plan = ds.plan_pipeline(graph, ds.load_cluster(folder / "c.toml"), method="single")
    return {
        "fit": fit_document(fit),
        "order": document_of(graph, order, arena),
        "arena": document_of(arena),
        "objects": document_of(ds.plan_shared(arena.records)),
        "split": document_of(graph, plan),
        "simulate": simulation_document(plan, ds.simulate(plan, frames=20)),
        "inspect": inspection_document(ds.inspect(graph)),
    }


def marked(document, *, on=TERMINAL | PAGE):
    """The document with a figure, and a column in each of its tables, that hold a number that nothing else holds."""
    figure = Value("a new figure", NUMBER, lambda value: f"{value:,}", key="new.figure", on=on)
    column = Column("a new column", lambda row: NUMBER + 1, lambda value: f"{value:,}", key="new", on=on)

    def widened(part):
        return replace(part, columns=(*part.columns, column)) if isinstance(part, Table) else part

    sections = tuple(replace(one, parts=tuple(map(widened, one.parts))) for one in document.sections)
    return replace(document, sections=sections, figures=(*document.figures, figure))


def page_text(document):
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", render(document), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", markup))


KINDS = ["fit", "order", "arena", "objects", "split", "simulate", "inspect"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", [TERMINAL | PAGE, TERMINAL, PAGE, JSON_ONLY])
def test_a_figure_is_written_in_one_place(documents, kind, on):
    """Terminal and page show it where they are meant to, and JSON always has it: in a table, too."""
    document = marked(documents[kind], on=on)
    text, page, values = text_of(document), page_text(document), json_of(document)
    for medium, shown in (("terminal", text), ("page", page)):
        assert (f"{NUMBER:,}" in shown) == (medium in on)
        tables = [part for part in document.parts if isinstance(part, Table) and medium in part.on and part.rows]
        assert (f"{NUMBER + 1:,}" in shown) == (bool(tables) and medium in on)
    assert values["new"]["figure"] == NUMBER
    keyed = [part for part in document.parts if isinstance(part, Table) and part.key and part.rows]
    for part in keyed:
        rows = values
        for key in part.key.split("."):
            rows = rows[key]
        assert [row["new"] for row in rows] == [NUMBER + 1] * len(part.rows)


QUANTITY = re.compile(r"(?<![\d.,])(\d[\d,]*(?:\.\d+)?(?:e-?\d+)?) (B|s|ms|µs|frames/s)(?![\w/])")
UNITS = {"B": (1.0, "B"), "s": (1.0, "s"), "ms": (1e-3, "s"), "µs": (1e-6, "s"), "frames/s": (1.0, "frames/s")}


def quantities(text):
    """The figures in a text, to three digits and in the same units whatever their form."""
    found = ((*UNITS[unit], float(number.replace(",", ""))) for number, unit in QUANTITY.findall(text))
    return Counter(f"{scale * number:.3g} {unit}" for scale, unit, number in found if number)


def repeated(document):
    """The figures that a screen's sentences state more often than there are values of that size in the document."""
    parts = [part for part in document.parts if not isinstance(part, Table | Steps)]
    sections = (Section("", tuple(parts)),)
    stated = quantities(text_of(replace(document, sections=sections)))
    values = Counter()
    for figure in document.figures:
        if isinstance(figure.value, int | float):
            for unit in ("B", "s"):
                values[f"{figure.value:.3g} {unit}"] += 1
    return {text: count for text, count in stated.items() if count > max(values[text], 1)}


def test_a_screen_states_a_figure_once(documents):
    """In whatever form: 69.94 ms is 0.0699444 s."""
    cluster = Cluster((Device("a", 1e9), Device("b", 0.7e9), Device("c", 0.4e9)), Network("links", 1e9, overlap=True))
    problem = chain_problem([(10_000_000, 3, 1, 64)] * 8, rows=32, row_bytes=64)
    plan = ds.plan_pipeline(problem, cluster, method="pico")
    assert len(plan.stages) > 1 and plan.latency_s > 1.1 * plan.period_s
    served = Served(9, 9, 1.0, 1.1 * plan.period_s, plan.period_s, plan.period_s, None, plan.latency_s, 0, (), ())
    pipelines = {
        "a split": split_document(plan),
        "a simulation": simulation_document(plan, ds.simulate(plan, frames=200)),
        "a run": served_document(plan, served),
        "a second run": served_document(plan, replace(served, replans=1, first_planned_period_s=2 * plan.period_s)),
        "an order": document_of(ds.plan_order(random_graph(random.Random(0), 9))),
    }
    for name, document in (documents | pipelines).items():
        assert repeated(document) == {}, name


def test_a_figure_that_is_stated_twice_is_found():
    verdict = Verdict("plain", "a frame every 69.94 ms", "period 0.0699444 s")
    assert repeated(Document("t", "", verdict, figures=(Value("period", 0.0699444, on=JSON_ONLY),))) == {"0.0699 s": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_the_values_in_json_are_those_that_people_see(documents, kind):
    """Each figure and each cell with a key: JSON has the value of which people see the text."""
    document = documents[kind]
    values, text, page = json_of(document), text_of(document), page_text(document)
    json.dumps(values)  # plain values alone

    def at(key):
        found = values
        for part in key.split("."):
            found = found[part]
        return found

    for figure in (*document.figures, *document.foot):
        if figure.key and isinstance(figure.value, int | float | str):
            assert at(figure.key) == figure.value
            if "page" in figure.on and figure.text:
                assert " ".join(figure.text.split()) in " ".join(page.split())
            if "terminal" in figure.on and figure.text and figure in document.figures:
                assert f"{figure.title}: {figure.text}" in text
    for part in document.parts:
        if isinstance(part, Table) and part.key:
            for row, item in zip(at(part.key), part.rows, strict=True):
                for column in part.columns:
                    if column.key and isinstance(column.of(item), int | float | str):
                        assert row[column.key] == column.of(item)


def test_a_key_stands_once():
    twice = Document("t", "", Verdict("plain", "h"), figures=(Value("a", 1, key="k.a"), Value("b", 2, key="k.a")))
    with pytest.raises(ValueError, match=r"two values at 'k\.a'"):
        json_of(twice)
    assert json_of(replace(twice, figures=twice.figures[:1])) == {"k": {"a": 1}}


def test_renderers_see_documents_and_no_results():
    """A renderer that looked at a result, or a command that built a table, would write a figure in a second place."""
    for path in ("terminal.py", "json_form.py", "page/render.py"):
        source = (SRC / "reports" / path).read_text()
        assert "downset.results" not in source and "downset.graph" not in source, path
    for path in (SRC / "commands").rglob("*.py"):
        assert "rich.table import Table" not in path.read_text(), path
