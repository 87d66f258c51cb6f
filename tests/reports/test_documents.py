"""A result is a document once: terminal, page and JSON show what stands there, and nothing else."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import downset as ds
from downset.reports.document import JSON_ONLY, PAGE, TERMINAL, Column, Document, Table, Value, Verdict
from downset.reports.documents import document_of
from downset.reports.fit_document import fit_document
from downset.reports.inspection import inspection_document
from downset.reports.json_form import json_of
from downset.reports.page.render import render
from downset.reports.pipeline_documents import simulation_document
from downset.reports.terminal import text_of
from tests.cluster_toml import cluster_toml
from tests.models import branchy_model

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
