"""Every page of the docs can be reached from the README, and docstrings name things that are where they say."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "downset"


def links(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    return {(page.parent / target).resolve() for target in targets if not target.startswith("http")}


def test_every_page_is_linked():
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        left += links(page)
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"}
    assert not {page.relative_to(ROOT).as_posix() for page in pages - reached}


def test_decisions_have_numbers_of_their_own():
    numbers = [path.name[:4] for path in (ROOT / "docs/decisions").glob("*.md")]
    assert len(numbers) == len(set(numbers)), sorted(numbers)


def defined(path):
    tree = ast.parse(path.read_text())
    names = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_docstrings_name_what_is_there():
    """`module.name` in a docstring, where only one file of ours has that name, names something of that file."""
    files = {}
    for path in SOURCE.rglob("*.py"):
        files.setdefault(path.stem, []).append(path)
    wrong = []
    for path in SOURCE.rglob("*.py"):
        for module, name in re.findall(r"`(?:\w+\.)*(\w+)\.(\w+)(?:\([^`]*)?`", path.read_text()):
            homes = files.get(module, [])
            folder = (SOURCE / module).is_dir() or any(SOURCE.glob(f"*/{module}"))
            if len(homes) == 1 and not folder and name not in defined(homes[0]) and name != "py":
                wrong.append(f"{path.relative_to(SOURCE)}: {module}.{name}")
    assert wrong == []
