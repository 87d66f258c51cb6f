"""A gap above 100 % says nothing: no screen or page shows one, and JSON has the gap and the bound with its space."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import downset as ds
from downset.reports.documents import document_of
from downset.reports.fit_document import fit_document
from downset.reports.gaps import bound_text, gap_of, gap_text
from downset.reports.json_form import json_of
from downset.reports.page.render import render
from downset.reports.pipeline_sentences import period_claim
from downset.reports.terminal import text_of
from downset.results.fit import Figure
from tests.cluster_toml import cluster_toml
from tests.models import branchy_model

SRC = Path(ds.__file__).parent


@given(st.integers(1, 10**6), st.integers(0, 10**8))
def test_a_gap_is_shown_exactly_where_it_is_at_most_100_percent(bound, above):
    """Integers alone decide: bound + above is at most twice the bound where `above` is at most the bound."""
    gap = gap_of(bound + above, bound)
    cell = gap_text(gap)
    assert bool(cell) == (above <= bound)
    assert bound_text("x", gap) == ("bound x" + (f", gap {cell}" if above <= bound else ""))
    assert gap_of(bound + above, bound) == pytest.approx(above / bound, abs=1e-9)
    if cell:
        assert abs(float(cell.removesuffix("%")) - 100 * above / bound) <= 0.05 + 1e-9


def test_without_a_bound_no_gap_is_claimed():
    assert (gap_of(7, 0), gap_text(None), bound_text("0 B", None)) == (None, "", "bound 0 B")
    assert (gap_of(0, 0), gap_text(0.0)) == (0.0, "0.0%")


SHARES = [(100, "0.0%"), (150, "50.0%"), (200, "100.0%"), (201, None), (2137, None)]


def shown(markup_or_text, cell):
    """The percentages above 100, and whether the cell is there."""
    found = [
        float(share) for share in re.findall(r"([\d.]+)%", re.sub(r"<(style|script)[\s\S]*?</\1>", "", markup_or_text))
    ]
    return [share for share in found if share > 100] == [] and (cell is None or cell in markup_or_text)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    path = branchy_model(tmp_path_factory.mktemp("gaps") / "net.onnx")
    return ds.fit(path, target="torch", rewrite="off", time_limit_s=1)


@pytest.mark.parametrize(("after", "cell"), SHARES)
def test_fit_shows_none_above_100_percent(fitted, after, cell):
    figure = Figure(after, after, 100, after == 100)
    result = replace(fitted, peak=figure, arena=figure)
    document = fit_document(result)
    assert shown(text_of(document), cell)
    assert shown(render(document), None if after == 100 else cell)  # where it is proven a page states no gap
    for key in ("peak_bytes", "arena_bytes"):
        said = json_of(document)[key]
        assert said["bound"] == 100
        assert said["gap"] == pytest.approx(after / 100 - 1)
        assert said["space"].startswith("every order")


@pytest.mark.parametrize(("after", "cell"), SHARES)
def test_arena_shows_none_above_100_percent(fitted, after, cell):
    arena = fitted.together.arena
    evidence = replace(arena.evidence, value=after, bound=100, proven=after == 100)
    assert shown(ds.report(replace(arena, evidence=evidence)), None if after == 100 else cell)


@pytest.mark.parametrize(("after", "cell"), SHARES[1:])
def test_pipelines_show_none_above_100_percent(fitted, after, cell, tmp_path):
    (tmp_path / "c.toml").write_text(cluster_toml({"a": 1e9, "b": 1e9}))
    plan = ds.plan_pipeline(fitted.graph, ds.load_cluster(tmp_path / "c.toml"), method="single")
    plan = replace(plan, evidence=replace(plan.evidence, value=float(after), bound=100.0, proven=False))
    assert shown(period_claim(plan), cell)
    assert ("gap" in period_claim(plan)) == (cell is not None)
    page = render(document_of(fitted.graph, plan))
    assert (f"gap {cell}" in page) if cell else (", gap" not in page)


def test_no_other_place_divides_by_a_bound():
    """A screen or page that computes a gap for itself would show any."""
    for folder in ("reports", "commands"):
        for path in (SRC / folder).rglob("*.py"):
            lines = path.read_text().splitlines()
            found = [line for line in lines if re.search(r"/ *\w*\.?\w*bound|bound\w* *- *1\b", line)]
            assert path.name == "gaps.py" or not found, (path, found)
