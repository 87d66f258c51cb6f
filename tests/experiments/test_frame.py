"""The frame of the experiments: what a run prints, saves and leaves alone, and the figures that papers print."""

from importlib import import_module
from pathlib import Path

import pytest

from experiments import frame, rows
from experiments.frame import Experiment, beside, fields, line_of, printed, run

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [path for path in sorted((ROOT / "experiments").rglob("*.py")) if "\nEXPERIMENT = " in path.read_text()]
PRINTED = sorted(path.stem for path in frame.PAPERS.glob("*.toml"))
OLD = [{"model": "a", "bytes": 1}, {"model": "b", "bytes": 2}]
NEW = [{"model": "b", "bytes": 2000}, {"model": "c", "bytes": 3000}]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "FOLDER", tmp_path)
    rows.save_rows("table", OLD)
    return tmp_path


def experiment(made=tuple(NEW), **options):
    columns = (*fields("model"), *fields("bytes", spec=","))
    return Experiment("table", lambda _options: iter(made), columns, **options)


def test_rows_come_first_and_the_recorded_rest_is_marked(folder, capsys):
    run(experiment(key=("model",)), [])
    assert capsys.readouterr().out.splitlines() == [
        "| model | bytes |",
        "|---|---|",
        "| b | 2,000 |",
        "| c | 3,000 |",
        "| a (recorded) | 1 |",
        f"written: {folder / 'table.json'}",
    ]
    assert rows.load_rows("table") == [OLD[0], *NEW]


def test_each_row_is_saved_as_it_comes_where_rows_have_a_key(folder):
    seen = []

    def made():
        for row in NEW:
            yield row
            seen.append(rows.load_rows("table"))

    run(experiment(made(), key=("model",)), [])
    assert seen == [[OLD[0], NEW[0]], [OLD[0], *NEW]]


def test_without_a_key_the_table_is_replaced_whole_at_the_end(folder, capsys):
    def broken():
        yield NEW[0]
        raise OSError("no device")

    with pytest.raises(OSError, match="no device"):
        run(experiment(broken()), [])
    assert rows.load_rows("table") == OLD
    run(experiment(), [])
    assert rows.load_rows("table") == NEW
    assert "recorded" not in capsys.readouterr().out


@pytest.mark.parametrize("key", [(), ("model",)])
def test_without_inputs_what_is_recorded_is_printed_and_stays(folder, capsys, key):
    run(experiment(made=(), key=key), [])
    printed = capsys.readouterr().out
    assert printed.splitlines()[2:] == ["| a (recorded) | 1 |", "| b (recorded) | 2 |"]
    assert rows.load_rows("table") == OLD


@pytest.mark.parametrize("key", [(), ("model",)])
def test_quick_runs_write_nothing(folder, key):
    asked = []

    def made(options):
        asked.append(options)
        return NEW

    mine = {"--most": {"type": int, "default": 3}}
    run(Experiment("table", made, fields("model"), key=key, options=mine), ["--quick", "--most", "5"])
    assert (asked[0].quick, asked[0].most) == (True, 5)
    assert rows.load_rows("table") == OLD


def test_what_stands_below_is_made_of_all_rows(folder):
    given = []
    run(experiment(key=("model",), after=given.extend), ["--quick"])
    assert given == [*NEW, OLD[0]]


def test_cells():
    columns = (*fields("of_all", spec=".1%"), ("inside", "{a[b]!m:,}"), ("none", "{a[c]!m}"), *fields("yes", "absent"))
    row = {"of_all": 0.5, "a": {"b": 1}, "yes": True}
    assert line_of(columns, row) == "| 50.0% | 1,000 | - | yes | - |"
    assert line_of(columns, {"of_all": 0.5, "error": "x" * 200}, " !") == f"| 50.0% ! | {'x' * 100} |  |  |  |"


def test_the_paper_stands_beside_ours():
    columns = beside(lambda row: row["paper"], lambda row: row["ours"], ".2f", of="KB")
    assert [title for title, _ in columns] == ["paper, KB", "ours, KB", "ratio"]
    assert line_of(columns, {"paper": 2000.5, "ours": 1000.0}) == "| 2,000.5 | 1000.00 | 0.500 |"
    assert line_of(columns, {"paper": None, "ours": 1.0}) == "| - | 1.00 | - |"
    assert line_of(columns, {"paper": 2, "ours": None}) == "| 2 | - | - |"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_every_column_shows_something_of_the_recorded_rows(path, capsys):
    """A field that is misspelt would show nothing. And keys tell the recorded rows apart."""
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    one = module.EXPERIMENT
    recorded = rows.load_rows(one.name)
    keys = [tuple(row.get(column) for column in one.key) for row in recorded]
    assert not one.key or len(set(keys)) == len(keys)
    if one.lines is None and one.columns and recorded:
        lines = [line_of(one.columns, row) for row in recorded if "error" not in row]
        titles = [title for title, _ in one.columns]
        for title, *cells in zip(titles, *(line[2:-2].split(" | ") for line in lines), strict=True):
            assert set(cells) - {"-", ""}, f"{one.name}: {title}"
    if one.lines is not None:
        assert all("".join(one.lines(row, "")) for row in recorded)
    if one.after is not None and recorded:
        one.after(recorded)


@pytest.mark.parametrize("name", PRINTED)
def test_printed_figures_are_complete_and_asked_for(name):
    table = printed(name)
    assert table.paper and table.where and table.unit and table.rows
    assert any(f'printed("{name}")' in path.read_text() for path in (ROOT / "experiments").rglob("*.py"))


def test_a_printed_figure_is_that_of_one_row():
    table = frame.Printed(
        "a paper", "Table 1", "s", [{"n": 1, "figure": 2.0}, {"n": 1, "figure": 3.0}, {"n": 2, "s": 4}]
    )
    assert table.figure("s", n=2) == 4
    assert table.figure(n=2) is table.figure(n=3) is None
    with pytest.raises(ValueError, match="Table 1: 2 rows"):
        table.figure(n=1)
