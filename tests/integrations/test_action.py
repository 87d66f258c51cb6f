"""The composite action for GitHub: its steps run here as scripts, with the environment that a runner gives them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.tflite_net import TfliteNet

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


@pytest.fixture
def step(tmp_path):
    net = TfliteNet(size=8, dtype="int8")
    x = net.conv(net.input(3), 8, 3)
    net.save(tmp_path / "m.tflite", [net.concat([net.conv(net.depthwise(x), 3), net.conv(x, 2)])])
    return tmp_path


def run_step(folder, **inputs):
    """Run the step that fits. Returns (exit status, outputs, summary)."""
    (one,) = [step for step in ACTION["runs"]["steps"] if step.get("id") == "fit"]
    given = {name: inputs.get(name, each.get("default")) for name, each in ACTION["inputs"].items()}
    environment = {name: re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text)[1] for name, text in one["env"].items()}
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.write_text("")
    runner = {
        **os.environ,
        **{name: str(given[each]) for name, each in environment.items()},
        **{name: str(file) for name, file in files.items()},
        "RUNNER_TEMP": str(folder),
        "GITHUB_ACTION_PATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", one["run"]]
    done = subprocess.run(script, cwd=folder, env=runner, capture_output=True, text=True, check=False)
    outputs = dict(line.split("=") for line in files["GITHUB_OUTPUT"].read_text().split())
    return done.returncode, outputs, files["GITHUB_STEP_SUMMARY"].read_text()


def test_a_job_fits_the_model(step):
    status, outputs, summary = run_step(step, model="m.tflite", output="o.tflite", options="--time-limit 1s")
    assert status == 0 and (step / "o.tflite").exists()
    assert int(outputs["after-bytes"]) <= int(outputs["before-bytes"])
    assert set(outputs) == set(ACTION["outputs"])
    assert f"| {int(outputs['before-bytes']):,} | {int(outputs['after-bytes']):,} |" in summary


def test_a_model_that_does_not_fit_fails_the_job(step):
    options = {"model": "m.tflite", "output": "o.tflite", "options": "--time-limit 1s"}
    status, outputs, summary = run_step(step, ram="1KB", **options)
    assert status == 3 and not (step / "o.tflite").exists()
    assert int(outputs["before-bytes"]) > 1024 and "does not fit" in summary


def test_a_mistake_is_in_the_summary(step):
    status, outputs, summary = run_step(step, model="no.tflite", output="o.tflite")
    assert (status, outputs) == (5, {}) and "no.tflite" in summary


def test_it_installs_what_its_steps_use():
    installs = ACTION["runs"]["steps"][0]["run"]
    assert 'pip install --quiet "${GITHUB_ACTION_PATH}[ort,report,tflm]"' in installs
    assert all(step["shell"] == "bash" for step in ACTION["runs"]["steps"])
