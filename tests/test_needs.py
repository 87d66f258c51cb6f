"""Where a program is missing its tests skip and say so; in CI every skip that is not listed is a failure."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import MAY_SKIP

ROOT = Path(__file__).resolve().parents[1]
LISTED, OTHER = "no package index here has ExecuTorch 1.5.1 for this platform", "no browser here"
CASES = """
import pytest
REASONS = [LISTED, OTHER, ""]

@pytest.mark.skipif(True, reason=OTHER)
def test_marked():
    pass

@pytest.fixture(params=REASONS)
def reason(request):
    pytest.skip(request.param)

def test_by_fixture(reason):
    pass

@pytest.mark.parametrize("reason", REASONS, ids=range(3))
def test_inside(reason):
    pytest.skip(reason)

@pytest.mark.xfail(strict=True)
def test_that_must_fail():
    assert False
""".replace("LISTED", repr(LISTED)).replace("OTHER", repr(OTHER))
WHOLE = f"import pytest\npytest.importorskip('no_such_module', reason={OTHER!r})\n"


@pytest.fixture
def outcome(tmp_path):
    """What pytest prints last about tests in a file of their own, with this project's conftest."""

    def call(source, *, ci, path=os.environ["PATH"], chosen=(), options=("-n", "0")):
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "CHROMIUM")}
        environment |= {"PATH": path, "PYTHONPATH": str(ROOT)} | ({"CI": "1"} if ci else {})
        if source:
            (tmp_path / "test_here.py").write_text(source)
            chosen = ["-p", "tests.conftest", str(tmp_path / "test_here.py")]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *chosen],
            cwd=tmp_path if source else ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return call


@pytest.mark.parametrize("options", [("-n", "0"), ("-n", "1")], ids=["one process", "workers"])
def test_a_skip_that_is_not_listed_fails_in_ci(outcome, options):
    status, said = outcome(CASES, ci=True, options=options)
    assert status == 1 and "2 failed, 2 skipped, 1 xfailed, 3 errors" in said, said
    status, said = outcome(CASES, ci=False, options=options)
    assert status == 0 and "7 skipped, 1 xfailed" in said, said


def test_a_file_that_skips_as_a_whole_fails_in_ci(outcome):
    status, said = outcome(WHOLE, ci=True)
    assert status == 2 and f"may skip for the reasons in tests/needs.py alone: {OTHER}" in said, said


def test_tests_of_pages_skip_where_no_browser_is(outcome, tmp_path):
    chosen = ["tests/reports/test_browser.py"]
    status, said = outcome("", ci=False, path=str(tmp_path), chosen=chosen)
    assert status == 0 and "no chromium or google-chrome here: apt-get install chromium" in said, said
    assert re.search(r"\d\d skipped", said) and "passed" not in said


def test_what_ci_may_skip_is_what_tests_say():
    """A reason that no test gives any more leaves the list."""
    texts = "".join(
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__).resolve()
    )
    for pattern, why in MAY_SKIP.items():
        assert why and pattern.split("[")[0] in texts


def test_processes_that_tests_start_compile_no_grammar():
    """Ray imports jsonschema in each process of a node; that would compile its grammar of IRIs, in a second of CPU."""
    program = "import jsonschema, sys; print('lark' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "False\n"
