"""The foot of a page says under which options and by which versions its figures came out."""

import html
import json
import re
import shlex
from importlib.metadata import version
from pathlib import Path

import pytest

import downset as ds
from downset.reports.fit_document import fit_document
from tests.cluster_toml import cluster_toml
from tests.command import typed
from tests.models import branchy_model, installed_model

PACKAGES = {"ort": ("onnx", "onnxruntime"), "tflm": ("tflite-micro", "ai-edge-litert")}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def facts_of(markup):
    (block,) = re.findall(r'<dl class="facts">(.*?)</dl>', markup, re.DOTALL)
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", block, re.DOTALL)
    return {html.unescape(name): html.unescape(value) for name, value in pairs}


def check_versions(said, packages):
    listed = dict(pair.rsplit(" ", 1) for pair in said.split(", "))
    assert {name: listed[name] for name in ("downset", "numpy", *packages)} == {
        "downset": ds.__version__,
        **{name: version(name) for name in ("numpy", *packages)},
    }


def fitted(target, **options):
    if target == "ort":
        return ds.fit(branchy_model("net.onnx"), time_limit_s=2.5, rewrite="off", **options)
    return ds.fit(installed_model("pymicro-wakeword", "okay_nabu.tflite"), time_limit_s=7.0, **options)


@pytest.mark.parametrize("target", ["ort", "tflm"])
def test_a_fit_states_what_its_figures_hold_for(target, run):
    """The call on its page plans the same bytes for the same target, and so does the command of the same settings."""
    fit = fitted(target, work_limit=5_000)
    facts = facts_of(ds.report(fit).page())
    check_versions(facts["versions"], PACKAGES[target])
    assert facts["time limit"] == ("2.5 s" if target == "ort" else "7 s") and facts["work limit"] == "5,000"
    assert eval(facts["command"], {"downset": ds}).arena.after == fit.arena.after  # the call, pasted into Python
    words = shlex.split(typed(fit.command))
    assert words[words.index("--target") + 1] == target
    assert words[words.index("--rewrite") + 1] == ("off" if target == "ort" else "auto")
    status, out, err = run(*words[1:], "--json")
    assert status == 0, err
    again = json.loads(out)
    assert again["arena_bytes"]["after"] == fit.arena.after and again["versions"] == dict(fit.versions)
    settings = {} if fit.session is None else {**fit.session.options, **fit.session.config, **fit.session.arena}
    assert bool(settings) == (target == "ort") == ("session" in facts)
    for name, value in settings.items():
        assert f"{name}={value}" in facts["session"]


def test_the_command_has_every_option_that_was_asked_for(run):
    """Values that are typed in another form than they are kept in are read back as they were given."""
    kept = {
        "kernels": "cmsis-nn-dsp",
        "max_recompute": 0.015,
        "strips": 3,
        "front": True,
        "ram_bytes": 100_000,
    }
    fit = ds.fit(installed_model("pymicro-wakeword", "okay_nabu.tflite"), work_limit=2_000, output="o.tflite", **kept)
    command = typed(fit.command)
    status, _, err = run(*shlex.split(command)[1:], "--report", "again.html", "-q")
    assert status == 0, err
    assert facts_of(Path("again.html").read_text())["command"] == command
    for option in ("--kernels", "--max-recompute 1.5%", "--strips 3", "--front", "--ram 100000", "-o o.tflite"):
        assert option in command
    assert "--inexact" not in command and "--int8" not in command


def test_a_limit_that_is_not_there_and_a_seed_are_named():
    fit = fitted("tflm", seed=3, work_limit=100)
    assert [one.text for one in fit_document(fit).foot if one.title == "seed"] == ["3"]
    (seed,) = [one for one in fit_document(fitted("tflm", work_limit=100)).foot if one.title == "seed"]
    assert not seed.text


@pytest.mark.parametrize(
    ("typed", "default"),
    [
        ("order net.onnx", "--method optimal"),
        ("split net.onnx --cluster two.toml", "--method exact"),
        ("simulate plan.json --jitter 0.1", "--frames 1000"),
        ("stage net.onnx --threads 1 --budget-timings 1 --no-profiles", "--max-ops 3"),
        ("arena records.csv --align 64", "--time-limit 10s"),
    ],
)
def test_pages_of_commands_name_the_command_and_its_defaults(typed, default, here, run):
    """The defaults are those that take effect: typed out, the command has none left, and is otherwise the same."""
    branchy_model(here / "net.onnx")
    (here / "two.toml").write_text(cluster_toml({"a": 1e9, "b": 2e9}, rate_mbps=50_000))
    (here / "records.csv").write_text("id,lower,upper,size\na,0,2,100\nb,1,3,50\n")
    assert run("split", "net.onnx", "--cluster", "two.toml", "-o", "plan.json")[0] == 0
    first, second = ((here / "page.html"), (here / "again.html"))
    assert run(*typed.split(), "--report", first)[0] == 0
    facts = facts_of(first.read_text())
    assert facts["command"] == shlex.join(["downset", *typed.split(), "--report", str(first)])
    assert default in facts["by default"] and not {*typed.split()} & {*facts["by default"].split()}
    status, _, err = run(*typed.split(), *facts["by default"].split(), "--report", second)
    assert status == 0, err
    spelled = facts_of(second.read_text())
    assert "by default" not in spelled
    same = {"command", "by default", "states"}
    assert {k: v for k, v in facts.items() if k not in same} == {k: v for k, v in spelled.items() if k not in same}
    assert ("torch" if typed.startswith("stage") else "numpy") in facts["versions"]
    assert f"Written by downset {ds.__version__}" in first.read_text()
