"""What `make demo` and `make test` install is locked: every package that pyproject.toml asks for, within its limits."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.effort import LONGEST
from tests.installed_apart import VERSIONS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def asked_for(extra):
    """The requirements of an extra, those of the extras it names included."""
    found = {}
    for text in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]:
        wanted = Requirement(text)
        if wanted.name == "downset":
            for other in wanted.extras:
                found |= asked_for(other)
        else:
            found.setdefault(wanted.name, []).append(wanted.specifier)
    return found


def locked(name):
    """By package: (version, how many hashes), for every pinned line."""
    found = {}
    for block in re.split(r"\n(?=[a-z0-9])", (ROOT / "locks" / f"{name}.txt").read_text()):
        pinned = re.match(r"([a-z0-9._-]+)==(\S+)", block)
        if pinned:
            found.setdefault(pinned[1], []).append((pinned[2], block.count("--hash=sha256:")))
    return found


@pytest.mark.parametrize("extra", ["demo", "dev"])
def test_every_requirement_is_pinned_within_its_limits_and_has_hashes(extra):
    pins = locked(extra) | locked("torch")
    assert all(count for versions in pins.values() for _, count in versions)
    for name, limits in asked_for(extra).items():
        assert name in pins, f"{name} is not in locks/{extra}.txt: run `make lock`"
        for version, _ in pins[name]:
            assert all(limit.contains(version, prereleases=True) for limit in limits), f"{name}: run `make lock`"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_versions_of_executorch_that_are_tested_are_pinned(version):
    pins = locked(f"executorch-{version}")
    assert set(pins) == {"executorch", "tabulate", "torchao"}, "without dependencies: torch is the tests' own"
    ((pinned, hashes),) = pins["executorch"]
    assert pinned == version
    assert hashes > 0
    wanted = asked_for("executorch")["executorch"]
    assert all(limit.contains(version) for limit in wanted)


def test_the_trainers_that_are_tested_are_pinned_without_torch():
    pins = locked("trainers")
    assert {"transformers", "lightning", "accelerate", "lion-pytorch"} < set(pins)
    assert "torch" not in pins
    assert all(hashes for versions in pins.values() for _, hashes in versions)


def test_the_groups_that_begin_first_are_there():
    files = {name for name in LONGEST if name.startswith("tests.")}
    assert all((ROOT / name.removesuffix(".py").replace(".", "/")).with_suffix(".py").exists() for name in files)
    marks = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert all(f'xdist_group("{name}")' in marks for name in set(LONGEST) - files)


@pytest.mark.xdist_group("groups")
def test_the_locked_pytest_keeps_tests_of_a_group_together(request):
    """They share a cluster, a browser or a compiler's cache; with pytest 9.2 pytest-xdist 3.8 forgets groups."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@groups")
