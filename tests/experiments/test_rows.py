"""Rows of this run and the committed rest."""

import pytest

from experiments import rows


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "FOLDER", tmp_path / "results")


def test_rows_of_this_run_take_the_places_of_their_old_selves():
    old = [
        {"model": "a", "batch": 1, "ms": 1},
        {"model": "b", "batch": 1, "ms": 2},
        {"model": "b", "batch": 2, "ms": 3},
    ]
    rows.save_rows("table", old)
    new = [{"model": "b", "batch": 1, "ms": 20}, {"model": "c", "batch": 1, "ms": 40}]
    assert rows.rest_of_rows("table", new, by=["model", "batch"]) == [old[0], old[2]]
    assert rows.rest_of_rows("table", new, by=["model"]) == [old[0]]
    assert rows.load_rows("table") == old
    rows.save_rows("table", new, by=["model", "batch"])
    assert rows.load_rows("table") == [old[0], new[0], old[2], new[1]]


def test_without_columns_the_table_is_replaced_whole():
    rows.save_rows("table", [{"a": 1}])
    rows.save_rows("table", [{"a": 2}])
    assert rows.load_rows("table") == [{"a": 2}]
    assert rows.load_rows("no such table") == []
