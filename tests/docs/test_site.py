"""The site builds strictly, its generated pages say what the code says, and the guides' examples run."""

import importlib
import re
import shlex
import shutil
from pathlib import Path

import pytest

import downset
from docs_site import pages
from tests.models import branchy_model, installed_model

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. Any warning, such as a link that leads nowhere, ends the build."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_every_page_is_in_the_site_and_names_every_public_function(site):
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert all((site / path).exists() for path in written)
    api = (site / "reference" / "api.html").read_text()
    missing = [name for name in downset.__all__ if f'.{name}"' not in api and f'"downset.{name}"' not in api]
    assert missing == []


def test_the_site_loads_nothing_from_elsewhere(site):
    page = (site / "index.html").read_text()
    assert re.findall(r'<(?:script|img|iframe)[^>]+src="(http[^"]+)"', page) == []
    assert re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="(http[^"]+)"', page) == []


def test_every_option_of_every_command_is_in_the_reference():
    page = pages.options_page()
    for name, command in pages.leaves():
        section = page[page.index(f"\n## downset {name}\n") :].split("\n## ")[1]
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(f"`{option}`" in section for option in parameter.opts), (name, parameter.opts)
                assert not parameter.help or parameter.help.split("|")[0] in section


def test_every_exit_code_and_schema_is_in_the_reference():
    for name in downset.errors.__all__:
        assert f"`{name}`" in pages.exit_codes_page()
    listed = set(re.findall(r"^## (.+)$", pages.schemas_page(), re.MULTILINE))
    assert listed == {path.stem for path in (ROOT / "docs" / "schemas").glob("*.json")}


def commands(page):
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
        yield from (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ downset "))


def test_commands_of_guides_run(run, tmp_path, monkeypatch):
    """In one folder, guide after guide, with small models of the names that they use, and files that a guide makes."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(installed_model("pymicro-wakeword", "okay_nabu.tflite"), "model.tflite")
    devices = next(page for page in GUIDES if page.name == "several-devices.md").read_text()
    (program,), (cluster,) = (re.findall(rf"```{kind}\n(.*?)```", devices, re.DOTALL) for kind in ("python", "toml"))
    exec(program, {})
    Path("home.toml").write_text(cluster)
    Path("records.csv").write_text("id,lower,upper,size\na,0,2,100\nb,1,3,50\n")
    lines = [line for page in GUIDES for line in commands(page)]
    assert len(lines) >= 5
    for line in lines:
        _, command, *arguments = shlex.split(line)
        if "--shape audio=" in line:  # shown for a model of open sizes
            shutil.copy(installed_model("swift-f0", "model.onnx"), "model.onnx")
        else:
            branchy_model(Path("model.onnx"))
        limit = [] if "--time-limit" in line or command == "simulate" else ["--time-limit", "2s"]
        status, _, err = run(command, *arguments, *limit)
        assert status == 0, (line, err)
    assert {
        "report.html",
        "model.h",
        "open.py",
        "split.html",
        "simulated.html",
        "served.html",
        "arena.html",
        "placed.csv",
    } <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_programs_and_clusters_of_guides_run(page, tmp_path, monkeypatch):
    from downset.clusters.toml_file import load_cluster

    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|toml)\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    for language, text in blocks:
        if language == "python":
            exec(text, names)
        else:
            (tmp_path / "cluster.toml").write_text(text)
            assert len(load_cluster(tmp_path / "cluster.toml").devices) == 2
    if "order" in names:
        assert names["order"].peak_bytes == 520 and names["order"].evidence.proven
        assert names["arena"].evidence.proven
        assert (tmp_path / "order.html").exists()
    assert len([*tmp_path.glob("training_*.html")]) == len(names.get("reports", ()))


def test_the_hook_knows_every_command():
    assert {name.split()[0] for name, _ in pages.leaves()} == set(importlib.import_module("downset.cli")._COMMANDS)
