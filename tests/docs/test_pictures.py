"""The pictures of the pages are what their script draws, and each is on a page."""

import re
from pathlib import Path

import downset as ds
from docs_site.pictures import FOLDER, pictures
from docs_site.swiftnet import PICTURE

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_committed_pictures_are_those_of_the_script():
    found = dict(pictures())
    assert {*FOLDER.glob("*.svg")} == {*found}
    stale = [path.name for path, text in found.items() if path.read_text() != text]
    assert not stale, f"{stale}: run python -m docs_site.pictures"


def test_every_picture_is_on_a_page():
    shown = {
        (page.parent / target).resolve()
        for page in DOCS.rglob("*.md")
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    }
    assert {path.resolve() for path in DOCS.rglob("*.svg")} == shown


def words_of(picture):
    return re.findall(r"<text[^>]*>([^<]+)</text>", picture)


def test_the_memory_map_of_readme_says_what_it_shows():
    picture = PICTURE.read_text()
    words = words_of(picture)
    assert {"SwiftNet on TFLite Micro: tensors in one arena", "bytes", "step: one operator after another"} <= {*words}
    assert {"Concat", "depthwise Conv", "peak", "Live bytes", "100 KB"} <= {*words}
    readme = (DOCS.parent / "README.md").read_text()
    before, after = re.search(r"Arena of SwiftNet before and after: ([\d,]+) and ([\d,]+) bytes", readme).groups()
    assert {f"before: arena {before} B", f"bound {after} B", f"arena {after} B, proven least"} <= {*words}


def test_the_memory_map_of_readme_is_drawn_as_today():
    """Its file is not here: `python -m docs_site.swiftnet` renews it."""
    drawn = ds.memory_map([("one", ds.plan_arena([ds.Record("a", 0, 2, 8)]))])
    style = re.compile(r"<style>.*?</style>", re.DOTALL)
    assert style.search(PICTURE.read_text())[0] == style.search(drawn)[0]
