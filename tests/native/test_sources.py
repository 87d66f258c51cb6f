"""What the comments in native/ point at is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for path in (ROOT / "native").rglob("*") if path.is_file()]


def test_oracles_and_neighbours_exist():
    named = 0
    for path in SOURCES:
        text = path.read_text()
        for folder, file in re.findall(r"\b(downset|tests|experiments)(/[\w/]+\.pyi?)\b", text):
            named += 1
            assert (ROOT / {"downset": "src/downset"}.get(folder, folder) / file[1:]).is_file(), f"{path.name}: {file}"
        for header in re.findall(r"\b(?:\w+/)*\w+\.hpp\b", text):
            assert (ROOT / "native" / header).is_file() or (path.parent / header).is_file(), f"{path.name}: {header}"
    assert named > 10
