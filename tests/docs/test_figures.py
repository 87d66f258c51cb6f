"""Every figure in README and docs has a source: a committed row that a named command makes, a test that checks it where
it stands, or a word on what else it is. `figures.toml` says which; a figure that is not in it fails."""

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
LIST = tomllib.loads((Path(__file__).parent / "figures.toml").read_text())
KINDS = {"paper", "constant", "by hand", "version", "somebody else's"}
FIGURE = re.compile(
    r"(?<![\w.,-])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\d+(?=[  ]?(?:%|(?:ms|s|B|KB|MiB|x|h)\b)))(?![\d-])"
)
"""Numbers with thousands or decimals, and numbers in front of a unit. Plain small counts are words."""


def shown(page):
    """The page without programs, code, targets of links and comments, lines kept: what is left is said, not shown."""
    text = (ROOT / page).read_text()
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])  # noqa: E731
    for pattern in (r"```.*?```", r"<!--.*?-->", r"`[^`\n]*`", r"\]\([^)]*\)"):
        text = re.sub(pattern, blank, text, flags=re.DOTALL)
    return text


def spans(page, words):
    """Where these words stand in the page, whatever its line breaks."""
    pattern = r"\s+".join(re.escape(word) for word in words.split())
    return [match.span() for match in re.finditer(pattern, (ROOT / page).read_text())]


def table_span(page, header):
    """From the header of the one table that starts with it to the table's end."""
    lines = (ROOT / page).read_text().splitlines(keepends=True)
    (first,) = (at for at, line in enumerate(lines) if line.startswith(header))
    last = first
    while last < len(lines) and lines[last].startswith("|"):
        last += 1
    return len("".join(lines[:first])), len("".join(lines[:last]))


def results(name):
    def plain(value):
        if isinstance(value, dict):
            return SimpleNamespace(**{re.sub(r"\W", "_", key): plain(item) for key, item in value.items()})
        return [plain(item) for item in value] if isinstance(value, list) else value

    return [plain(row) for row in json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text())]


def commands():
    """By name of a results file: the module that makes it, run by `python -m`."""
    found = {}
    for path in sorted((ROOT / "experiments").rglob("*.py")):
        text = path.read_text()
        pattern = r'^[A-Z]+ = "(\w+)"|\b(?:save_rows|Experiment)\(\s*"(\w+)"'
        found |= dict.fromkeys(re.findall(pattern, text, re.MULTILINE), path)
    return {one or other: path for (one, other), path in found.items()}


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_has_a_source(page):
    covered = [table_span(page, item["header"]) for item in LIST.get("table", []) if item["page"] == page]
    for item in LIST.get("figure", []):
        if item["page"] == page:
            covered += spans(page, item["text"])
    text = shown(page)
    missing = [
        f"{page}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for match in FIGURE.finditer(text)
        if not any(start <= match.start() and match.end() <= end for start, end in covered)
    ]
    assert not missing, f"figures without a source; say in tests/docs/figures.toml where they come from: {missing}"


def figures_of(item):
    """The figures in its words, as the page shows them (without code)."""
    text = shown(item["page"])
    found = []
    for start, end in spans(item["page"], item["text"]):
        found.append([match[0] for match in FIGURE.finditer(text[start:end])])
    return found


@pytest.mark.parametrize("item", LIST["figure"], ids=lambda item: f"{item['page']}: {item['text'][:40]}")
def test_figures_are_those_of_their_rows(item):
    places = figures_of(item)
    assert places, f"{item['page']} does not say {item['text']!r}"
    assert all(place == places[0] for place in places) and places[0], item["text"]
    if "file" not in item:
        checked_elsewhere(item)
        return
    assert len(places[0]) == len(item["values"]), (places[0], item["values"])
    for figure, value in zip(places[0], computed(item), strict=True):
        digits = len(figure.partition(".")[2])
        assert f"{value:.{digits}f}" == figure.replace(",", ""), (figure, value)


def computed(item):
    """The values of an entry: expressions of `row`, the one that `where` picks or the one of this figure (`each`), or
    of all `rows` that `where` picks."""
    rows = [row for row in results(item["file"]) if matches(row, item.get("where", {}))]
    assert rows, f"no row of {item['file']} is like that"
    picks = item.get("each", [{}] * len(item["values"]))
    for expression, pick in zip(item["values"], picks, strict=True):
        picked = [row for row in rows if matches(row, pick)]
        names = {"rows": rows, "row": picked[0] if len(picked) == 1 else None}
        yield eval(expression, {"__builtins__": {}, "max": max, "min": min, "sum": sum, "len": len, **names})


def matches(row, columns):
    return all(getattr(row, name, None) == value for name, value in columns.items())


def checked_elsewhere(item):
    """What is not a figure of a row, or is held to its rows by another test, which reads them."""
    if "is" in item:
        assert item["is"] in KINDS
        return
    tests = "".join(path.read_text() for path in sorted((ROOT / "tests" / "docs").glob("test_*.py")))
    assert f"\ndef {item['test']}(" in tests
    body = tests[tests.index(f"\ndef {item['test']}(") :].split("\ndef ", 2)[1]
    for name in item["files"]:
        assert f'"{name}"' in body, f"{item['test']} does not read {name}"


@pytest.mark.parametrize("item", LIST["table"], ids=lambda item: f"{item['page']}: {item['header'][:40]}")
def test_tables_are_checked_by_a_test_or_said_to_be_something_else(item):
    checked_elsewhere(item)


def test_every_results_file_is_made_by_a_command_that_is_named():
    made = commands()
    named = {item["file"] for item in LIST["figure"] if "file" in item}
    named |= {name for items in LIST.values() for item in items for name in item.get("files", ())}
    for name in named:
        assert name in made, f"no experiment writes {name}"
        module = made[name]
        assert re.search(r"^if __name__ == .__main__.:\n    (main|run)\(", module.read_text(), re.MULTILINE)
        assert "python -m experiments." in module.read_text(), f"{module} does not say how it is run"


def test_a_figure_without_a_source_is_found(tmp_path, monkeypatch):
    """The check can fail: a page with one figure more, one that is wrong, and one in code, which is none."""
    (tmp_path / "README.md").write_text("It takes 1,234 B, see `9,999 B`.\n\n| a | b |\n|---|---|\n| x | 5.5 ms |\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "LIST", {"figure": [], "table": []})
    with pytest.raises(AssertionError, match=r"README.md:1: 1,234.*README.md:5: 5\.5"):
        test_every_figure_has_a_source("README.md")
    listed = [{"page": "README.md", "header": "| a | b", "is": "by hand"}]
    monkeypatch.setitem(globals(), "LIST", {"figure": [], "table": listed})
    with pytest.raises(AssertionError, match="1,234"):
        test_every_figure_has_a_source("README.md")
    (tmp_path / "experiments" / "results").mkdir(parents=True)
    (tmp_path / "experiments" / "results" / "some.json").write_text('[{"nbytes": 1234}]')
    item = {"page": "README.md", "text": "takes 1,234 B", "file": "some", "values": ["row.nbytes"]}
    test_figures_are_those_of_their_rows(item)
    with pytest.raises(AssertionError, match="1,234"):
        test_figures_are_those_of_their_rows({**item, "values": ["row.nbytes + 1"]})
