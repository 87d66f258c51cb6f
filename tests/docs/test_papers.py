"""docs/papers.md finds every printed algorithm: file and function exist, and the docstring names its source."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(
    r"^\| (?P<paper>[^|]+?) \| (?P<name>[^|]+?) \| `(?P<file>[^`]+)` \| `(?P<function>\w+)` \|$", re.MULTILINE
)


def test_every_printed_algorithm_is_where_the_table_says():
    rows = [match.groupdict() for match in ROW.finditer((ROOT / "docs/papers.md").read_text())]
    printed = [(row["paper"].split(" (")[0], row["name"].split(",")[0]) for row in rows if "Algorithm" in row["name"]]
    assert printed == [
        ("Ordering Chaos", "Algorithm 1"),
        ("Ordering Chaos", "Algorithm 2"),
        ("Efficient Memory Management", "Algorithm 1"),
        ("Efficient Memory Management", "Algorithm 2"),
        ("Efficient Memory Management", "Algorithm 3"),
        ("IOS", "Algorithm 1"),
        ("PICO", "Algorithm 1"),
        ("PICO", "Algorithm 2"),
        ("PICO", "Algorithm 3"),
    ]
    for row in rows:
        home = ROOT if row["file"].startswith("experiments/") else ROOT / "src/downset"
        tree = ast.parse((home / row["file"]).read_text())
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert row["function"] in functions, row
        said = ast.get_docstring(tree)
        assert said is not None
        assert "Source" in said, f"{row['file']} does not state its source"
        number = re.match(r"Algorithm \d", row["name"])
        if number:
            about = said + (ast.get_docstring(functions[row["function"]]) or "")
            assert number[0] in about or f"Algorithms {number[0][-1]}" in about, row
