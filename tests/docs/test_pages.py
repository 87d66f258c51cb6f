"""Pages are reached from the README and name commands, methods and files that exist; docstrings name things that are
where they say."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from downset.commands.group import COMMANDS
from downset.pipelines.planners import PIPELINERS

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


def table(first_header, text):
    """The rows of the table whose header starts with these words, each a list of cells."""
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"| {first_header}"))
    found = []
    for line in [lines[at], *lines[at + 2 :]]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found[0], found[1:]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("profiles", "keys")])
def test_options_of_commands_exist(command):
    _, lines = table("command | what it does", (ROOT / "docs" / "commands.md").read_text())
    usages = [line[0] for line in lines if line[0].startswith(f"`downset {command} ")]
    assert usages
    usage = " ".join(usages)
    made = getattr(importlib.import_module(f"downset.commands.{command.replace('-', '_')}"), command.replace("-", "_"))
    known = {option for parameter in made.params for option in parameter.opts}
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", usage))
    assert named <= known
    for choices in re.findall(r"(?:--[a-z-]+) ([a-z-]+(?:\\\|[a-z-]+)+)", usage):
        assert any(
            set(choices.split("\\|")) <= set(getattr(parameter.type, "choices", ())) for parameter in made.params
        ), choices


def test_planners_of_pipelines_are_in_their_page():
    page = (ROOT / "docs" / "pipelines.md").read_text()
    for name in PIPELINERS:
        assert f"| `{name}` |" in page


def test_every_experiment_of_stages_is_in_their_page():
    page = (ROOT / "docs" / "stages.md").read_text()
    scripts = [path for path in (ROOT / "experiments" / "ios").glob("*.py") if "__main__" in path.read_text()]
    assert len(scripts) > 10
    for path in scripts:
        assert f"| `{path.stem}` |" in page, path.stem


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_links_and_commands_of_pages_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for module in set(re.findall(r"python -m\s+(experiments\.[\w.]+\w)", text)):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists() or "NAME" in module, module
    for target in set(re.findall(r"make ([a-z-]+)", text)):
        if f"make {target}`" in text:
            assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target
    for file in set(re.findall(r"\b((?:tests|experiments|src|docs)/[\w/.-]+\.(?:py|md|json))", text)):
        assert (ROOT / file).exists(), file
