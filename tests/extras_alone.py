"""Runs programs where only some extras of downset are installed: imports of what the others bring fail."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OURS = set(EXTRAS) - {"all", "demo", "docs", "dev"}


def distributions(extra):
    found = set()
    for requirement in EXTRAS[extra]:
        name, _, inner = re.fullmatch(r"([\w-]+)(\[([\w,-]+)\])?.*", requirement).groups()
        found |= set().union(*map(distributions, inner.split(","))) if name == "downset" else {name}
    return found


def missing_beside(extras):
    """Modules of our optional libraries that these extras do not bring."""
    brought = set().union(*map(distributions, extras))
    others = set().union(*map(distributions, OURS)) - brought
    names = {module: {name.lower() for name in homes} for module, homes in packages_distributions().items()}
    return sorted(module for module, homes in names.items() if homes & others and not homes & brought)


SITE = """
import sys
from importlib.machinery import PathFinder

BLOCKED, HOMES = {blocked}, {homes}

class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in BLOCKED:  # a library may bring its own copy of another, as Ray does, in a folder of its own
            path = [folder for folder in sys.path if folder not in HOMES]
        return super().find_spec(name, path, target)

sys.meta_path[:] = [Others if finder is PathFinder else finder for finder in sys.meta_path]
"""
"""A module that keeps imports from finding the named modules where packages are installed."""


def run_alone(folder, extras, *arguments):
    """What Python prints with these arguments, in the folder, with these extras alone. Fails where it fails."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    blocked = missing_beside(extras)
    assert blocked
    blocked.append("rfc3987_syntax")  # of the development tools; tests/not_imported says what it costs
    homes = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "sitecustomize.py").write_text(SITE.format(blocked=set(blocked), homes=homes))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
