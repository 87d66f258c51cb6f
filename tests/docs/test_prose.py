"""Docstrings, comments and pages are plain technical English: words and openings that stop a reader are refused."""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DISCOURAGED = {
    r"rivals?": "baseline, incumbent, conflict",
    r"swallow(s|ed|ing)?": "accept, lose",
    r"lacking": "missing",
    r"whoever": "the user, the caller, everyone who",
    r"none either": "say which value it has",
    r"(what|that|which) (is|are) no numbers?": "NaN",
    r"no words on": "nothing is printed on",
    r"houses?": "package, folder",
    r"magic": "say what it does",
    r"simply|obviously|of course": "leave it out",
}
READ = (".py", ".hpp", ".cpp", ".md")
OPENINGS = {"Of", "What", "No", "Such", "So", "As", "For", "In", "To", "On", "At", "With", "Without", "From", "Under"}
"""Docstrings that open so are fragments; a docstring opens with what the thing does or is."""


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def docstrings(source):
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip()


def comments(source):
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose(path):
    """(line, text) of what people read in a file."""
    source = path.read_text()
    if path.suffix == ".py":
        return [*docstrings(source), *comments(source)]
    if path.suffix in (".hpp", ".cpp"):
        return [(n, line.partition("//")[2]) for n, line in enumerate(source.splitlines(), 1) if "//" in line]
    without_code = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL)
    return list(enumerate(without_code.splitlines(), 1))


def discouraged(text):
    plain = re.sub(r"`[^`]*`", "", text)
    return [
        f"{found[0]!r}: {instead}"
        for pattern, instead in DISCOURAGED.items()
        if (found := re.search(rf"\b(?:{pattern})\b", plain, re.IGNORECASE))
    ]


@pytest.mark.parametrize("folder", ["src", "native", "experiments", "zoo", "tests", "docs", "*.md"])
def test_discouraged_words(folder):
    files = [path for path in tracked(folder) if path.suffix in READ and path != Path(__file__)]
    assert files
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in files
        for line, text in prose(path)
        for fault in discouraged(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_docstrings_open_with_what_the_thing_does_or_is():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in tracked("src/**/*.py", "src/*.py", "experiments/**/*.py", "zoo/*.py")
        for line, text in docstrings(path.read_text())
        if text and text.split()[0] in OPENINGS
    ]
    assert not wrong, "\n".join(wrong)


def test_the_test_sees_what_it_refuses():
    assert discouraged("The rivals plan on fewer cuts.") and discouraged("zero times what is no number is none either")
    assert not discouraged(
        "`rivals` is a name, and lacks nothing in quotes: `lacks`".replace("lacks nothing", "has all")
    )
    assert [text for _, text in docstrings('def f():\n    """Of all."""\n')] == ["Of all."]


def test_every_word_of_the_glossary_stands_once():
    text = (ROOT / "docs/glossary.md").read_text()
    for section in text.split("\n## ")[1:]:
        words = [word for entry in re.findall(r"\*\*([^*]+)\*\*", section) for word in re.split(r", ", entry.lower())]
        assert len(words) == len(set(words)), section.splitlines()[0]
