"""`--work-limit`: the same plan again whatever the load, told in text and JSON where it ended the search."""

import json
import random

import jsonschema
import pytest

from tests.cli.test_cli import SCHEMAS
from tests.command import completed
from tests.models import branchy_model


@pytest.fixture
def tangled(tmp_path):
    """Twenty operators that wait for nothing, and twenty that join three of them each: thousands of states."""
    draw, count = random.Random(0), 20
    sizes = [1, *(draw.randint(1, 99) for _ in range(count)), *(draw.randint(1, 9) for _ in range(count))]
    ops = [{"name": f"a{i}", "ins": [0], "outs": [1 + i]} for i in range(count)]
    for i in range(count):
        joined = sorted(draw.sample(range(1, count + 1), 3))
        ops.append({"name": f"b{i}", "ins": joined, "outs": [1 + count + i]})
    graph = {
        "name": "tangled",
        "tensors": [{"name": f"t{i}", "size": size} for i, size in enumerate(sizes)],
        "ops": ops,
        "inputs": [0],
        "outputs": list(range(1 + count, 1 + 2 * count)),
    }
    path = tmp_path / "tangled.json"
    path.write_text(json.dumps(graph))
    return path


def test_an_order_is_the_same_again_and_says_that_it_was_stopped(tangled):
    one, two = (json.loads(completed("order", tangled, "--json", "--work-limit", 200).stdout) for _ in range(2))
    jsonschema.validate(one, json.loads((SCHEMAS / "order.json").read_text()))
    assert one["stopped_by"] == "work" and not one["proven"] and one["states"] <= 200
    assert (one["order"], one["peak_bytes"], one["bound_bytes"]) == (
        two["order"],
        two["peak_bytes"],
        two["bound_bytes"],
    )
    assert "stopped by the work limit" in completed("order", tangled, "--work-limit", 200).stdout
    assert json.loads(completed("order", tangled, "--json", "--time-limit", "0.000001s").stdout)["stopped_by"] == "time"


def test_an_arena_says_that_it_was_stopped(tmp_path):
    draw = random.Random(3)
    rows = [(start := draw.randrange(30), start + draw.randint(1, 12), draw.randint(1, 60)) for _ in range(60)]
    records = tmp_path / "records.csv"
    records.write_text("id,lower,upper,size\n" + "".join(f"r{i},{a},{b},{c}\n" for i, (a, b, c) in enumerate(rows)))
    found = json.loads(completed("arena", records, "--method", "exact", "--work-limit", 5, "--json").stdout)
    jsonschema.validate(found, json.loads((SCHEMAS / "arena.json").read_text()))
    assert found["stopped_by"] == ("work" if not found["proven"] else None)
    shown = completed("arena", records, "--method", "exact", "--work-limit", 5).stdout
    assert ("stopped by the work limit" in shown) == (not found["proven"])


def test_fit_takes_it(fails, tmp_path):
    branchy_model(tmp_path / "net.onnx")
    run = ["fit", tmp_path / "net.onnx", "--work-limit", 0, "--json"]
    found = json.loads(completed(*run).stdout)
    jsonschema.validate(found, json.loads((SCHEMAS / "fit.json").read_text()))
    assert found["stopped_by"] in ("work", None)
    fails(2, "fit", tmp_path / "net.onnx", "--work-limit", -1, says="--work-limit")


def test_a_pipeline_is_the_same_again_and_says_that_it_was_stopped(fails, tmp_path):
    model = branchy_model(tmp_path / "net.onnx")
    run = ["split", model, "--cluster", "pico_1mac", "--json", "--work-limit"]
    one, two = (json.loads(completed(*run, 0).stdout) for _ in range(2))
    jsonschema.validate(one, json.loads((SCHEMAS / "split.json").read_text()))
    assert one["stopped"] and "stopped at the limit of 0 states" in one["note"]
    assert one == two
    fails(2, "split", model, "--cluster", "pico_1mac", "--work-limit", -1, says="--work-limit")


def test_stages_take_it(fails, tmp_path):
    model = branchy_model(tmp_path / "net.onnx")
    run = ["stage", model, "--no-profiles", "--budget-timings", 2, "--work-limit"]
    assert "was not searched" in completed(*run, 0).stderr
    assert "was not searched" not in completed(*run, 100_000).stderr
    fails(2, "stage", model, "--work-limit", -1, says="--work-limit")
