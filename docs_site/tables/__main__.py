"""The tables of README and docs, from the recorded rows in experiments/results, from the registries of methods and from
jobs that run under a profile; and the module with the names of methods for the help of commands.

    python -m docs_site.tables [--check]

A page marks a table by `<!-- table: NAME -->` before it. Where its sentences quote recorded rows, it ends with
`<!-- quotes: NAME DIGEST, ... -->`: the rows against which its sentences were read. The command writes the tables and
digests of all pages again, and names the pages whose quoted rows have changed: read their sentences. With `--check` it
writes nothing, names the stale pages and exits with 1.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from docs_site.methods import names_module
from docs_site.tables import field, jobs, memory, orders, pipelines, stages, training

__all__ = ["PAGES", "TABLES", "stale", "with_tables"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PARTS = (field, jobs, memory, orders, pipelines, stages, training)
TABLES: Mapping[str, Callable[[], list[str]]] = {name: table for part in PARTS for name, table in part.TABLES.items()}
NAMES = ROOT / "src" / "downset" / "commands" / "method_names.py"
MARKED = re.compile(r"^<!-- table: (.*?) -->\n(?:\n(?:\|.*\n)+)?", re.MULTILINE)
QUOTED = re.compile(r"^<!-- quotes: (.*?) -->$", re.MULTILINE | re.DOTALL)


def with_tables(text: str, tables: Mapping[str, Callable[[], list[str]]] = TABLES) -> str:
    """A page with its marked tables and digests made again. Raises KeyError where a mark names no table."""
    text = QUOTED.sub(lambda mark: f"<!-- quotes: {digests(mark[1])} -->", text)
    return MARKED.sub(lambda mark: "\n".join([f"<!-- table: {mark[1]} -->", "", *tables[mark[1]](), ""]), text)


def digests(quoted: str) -> str:
    """The digests of the results that a page quotes, which the old ones are replaced by."""
    names = [part.split()[0] for part in quoted.split(",")]
    digest = {name: hashlib.sha256((RESULTS / f"{name}.json").read_bytes()).hexdigest()[:8] for name in names}
    return ", ".join(f"{name} {digest[name]}" for name in names)


def stale() -> dict[Path, str]:
    """The pages that differ from what their rows make, and what they should be."""
    current = {path: with_tables(path.read_text()) for path in PAGES} | {NAMES: names_module()}
    return {path: text for path, text in current.items() if not path.exists() or text != path.read_text()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a page is stale")
    pages = stale()
    if parser.parse_args().check:
        names = [str(path.relative_to(ROOT)) for path in pages]
        raise SystemExit(f"stale: {', '.join(names)}: run python -m docs_site.tables" if names else 0)
    for path, text in pages.items():
        changed = {*QUOTED.findall(text)} - {*QUOTED.findall(path.read_text() if path.exists() else "")}
        path.write_text(text)
        print(
            "written:", path.relative_to(ROOT), *("its sentences quote rows that changed: read them" for _ in changed)
        )


if __name__ == "__main__":
    main()
