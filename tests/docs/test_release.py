"""What a release is made of: workflows and forms that their schemas accept, one version, lowest versions that exist."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import downset
from downset.formats.reading import load
from downset.memory.liveness import order_problem, peak_bytes
from tests.plain_graphs import every_order

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("schema", "folder"), [("vendor.github-workflows", "workflows"), ("vendor.github-issue-forms", "ISSUE_TEMPLATE")]
)
def test_what_github_reads_keeps_its_schema(schema, folder):
    files = sorted((ROOT / ".github" / folder).glob("*.yml"))
    assert len(files) == 2
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_workflow_that_is_wrong_is_found(tmp_path):
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("on: push\njobs: {a: {steps: 3}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", wrong],
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0


def test_workflows_call_what_there_is():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for target in re.findall(r"run: make (\w+)", path.read_text()):
            assert f"\n{target}:" in (ROOT / "Makefile").read_text()
        assert "twine" not in path.read_text() and "gh-action-pypi-publish" not in path.read_text()


def test_actions_are_pinned_by_commit():
    """A tag can be moved to other code; the version stands behind the hash, for those who read it."""
    used = [line for path in WORKFLOWS for line in re.findall(r"uses: *(.+)", path.read_text())]
    assert used and not [line for line in used if not re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40} # v\d+(\.\d+)+", line)]
    assert len({line.partition("@")[0] for line in used}) == len(set(used)), "one version of each action"


def test_workflows_call_what_checks_a_release():
    called = {target for path in WORKFLOWS for target in re.findall(r"run: make (\w+)", path.read_text())}
    assert {"wheel", "lowest", "docs"} <= called


def test_what_wheels_are_tested_by_plans_with_the_compiled_search(tmp_path):
    """The command of the workflow itself, which reads no model and so needs no extra."""
    steps = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]["wheels"]["steps"]
    (command,) = (step["env"]["CIBW_TEST_COMMAND"] for step in steps if "env" in step)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command.replace("{project}", str(ROOT)),
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    graph = load(ROOT / ".ci/two_branches.json")
    peaks = {peak_bytes(order_problem(graph), steps) for steps in every_order(graph)}
    assert re.search(rf"^Peak .*{min(peaks):,} B\nproven least", done.stdout, re.MULTILINE), done.stdout
    assert min(peaks) < peak_bytes(order_problem(graph), range(len(graph.ops)))


def test_every_extra_is_installed_by_its_lowest_versions():
    """Or a line of the script says why it is not."""
    script = (ROOT / ".ci/lowest").read_text()
    loop = set(re.search(r"EXTRAS:-([\w ]+)", script)[1].split())
    used = set(re.findall(r"^\t\t(\w+)\)", script, re.MULTILINE))
    left_out = dict(re.findall(r"^#   (\w+): (.+)$", script, re.MULTILINE))
    assert loop == used and not loop & set(left_out)
    assert loop | set(left_out) == set(PROJECT["optional-dependencies"])
    (all_of,) = PROJECT["optional-dependencies"]["all"]
    assert set(re.search(r"\[(.+)\]", all_of)[1].split(",")) <= loop


def test_the_citation_is_of_this_version():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["version"] == downset.__version__ and found["license"] == PROJECT["license"]
    assert {"cff-version", "title", "message", "authors"} <= set(found)


def test_changes_have_the_form_of_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d{2}-\d{2})$", text, re.MULTILINE)
    assert versions and versions[0][0] == downset.__version__
    headings = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert headings and headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_package_brings_its_page_and_clusters():
    """What is not Python in the package lies in it, as a wheel packs the folder."""
    package = ROOT / "src" / "downset"
    assert {"page.css", "page.js", "page.html.j2"} <= {path.name for path in (package / "reports" / "page").iterdir()}
