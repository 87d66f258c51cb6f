"""Docstrings, comments and pages are plain technical English: words and openings that stop a reader are refused."""

import ast
import io
import re
import tokenize
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = "it|ours|this|(?:the|a|an) (?:loaded )?(?:file|model|models|checkout|destination|paper|paper's|label)"
"""What stands after "beside" where it means a place; else another word says which relation is meant."""
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
    r"would do(?! (?:with|nothing))": "is enough",
    r"(?:cannot be )?made up(?! of)": "generated",
    r"comes? along": "built-in",
    r"none such": "no such",
    r"anew": "again, a new",
    r"(?<!there )(is|are) no (?!(longer|more|less|larger|lower|worse|better|smaller|higher)\b)\w+": "is not a, are not",
    r"is none of (?:this|its|the)|\{\} is none(?=$)": "is not one of",
    rf"beside(?! +(?:{PLACES})|[\s,;.:)]*$)": "in addition to, compared with, during, outside, next to",
    r"spread too far|tell anything": "vary too much for a verdict",
    r"dear(?:er|est)?": "expensive, cost more",
    r"on and on": "again and again",
}
FOLDERS = ("src", "native", "experiments", "zoo", "tests", "docs", "docs_site", "locks")
READ = (".py", ".pyi", ".hpp", ".cpp", ".md", ".j2", ".js")
MESSAGES = {"src", "experiments", "zoo", "docs_site"}
"""Folders of which the strings are read, too: what commands and scripts print."""
OPENINGS = {"Of", "What", "No", "Such", "So", "As", "For", "In", "To", "On", "At", "With", "Without", "From", "Under"}
"""Docstrings that open so are fragments; a docstring opens with what the thing does or is."""


def files_of(*patterns):
    """The project's files that match one of the patterns, in which a `*` also stands for folders, or lie in a folder
    that does."""
    there = [*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    names = {path.relative_to(ROOT).as_posix(): path for path in there if path.is_file()}
    wanted = [form for pattern in patterns for form in (pattern, f"{pattern}/*")]
    return [names[name] for name in sorted(names) if any(fnmatchcase(name, form) for form in wanted)]


@lru_cache(maxsize=1)
def nodes_of(source):
    """All nodes of the syntax tree of a module."""
    return [*ast.walk(ast.parse(source))]


def docstrings(source):
    for node in nodes_of(source):
        for statement in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip()


def comments(source):
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def messages(source):
    """(line, text) of the strings of a module of three words or more, without docstrings: what its users read.
    A value that is put in reads {}; strings side by side are one."""
    nodes = nodes_of(source)
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
    for node in nodes:
        match node:
            case ast.JoinedStr(values=parts):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
            case ast.Constant(value=str(text)):
                pass
            case _:
                continue
        if id(node) not in skipped and text.count(" ") >= 2:
            yield node.lineno, text


def prose(path):
    """(line, text) of what people read in a file."""
    source = path.read_text()
    if path.suffix in (".py", ".pyi"):
        return [*docstrings(source), *comments(source), *(messages(source) if MESSAGES & {*path.parts} else ())]
    if path.suffix in (".hpp", ".cpp", ".js"):
        return [(n, line.partition("//")[2]) for n, line in enumerate(source.splitlines(), 1) if "//" in line]
    without_code = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), source, flags=re.DOTALL)
    return list(enumerate(without_code.splitlines(), 1))


ANY = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in DISCOURAGED), re.IGNORECASE)


def discouraged(text):
    plain = re.sub(r"`[^`]*`", "", text)
    if not ANY.search(plain):
        return []
    return [
        f"{found[0]!r}: {instead}"
        for pattern, instead in DISCOURAGED.items()
        if (found := re.search(rf"\b(?:{pattern})\b", plain, re.IGNORECASE))
    ]


@pytest.mark.parametrize("folder", ["src", "native", "experiments", "zoo", "tests", "docs", "docs_site", "*.md"])
def test_discouraged_words(folder):
    files = [path for path in files_of(folder) if path.suffix in READ and path != Path(__file__)]
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
        for path in files_of("src/**/*.py", "src/*.py", "experiments/**/*.py", "zoo/*.py")
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
    said = 'def f(n):\n    """Of all."""\n    raise ValueError(f"only {n} bytes " "would do")\n'
    assert [text for _, text in messages(said)] == ["only {} bytes would do"] and discouraged("4 bytes would do")


def classes_of_one_name(sources):
    """Names of classes that stand more than once, with where; `_Search` and `Search` are one name to a reader."""
    homes = {}
    for home, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(f"{home}:{node.lineno}")
    return {name: found for name, found in homes.items() if len(found) > 1}


def test_no_two_classes_have_one_name():
    """The compiled module's stub is left out: a class there is the twin of the one in Python that has its name."""
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in files_of("src/downset/*.py")}
    assert len(sources) > 300
    assert classes_of_one_name(sources) == {}


def test_the_test_sees_classes():
    sources = {"a.py": "class Search: ...\nclass Step: ...", "b.py": "def f():\n    class _Search: ..."}
    assert classes_of_one_name(sources) == {"Search": ["a.py:1", "b.py:2"]}


UNTELLING = {"at", "found", "made", "known"}
"""Names of variables in whose place a noun says what they hold: step, offset, plan, output, sizes."""


def untelling(source):
    """(line, name) of variables and parameters with a name that says nothing; no fields of classes."""
    tree = ast.parse(source)
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in UNTELLING:
                if id(node) not in fields:
                    yield node.lineno, name


NATIVE_NAME = re.compile(r"(?<![\w.:>])(?:(?:at|known)\b(?!\s*\()|(?:found|made)\b)")
"""One of these names in C++ where it is no member of something; with a parenthesis `at` and `known` are functions."""


def untelling_native(source):
    """(line, name) of such names in C++, outside of comments and strings."""
    for number, line in enumerate(source.splitlines(), 1):
        code = re.sub(r'"(?:\\.|[^"\\])*"', "", line).partition("//")[0]
        for match in NATIVE_NAME.finditer(code):
            yield number, match[0]


@pytest.mark.parametrize("folder", ["src", "experiments", "zoo", "docs_site", "native"])
def test_variables_are_named_by_what_they_hold(folder):
    pattern, names = ("[ch]pp", untelling_native) if folder == "native" else ("py", untelling)
    files = files_of(f"{folder}/*.{pattern}")
    assert files
    wrong = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in files for line, name in names(path.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("at = 1", ["at"]),
        ("def f(known): return known", ["known"]),
        ("rows = [at for at in range(3)]", ["at"]),
        ("class A:\n    made: int = 0", []),
        ("step = found.at + f(known=2)", []),
    ],
)
def test_the_test_sees_variables(source, names):
    assert [name for _, name in untelling(source)] == names


def test_the_test_sees_variables_in_native_code():
    source = 'const auto found = table.at(place);  // made\nfor (int at = 0;;) f(one->known, "made", known(at));'
    assert list(untelling_native(source)) == [(1, "found"), (2, "at"), (2, "at")]
