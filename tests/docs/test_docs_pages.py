"""The commands and programs that README and docs show do what they show (docs/arenas.md: test_docs_arenas.py)."""

import json
import re
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from downset.clusters.toml_file import load_cluster
from downset.results.sessions import DEFAULT, FILE_ORDER, FITTED
from downset.runtimes.ort_native_script import native_program
from tests.cluster_toml import cluster_toml
from tests.models import branchy_model, installed_model

ALL_SETTINGS = (DEFAULT, *FITTED)
ROOT = Path(__file__).resolve().parents[2]


def block(page, language, number=0):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[number]


@pytest.fixture
def shown(run):
    def call(line):
        program, *arguments = line.removeprefix("$ ").split()
        assert program == "downset"
        status, out, err = run(*arguments)
        assert status == 0, err
        return out

    return call


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def embedding(here):
    return shutil.copy(installed_model("pyopen-wakeword", "embedding_model.tflite"), here / "embedding_model.tflite")


def test_the_screen_that_the_readme_opens_with(shown, embedding):
    command, *lines = block("README.md", "").splitlines()
    assert command.startswith("$ downset fit")
    times = r"\d\.\d\dx \(\d\.\d\d to \d\.\d\d\)"  # of a run on this host
    printed = [re.sub(times, "", line.rstrip()) for line in shown(command).splitlines()]
    for line in lines:
        assert re.sub(times, "", line.rstrip()) in printed
    assert lines[-1].startswith("written: page.html") and "Memory map" in Path("page.html").read_text()


def test_a_cluster_and_a_pipeline(shown, here):
    (here / "home.toml").write_text(block("docs/pipelines.md", "toml"))
    cluster = load_cluster(here / "home.toml")
    assert [device.name for device in cluster.devices] == ["d0", "d1"]
    branchy_model(here / "net.onnx").with_name("squeezenet.onnx").write_bytes((here / "net.onnx").read_bytes())
    names = {}
    exec(block("docs/pipelines.md", "python"), names)
    assert names["plan"].latency_s <= 2.0
    split, simulate = block("docs/pipelines.md", "console").splitlines()
    assert "a frame every" in shown(f"{split} --time-limit 1s")
    assert "simulated: 1000 of 1000 frames" in shown(simulate)


def test_a_session_of_a_fitted_file(shown, here):
    branchy_model(here / "net.onnx")
    fit, program = block("docs/memory-models-ort.md", "console").splitlines()
    shown(f"{fit} --time-limit 20s")
    interpreter, path = program.split()
    assert interpreter == "python" and (here / path).exists()
    names = {}
    exec(block("docs/memory-models-ort.md", "python"), names)
    assert [output.name for output in names["session"].get_outputs()] == ["flat", "joined"]


def test_the_page_lists_every_setting_of_the_file_order_and_its_value():
    """In its table; the program in C++ has all but the two that the page names."""
    page = (ROOT / "docs" / "memory-models-ort.md").read_text()
    for settings in ALL_SETTINGS:
        assert f"| `{settings.name}` |" in page
    rows = {}
    for line in page.splitlines():
        if len(cells := line.split("|")) == 5:
            rows |= {name.strip(" `"): cells[2].strip(" `") for name in cells[1].split(",")}
    stated = {**FILE_ORDER.options, **FILE_ORDER.config, **FILE_ORDER.arena}
    assert set(stated) <= set(rows)
    for name, value in stated.items():
        assert rows[name] in (str(value).split(".")[-1], "measured"), name
    cpp = "".join(
        line
        for line in native_program("f.onnx", FILE_ORDER, program="open.cc", version="1").splitlines()
        if not line.startswith("//")
    )
    for name in (
        *FILE_ORDER.config,
        *FILE_ORDER.arena,
        "ORT_DISABLE_ALL",
        "DisableMemPattern",
        "SetIntraOpNumThreads(1)",
    ):
        assert name in cpp
    for name in ("execution_order", "enable_mem_reuse"):
        assert name not in cpp and f"`{name}`" in page


def test_how_to_chain_shards(here, run):
    """The page's program makes what the network makes: strips that differ, hand-overs, tensors without rows."""
    onnxruntime = pytest.importorskip("onnxruntime")
    path = branchy_model(here / "net.onnx")
    (here / "home.toml").write_text(cluster_toml({"a": 1e9, "b": 2e9}, rate_mbps=50_000))
    inputs = {"x": np.ones((1, 3, 8, 8), np.float32)}
    expected = onnxruntime.InferenceSession(path).run(["flat", "joined"], inputs)
    program = block("docs/pipelines.md", "python", 1)
    for method in ("layerwise", "pico"):
        assert run("split", path, "--cluster", "home.toml", "--method", method, "--export", "shards", "-q")[0] == 0
        listed = json.loads((here / "shards" / "shards.json").read_text())
        jsonschema.validate(listed, json.loads((ROOT / "docs" / "schemas" / "shards.json").read_text()))
        assert {shard["device"] for shard in listed["shards"]} == {"a", "b"}
        flat = {"shape": [1, 4], "dtype": "float32", "rows_axis": None, "columns_axis": None}
        assert listed["tensors"]["flat"] == flat
        assert listed["tensors"]["joined"]["rows_axis"] == 2
        assert [shard["outputs"]["flat"] for shard in listed["shards"] if "flat" in shard["outputs"]] == [[0, 1]]
        names = {}
        exec(program, names)
        assert listed["outputs"] == ["flat", "joined"]
        for made, whole in zip(names["results"], expected, strict=True):
            np.testing.assert_allclose(made, whole, rtol=1e-4, atol=1e-5)
