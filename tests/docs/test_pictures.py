"""The pictures of the pages are what their script draws, and each is on a page."""

import re
from pathlib import Path

from docs_site.pictures import FOLDER, pictures

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
