"""The pictures of the pages are what their script draws, and each is on a page."""

import re
from pathlib import Path

from docs_site.embedding import LIMIT_BYTES, PICTURE, fitted, memory_map_of
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


def words_of(picture):
    return re.findall(r"<text[^>]*>([^<]+)</text>", picture)


def test_the_memory_map_of_readme_is_that_of_a_fit():
    """It has what a reader must know: title, model, target, peak, bound, limit, and what TFLite Micro takes in
    addition to the arena, which README's words count, too."""
    fit = fitted()
    picture = PICTURE.read_text()
    assert picture == memory_map_of(fit), "run python -m docs_site.embedding"
    words = words_of(picture)
    assert f"embedding_model.tflite on TFLite Micro: peak of live bytes {fit.peak.after:,} B" in words
    parts = fit.measured.details
    for heading, file, arena in (("before", "original", fit.arena.before), ("after", fit.shipped, fit.arena.after)):
        tail, total = parts[file]["tail_bytes"], parts[file]["total_bytes"]
        (said,) = (word for word in words if word.startswith(f"{heading}: "))
        assert said.startswith(f"{heading}: arena {arena:,} B, tail {tail:,} B, in all {total:,} B")
        assert f"in all {total:,} B" in words
    assert "peak" in words and any(word.startswith(f"bound {fit.arena.bound:,} B") for word in words)
    assert fit.measured.after <= LIMIT_BYTES < fit.measured.before
    assert words.count(f"limit {LIMIT_BYTES:,} B") == 2
    readme = (DOCS.parent / "README.md").read_text()
    (told,) = re.findall(r"!\[Memory of the model before and after: ([\d,]+) and ([\d,]+) bytes\]", readme)
    assert told == (f"{fit.measured.before:,}", f"{fit.measured.after:,}")
    commands = re.findall(r"^\$ (downset fit .*)$", readme, re.MULTILINE)
    assert sum(f" --ram {LIMIT_BYTES // 1024}KB " in command for command in commands) == 1
