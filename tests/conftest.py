"""No test asserts a time: the machines are shared. CI draws the same examples every time, so that a red run is news.
Threads of OpenMP sleep while they wait: on a shared machine those that spin wait for each other.

The fixtures are the command line in this process, as several tests call it.
"""

import fcntl
import gc
import os
import re
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from downset.cli import main
from downset.messages import Message
from tests.effort import LONGEST, cases
from tests.needs import forbidden_skip
from tests.own_processes import choose_processes, keep_server

gc.disable()  # until the tests are collected: what they import stays
sys.modules.setdefault("rfc3987_syntax", None)  # as in NOT_IMPORTED
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else each process that imports it keeps a database and sends
if not shutil.which("g++") and (compiler := shutil.which("c++") or shutil.which("clang++")):
    os.environ.setdefault("CXX", compiler)  # PyTorch's compiler looks for g++ alone
if not shutil.which("openssl"):  # with which PyTorch's compiler names the headers that it compiles once
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
os.environ.setdefault(
    "TORCHINDUCTOR_VEC_ISA_OK", "1"
)  # else each process builds a program for each set of instructions
NOT_IMPORTED = str(Path(__file__).with_name("not_imported"))
if NOT_IMPORTED not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # xdist's workers have it already
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [NOT_IMPORTED, os.environ.get("PYTHONPATH")]))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:  # as in the background of a shell; what tests start answers them
        signal.signal(number, lambda *_: None)
settings.register_profile("downset", deadline=None, max_examples=cases(250))
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=cases(250))
settings.load_profile("ci" if os.environ.get("CI") else "downset")
keep_server()


def _kept(message, form):
    """An f-string has Python's words for the settings of a message, also where the command line prints it."""
    assert not message.settings, "make a Message of it, in place of an f-string: " + str(message)
    return str.__format__(str(message), form)


Message.__format__ = _kept


def _judged(report):
    if (why := forbidden_skip(report)) is not None:
        report.outcome, report.longrepr = "failed", f"{report.nodeid} was {why}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _judged((yield))


def _group(item):
    return item.get_closest_marker("xdist_group").args[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """A file runs in one process, so that what its fixtures make is made once; groups of several files keep theirs.
    Workers begin with the longest groups, then with those of most tests."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0].replace("/", ".")))
    if os.environ.get("PYTEST_XDIST_WORKER"):
        counts = Counter(map(_group, items))
        rank = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: (rank.get(_group(item), len(LONGEST)), -counts[_group(item)]))


OPEN = {}
"""By number: the file that was open there when the first test began, and a copy of its descriptor."""


def _file(number):
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    choose_processes(item)
    if not OPEN:
        for number in range(3, 64):  # the standard streams are what pytest captures
            if (file := _file(number)) is not None:
                OPEN[number] = file, fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 64)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item):
    """A test that closes a file of pytest or of its workers would make all that follow fail: it fails, they do not."""
    try:
        return (yield)
    finally:
        lost = [number for number, (file, _) in OPEN.items() if _file(number) != file]
        for number in lost:
            os.dup2(OPEN[number][1], number, inheritable=False)
        assert not lost, f"{item.nodeid} closed or replaced files that it had not opened: {lost}"


def pytest_collection_finish():
    gc.enable()
    gc.freeze()  # a collection of garbage passes over 6,000 tests and their modules no more


SOURCE = Path(__file__).resolve().parents[1] / "src" / "downset"
SETTINGS = {name for path in SOURCE.rglob("*.py") for name in re.findall(r'Setting\("(\w+)"', path.read_text())}
PYTHON_WORDS = re.compile(
    rf"\b({'|'.join(sorted(SETTINGS))})=(True|None|'|{{|\.\.\.)|\b\w+_(s|bytes|limit)=\d|\bdownset\.\w+\("
)


@pytest.fixture
def run(monkeypatch, capfd):
    """`run("fit", path, …)` -> (exit status, what went to stdout, what went to stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["downset", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        said = capfd.readouterr()
        assert not PYTHON_WORDS.search(said.out + said.err), "the command line words a setting as Python does"
        return status, said.out, said.err

    return call


@pytest.fixture
def fails(run):
    """`fails(5, "fit", path, says="…")`: that exit status, nothing on stdout, and one line on stderr that says so."""

    def call(expected, *arguments, says=""):
        status, out, err = run(*arguments)
        assert (status, out) == (expected, ""), err
        assert err.startswith("downset: error: ")
        assert err.count("\n") == 1, err
        assert says in err

    return call
