"""What downset and its pages tell users to install: names of an extra's own packages, or paths; never `downset` from an
index, where it is not, and where another could take the name."""

import json
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from downset import extras
from downset.errors import UnsupportedError
from tests.extras_alone import EXTRAS, OURS, distributions

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("src", "experiments", "zoo", "docs_site", "docs", ".github")
READ = {".py", ".md", ".json", ".yml", ".j2", ".js"}
PAGES = [*ROOT.glob("*.md"), *(path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in READ)]
TOOLS = {"build", "ethos-u-vela", "openvino"}
"""Packages that pages name and no extra has: what builds a source distribution, and peers in experiments."""
NAMES = TOOLS | set().union(*map(distributions, EXTRAS))


def advised(text):
    """The arguments of every `pip install` in a text, to the end of its line or of the quotation that it stands in."""
    for words in re.findall(r"pip install((?:[ \t]+(?:'[^'\n]+'|[\w.=<>\[\],/~*+-]+))+)", text):
        yield from (word for word in shlex.split(words) if not word.startswith("-"))


def is_right(word):
    """Whether it is a path, with or without extras, or names a package that an extra asks for."""
    if re.fullmatch(r"\.{1,2}(/[\w./-]+)?(\[[\w,]+\])?", word):
        return set(re.findall(r"\w+", word.partition("[")[2])) <= set(EXTRAS)
    return re.split(r"[\[<>=~!]", word)[0].lower() in NAMES


def test_pages_and_programs_advise_what_works():
    found = {}
    for path in PAGES:
        text = path.read_text()
        assert not re.search(r"(?<![\w/.-])downset\s?\[[a-zA-Z]", text), f"{path} names downset as if an index had it"
        for word in advised(text):
            found.setdefault(word, []).append(path.name)
    assert {"README.md", "cluster.md"} <= {name for names in found.values() for name in names}
    assert {word: names for word, names in found.items() if not is_right(word)} == {}


@pytest.mark.parametrize("word", ["downset", "downset[torch]", "downset==0.2.0", "torhc", ".[torhc]", "./x.whl[torhc]"])
def test_wrong_advice_is_found(word):
    assert [is_right(one) for one in advised(f"it needs an extra: pip install -q '{word}'\n")] == [False]


@pytest.mark.parametrize("extra", sorted(OURS))
def test_a_missing_extra_says_what_installs_it(extra):
    with pytest.raises(UnsupportedError) as raised:
        extras.optional_library("no_such_module", what="this", extra=extra)
    said, _, words = str(raised.value).partition(": pip install ")
    assert said == f"this needs the extra {extra}"
    wanted = [Requirement(word) for word in shlex.split(words)]
    assert {one.name for one in wanted} == distributions(extra) and "downset" not in {one.name for one in wanted}
    stated = [Requirement(text) for texts in EXTRAS.values() for text in texts]
    assert all(any((one.name, one.specifier) == (other.name, other.specifier) for other in stated) for one in wanted)


def test_requirements_are_read_with_their_conditions(monkeypatch):
    stated = [
        "numpy>=1",
        "a>=1; extra == 'one'",
        'b[c]~=2.0 ; python_version < "3.12" and extra == "one"',
        "downset[one, two]; extra == 'both'",
        "d==1; extra == 'two'",
        "a>=1; extra == 'two'",
        "e; extra == 'twoo'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: stated)
    assert extras.requirements_of("both") == ("a>=1", 'b[c]~=2.0; python_version < "3.12"', "d==1")
    assert shlex.split(extras.installing("two")) == ["pip", "install", "d==1", "a>=1"]
    assert extras.installing("three") == ""


def test_without_metadata_the_extra_is_named(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", missing)
    with pytest.raises(UnsupportedError, match=r"^this needs the extra torch$"):
        extras.optional_library("no_such_module", what="this", extra="torch")


WITHOUT_TORCH = """
from importlib import metadata
version = metadata.version

def without(name):
    if name == "torch":
        raise metadata.PackageNotFoundError(name)
    return version(name)

metadata.version = without
"""


def test_doctor_says_what_installs_a_missing_extra(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)

    def say(*more):
        return subprocess.run(
            [sys.executable, "-m", "downset", "doctor", *more],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": "", "PYTHONPATH": str(tmp_path)},
        ).stdout

    lines = [line.strip() for line in say().splitlines()]
    (at,) = [at for at, line in enumerate(lines) if line.startswith("torch ")]
    assert "needs torch" in lines[at] and lines[at + 1] == extras.installing("torch")
    rows = {row["extra"]: row["requirements"] for row in json.loads(say("--json"))["extras"]}
    assert set(rows) == OURS
    assert all({Requirement(text).name for text in rows[name]} == distributions(name) for name in OURS)
