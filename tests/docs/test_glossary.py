"""The glossary has each word once, and every word of the interface: options and table headings of all commands."""

import ast
import re
from functools import cache
from pathlib import Path

import click
import pytest

from docs_site.pages import leaves

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()

NAMED = {
    "--accept-runs": "accepted runs",
    "--window": "frame window",
    "--head": "head node",
    "--listen": "service",
    "--memory": "memory model",
    "--worker-memory": "worker",
    "--fast": "fast memory",
    "--slow": "slow memory",
    "--prices": "price",
    "--comm": "communication",
    "--dtype": "element type",
    "--max-ops": "operator",
    "--max-recompute": "recomputation",
    "--replan": "pipeline run",
    "--what-if": "device",
    "--input": "tensor",
    "--name": "device",
    "runtime memory": "runtime memory",
    "live": "live bytes",
    "live bytes (analytic)": "live bytes",
    "lower bound": "bound",
    "runs after": "order",
}
"""Options and headings that stand for a term of another name, which says more than they do."""

EVERYDAY = {
    "what a file, a program or a machine is called": "address buffer file header host int8 json model name object "
    "ort output process ram thread",
    "numbers, places and times": "byte choice cost day length limit ms result setting shape start time",
    "relations of numbers, which the row or the title names": "after again against before budget default "
    "made max more moved original taken",
    "what a command does, as its help says": "ahead align check compare compute computing export fail hold inexact "
    "larger local no quiet receive receiving send sending slow slower trust verbose wait",
    "plain words": "and at by grow in it its memory of on the what",
    "a product": "cortex-m",
}
"""Words that a newcomer knows or that the help explains whole, by the reason for which they need no entry."""


def terms(text):
    return {term for entry in re.findall(r"\*\*([^*]+)\*\*", text) for term in entry.lower().split(", ")}


def singular(word):
    """The word without the ending of a plural."""
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


TERMS = {" ".join(map(singular, term.split())) for term in terms(GLOSSARY)}
PLAIN = {singular(word) for words in EVERYDAY.values() for word in words.split()}


def without_entry(text, named=NAMED):
    """The words of an option or a heading that are in neither list; none where the whole is a term."""
    if text in named:
        return [] if " ".join(map(singular, named[text].split())) in TERMS else [named[text]]
    words = [singular(word) for word in re.findall(r"[a-z][a-z0-9]*(?:-(?:m|up)\b)?", text.lower().removeprefix("--"))]
    return [] if " ".join(words) in TERMS else [word for word in words if word not in TERMS | PLAIN]


def options():
    return sorted(
        {
            option
            for _, command in leaves()
            for parameter in command.params
            if isinstance(parameter, click.Option)
            for option in (*parameter.opts, *parameter.secondary_opts)
            if option.startswith("--")
        }
    )


def strings(node):
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


TITLED = {"Column", "seconds", "part", "_part", "time"}
"""What makes a column of its first argument, its title."""


def headings(source):
    """The column titles in a module: those of columns, arguments of `columns`, and variables that are called titles."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[title, *_]) if name in TITLED:
                listed = [title]
            case ast.Call(func=ast.Name(id="columns"), args=listed):
                listed = [one for one in listed if not isinstance(one, ast.Name)]
            case (
                ast.Assign(targets=[ast.Name(id="titles")], value=titles)
                | ast.AugAssign(target=ast.Name(id="titles"), value=titles)
            ):
                listed = [titles]
            case _:
                continue
        yield from (title for part in listed for title in strings(part) if title and title[0] not in "{ ")


@cache
def all_headings():
    return sorted(
        {title for path in (ROOT / "src/downset/reports").rglob("*.py") for title in headings(path.read_text())}
    )


def test_every_word_of_the_glossary_stands_once():
    words = [word for entry in re.findall(r"\*\*([^*]+)\*\*", GLOSSARY) for word in re.split(r", ", entry.lower())]
    assert len(words) == len(set(words)), sorted({word for word in words if words.count(word) > 1})


def test_every_option_is_in_the_glossary():
    assert len(options()) > 60
    assert {option: words for option in options() if (words := without_entry(option))} == {}


def test_every_heading_is_in_the_glossary():
    assert len(all_headings()) > 60
    assert {title: words for title in all_headings() if (words := without_entry(title))} == {}


def test_no_everyday_word_is_a_term():
    """A word that has an entry needs no reason to have none; one that nothing uses is left out."""
    texts = {*options(), *all_headings()}
    used = " ".join(texts).lower()
    assert not {singular(word) for words in EVERYDAY.values() for word in words.split()} & TERMS
    assert [word for word in sorted(PLAIN) if word not in used] == []
    assert [text for text in NAMED if text not in texts] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [("--spare-frames", []), ("--budget-timings", []), ("--flux-limit", ["flux"]), ("p50, upper", ["upper"])],
)
def test_the_test_sees_words(text, words):
    assert without_entry(text, named={}) == words


def test_the_test_sees_headings():
    source = (
        'Column("a", "no", key="no")\ncolumns("b", f"c {x}", left=1)\ntitles = ["d"]\ntitles += ["e"] if x else []\n'
    )
    assert sorted(headings(source)) == ["a", "b", "c ", "d", "e"]
