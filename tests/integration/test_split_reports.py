"""What `downset split` says: methods that stopped at their limit, plans of before, memory that would do."""

import json
from pathlib import Path

import jsonschema
import onnx
import pytest
from click.testing import CliRunner

from downset.cli import downset
from downset.errors import DownsetError
from experiments.zoo import ZOO

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("split") / "net.onnx"
    onnx.save(ZOO["squeezenet1_0"](image=96), path)
    return path


def run(*arguments):
    """The command inside this process: its output; a user's mistake raises its DownsetError."""
    done = CliRunner().invoke(downset, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_methods_that_stop_at_their_limit_are_marked(model):
    """Eight devices are far too many for trying everything."""
    arguments = ("split", model, "--cluster", "pico_1mac_cell", "--compare", "--time-limit", "0.3s", "-q")
    found = json.loads(run(*arguments, "--method", "pico", "--json"))
    jsonschema.validate(found, json.loads((SCHEMAS / "split.json").read_text()))
    assert "exhaustive" in found["compare_stopped"]
    assert not {"single", "blocks", "layerwise", "pico"} & set(found["compare_stopped"])
    assert found["compare"]["exhaustive"] > 0
    assert not found["stopped"]
    text = run(*arguments, "--method", "pico")
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert "stopped at its limit" in lines["exhaustive"]
    assert "stopped" not in lines["single"]
    alone = json.loads(
        run("split", model, "--cluster", "pico_1mac", "--method", "exhaustive", "--time-limit", "0.2s", "--json", "-q")
    )
    assert alone["stopped"]
    assert "stopped at the limit of 0.2 s" in alone["note"]


def test_a_plan_of_before_is_refused_in_one_line(model, tmp_path):
    plan = tmp_path / "plan.json"
    run("split", model, "--cluster", "pico_1mac", "--method", "single", "-o", plan, "-q")
    whole = json.loads(plan.read_text())
    assert whole["schema"] == 2
    for stage in whole["stages"]:
        for block in stage["blocks"]:
            del block["ops"]
    whole["schema"] = 1
    plan.write_text(json.dumps(whole))
    with pytest.raises(DownsetError, match=r"schema 1.*reads 2; make the plan again") as caught:
        run("simulate", plan)
    assert "\n" not in str(caught.value)
    assert str(plan) in str(caught.value)
