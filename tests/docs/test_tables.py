"""Tables of pages are those of the recorded rows. `make lint` checks the committed pages."""

import re
import sys

import pytest

from docs_site.methods import FAMILIES
from docs_site.tables import __main__ as tables
from docs_site.tables.lines import lines
from downset.commands.arena import arena
from downset.commands.method_names import METHODS
from downset.commands.order import order
from downset.commands.split import split

PAGE = "| by hand |\n|---|\n| 1 |\n\n<!-- table: sizes -->\n\n| B |\n|---|\n| 7 |\n\nMore.\n"
TABLES = {"sizes": lambda: lines(["B", "what"], [["1,234", ""]])}


def test_a_marked_table_is_made_anew_and_all_else_stays():
    made = tables.with_tables(PAGE, TABLES)
    assert made == PAGE.replace("| B |\n|---|\n| 7 |", "| B | what |\n|---|---|\n| 1,234 | |")
    assert tables.with_tables(made, TABLES) == made
    with pytest.raises(KeyError, match="sizes"):
        tables.with_tables(PAGE, {})


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="'B'"):
        lines(["B", "what"], [["1,234"]])


def test_help_names_the_methods_of_each_registry():
    """Without the planners, which take long to import; a stale file of names fails the check, too."""
    wanted = {family.function: ", ".join(family.methods) for family in FAMILIES}
    assert wanted == METHODS
    for command, functions in (
        (arena, ("plan_arena", "plan_shared")),
        (order, ("plan_order",)),
        (split, ("plan_pipeline",)),
    ):
        (option,) = (one for one in command.params if one.name == "method")
        assert all(wanted[function] in option.help for function in functions)


def check(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tables", "--check"])
    with pytest.raises(SystemExit) as end:
        tables.main()
    return end.value.code


def test_a_stale_page_fails_the_check(tmp_path, monkeypatch, capsys):
    """A cell that differs, and rows that changed under the sentences that quote them."""
    page = tmp_path / "README.md"
    names = tmp_path / "names.py"
    monkeypatch.setattr(tables, "NAMES", names)
    monkeypatch.setattr(tables, "PAGES", [page])
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    (tmp_path / "some.json").write_text("[]")
    page.write_text("<!-- table: replans -->\n\nWords.\n\n<!-- quotes: some 0 -->\n")
    for stale in ("README.md", ""):
        code = check(monkeypatch)
        assert stale in str(code) if stale else code == 0
        monkeypatch.setattr(sys, "argv", ["tables"])
        tables.main()
    written = page.read_text()
    assert "| process killed" in written and re.search(r"quotes: some [0-9a-f]{8} -->\n$", written)
    assert capsys.readouterr().out.count("read them") == 1
    (tmp_path / "some.json").write_text("[1]")
    assert "README.md" in check(monkeypatch)
    page.write_text(written.replace("MB", "GB"))
    assert "README.md" in check(monkeypatch)
    names.write_text(names.read_text().replace("greedy_by_size, ", ""))
    assert "names.py" in check(monkeypatch)


def test_every_table_is_on_a_page():
    marked = [name for page in tables.PAGES for name in tables.MARKED.findall(page.read_text())]
    assert sorted(marked) == sorted(tables.TABLES)
