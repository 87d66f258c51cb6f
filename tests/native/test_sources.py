"""What the comments in native/ point at is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for path in (ROOT / "native").rglob("*") if path.is_file()]


def test_twins_and_neighbours_exist():
    named = 0
    for path in SOURCES:
        text = path.read_text()
        for twin in re.findall(r"\bdownset/[\w/]+\.pyi?\b", text):
            assert (ROOT / "src" / twin).is_file(), f"{path.name} names {twin}"
            named += 1
        for header in re.findall(r"\b(?:\w+/)*\w+\.hpp\b", text):
            assert (ROOT / "native" / header).is_file() or (path.parent / header).is_file(), f"{path.name}: {header}"
    assert named > 10
