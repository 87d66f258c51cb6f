"""What split and simulate refuse before they write or run: inputs as outputs, empty names, plans that contradict
themselves."""

import json
import os
import re
import shutil
from pathlib import Path

import onnx
import pytest

from downset.clusters.toml_file import load_cluster, parse_cluster
from downset.commands import group
from downset.errors import InvalidPlan, LoadError, UnsupportedError, UsageError
from downset.formats.shards.write import write_shards
from tests.cluster_toml import cluster_toml
from tests.command import output_of
from tests.models import branchy_model

CLUSTER = cluster_toml({"a": 1e9, "b": 2e9})


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a model, a cluster and nothing else, to work in."""
    monkeypatch.chdir(tmp_path)
    branchy_model(tmp_path / "net.onnx")
    (tmp_path / "home.toml").write_text(CLUSTER)
    return tmp_path


def split(*arguments, method="layerwise", model="net.onnx"):
    return output_of("split", model, "--cluster", "home.toml", "--method", method, "-q", *arguments)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def plan(home):
    """A plan of two stages that hand something over, as JSON."""
    (home / "home.toml").write_text(cluster_toml({"a": 1e9, "b": 2e9}, rate_mbps=5000))
    output_of("split", "net.onnx", "--cluster", "home.toml", "--method", "pico", "-q", "-o", "plan.json")
    found = json.loads((home / "plan.json").read_text())
    assert len(found["stages"]) == 2
    assert any(task["transfer"] and task["transfer"]["source"] != task["transfer"]["target"] for task in found["tasks"])
    return found


def simulated(plan, *arguments):
    Path("plan.json").write_text(json.dumps(plan))
    return output_of("simulate", "plan.json", "--frames", 20, *arguments)


@pytest.mark.parametrize("source", ["net.onnx", "home.toml"])
@pytest.mark.parametrize("through", ["name", "path", "link", "hard"])
def test_split_does_not_write_over_what_it_reads(home, source, through):
    names = {"name": source, "path": f"../{home.name}/{source}", "link": "link", "hard": "hard"}
    (home / "link").symlink_to(source)
    os.link(home / source, home / "hard")
    before = contents(home)
    with pytest.raises(UsageError, match="is the file being read"):
        split("-o", names[through])
    assert contents(home) == before


def test_split_does_not_write_over_weights_beside_the_model(home):
    onnx.save(onnx.load("net.onnx"), "apart.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    before = contents(home)
    with pytest.raises(UsageError, match="is the file being read"):
        split("-o", "w.bin", model="apart.onnx")
    assert contents(home) == before


def test_exports_do_not_write_over_what_is_read(home):
    split("--export", "shards", method="single")
    shard = next((home / "shards").glob("*.onnx"))
    shutil.copy(home / "net.onnx", shard)
    before = contents(home)
    with pytest.raises(UsageError, match="is the file being read"):
        split("--export", "shards", model=shard)
    assert contents(home) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "net.onnx", "-o", ""),
        ("fit", "net.onnx", "--map", ""),
        ("stage", "net.onnx", "-o", ""),
        ("arena", "records.csv", "-o", ""),
    ],
)
def test_empty_names_of_outputs_are_called_that(home, fails, arguments):
    (home / "records.csv").write_text("id,lower,upper,size\na,0,1,4\n")
    fails(2, *arguments, says="the output's name is empty")


@pytest.mark.parametrize("arguments", [("fit", "net.onnx"), ("stage", "net.onnx"), ("arena", "records.csv")])
def test_other_commands_do_not_write_over_what_they_read(home, fails, arguments):
    (home / "records.csv").write_text("id,lower,upper,size\na,0,1,4\n")
    (home / "link").symlink_to(arguments[1])
    before = contents(home)
    fails(2, *arguments, "-o", "link", says="is the file being read")
    assert contents(home) == before


def test_ctrl_c_exits_as_the_readme_says(run, monkeypatch):
    def pressed(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(group.downset, "main", pressed)
    assert run("split") == (130, "", "downset: stopped\n")
    assert "130 by Ctrl-C" in (Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-o", ""), "name is empty"),
        (("--export", ""), "name is empty"),
        (("-o", "new", "--export", "new"), "another name"),
        (("-o", "new/plan.json", "--export", "new/plan.json"), "does not exist|another name"),
        (("-o", "here/shards.json", "--export", "here"), "another name"),
        (("-o", "plan.json", "--export", "net.onnx"), "not a folder"),
        (("-o", "plan.json", "--export", "net.onnx/below"), "not a folder"),
    ],
)
def test_outputs_that_cannot_be_are_refused_before_anything_is_written(home, arguments, says):
    (home / "here").mkdir()
    before = contents(home)
    with pytest.raises(UsageError, match=says):
        split(*arguments)
    assert contents(home) == before
    assert not (home / "new").exists()


def test_a_plan_that_cannot_be_exported_is_not_written_either(home, monkeypatch):
    from downset.formats.shards import write as shards

    def refused(*arguments):
        raise UnsupportedError("not this one")

    monkeypatch.setattr(shards, "_blocks", refused)
    with pytest.raises(UnsupportedError):
        split("-o", "plan.json", "--export", "new")
    assert {path.name for path in home.iterdir()} == {"net.onnx", "home.toml"}


def test_an_export_is_whole_or_not_there(home, monkeypatch):
    """The second shard fails: nothing of the first is left, and what an earlier export wrote still is."""
    from downset.formats.reading import load
    from downset.formats.shards import write as shards

    graph = load("net.onnx")
    everything = tuple(range(len(graph.ops)))
    blocks = [shards.ShardBlock(0, 0, everything, 8, (("a", 0, 4), ("b", 4, 8)))]
    write_shards("old", graph, blocks)
    before, model = contents(home), shards.shard_model

    def fails(part, opsets):
        if made:
            raise UnsupportedError("not this one")
        made.append(part)
        return model(part, opsets)

    monkeypatch.setattr(shards, "shard_model", fails)
    for folder in ("old", "new/below"):
        made = []
        with pytest.raises(UnsupportedError):
            write_shards(folder, graph, blocks)
    assert contents(home) == before
    assert not (home / "new").exists()


@pytest.mark.parametrize(
    ("where", "field", "value"),
    [
        ("network", "bytes_per_s", 0),
        ("network", "bytes_per_s", -5),
        ("network", "latency_s", -1),
        ("device", "mac_per_s", 0),
        ("device", "alpha", -1),
        ("device", "memory_bytes", 0),
    ],
)
def test_a_plan_of_no_lawful_cluster_cannot_be_read(plan, where, field, value):
    cluster = plan["cluster"]
    (cluster["network"] if where == "network" else cluster["devices"][0])[field] = value
    with pytest.raises(LoadError, match=rf"plan\.json.*{field}") as caught:
        simulated(plan)
    assert "\n" not in str(caught.value)


def strip(**changed):
    return lambda plan: plan["stages"][1]["blocks"][0]["strips"][0].update(changed)


def message(**changed):
    return lambda plan: next(task["transfer"] for task in plan["tasks"] if task["transfer"]).update(changed)


def buffer(**changed):
    return lambda plan: plan["schedule"]["buffers"][0].update(changed)


def schedule(**changed):
    return lambda plan: plan["schedule"].update(changed)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda plan: plan.update(comm="paper"), "comm is paper, which has no schedule"),
        (lambda plan: plan.update(schedule=None), "comm is resources, but there is no schedule"),
        (lambda plan: plan["cluster"]["network"].update(kind="shared"), "order of"),
        (lambda plan: plan["cluster"]["network"].update(overlap=True), "order of"),
        (lambda plan: plan["cluster"]["network"].update(bytes_per_s=1e3), "load bound"),
        (lambda plan: plan["cluster"]["network"].update(latency_s=1), "load bound"),
        (strip(macs=-1), "less than 0 MACs"),
        (strip(device=7), "names device 7"),
        (strip(moved_bytes=10**12), "load bound"),
        (message(target=7), "sends from device"),
        (message(nbytes=-1), "less than 0 bytes"),
        (message(nbytes=10**12), "load bound"),
        (schedule(window=0), "the window is 0"),
        (schedule(orders=[]), "no order of"),
        (schedule(load_bound_s=0.0), "load bound 0 s"),
        (lambda plan: plan["tasks"].pop(), "no task|each of its tasks once"),
        (lambda plan: plan["tasks"][-1].update(after=[10**6]), "not all before it"),
        (lambda plan: plan["memory"][0].update(arena_bytes=10**15), "states 1000000000000000 bytes of arena, but has"),
        (lambda plan: plan["memory"][0].update(weights_bytes=10**15), "more than its"),
        (lambda plan: plan["memory"].pop(), "with buffers is not in the plan's memory"),
        (buffer(slots=0), "no device, slot, bytes or place"),
        (buffer(device=9), "no device, slot, bytes or place"),
        (buffer(readers=[]), "names no tasks"),
        (buffer(writers=[10**6]), "names no tasks"),
        (buffer(nbytes=10**9), "bytes of arena|share bytes"),
        (lambda plan: plan.update(entry=9), "entry is device 9"),
        (lambda plan: plan.update(period_s=1.0), "less than the stated period 1 s"),
        (lambda plan: plan.update(latency_s=1.0), "the plan states latency_s 1,"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_by_the_field(plan, change, says):
    plan["cluster"]["devices"][plan["memory"][0]["device"]]["memory_bytes"] = 10**12
    simulated(plan)
    change(plan)
    with pytest.raises(InvalidPlan, match=says):
        simulated(plan)


def test_words_that_a_plan_does_not_have_cannot_be_read(plan):
    for field, value in (("comm", "full"), ("topology", "ring")):
        with pytest.raises(LoadError, match=rf"{value!r}.*{field}"):
            simulated({**plan, field: value})


def test_a_plan_whose_comm_was_paper_cannot_be_called_one_of_resources(home):
    (home / "home.toml").write_text(cluster_toml({"a": 1e9, "b": 2e9}, rate_mbps=5000))
    split("--comm", "paper", "-o", "plan.json", method="pico")
    plan = json.loads((home / "plan.json").read_text())
    simulated(plan)
    plan["comm"] = "resources"
    with pytest.raises(InvalidPlan, match="no schedule"):
        simulated(plan)


def test_names_are_printed_as_text(home, fails):
    (home / "home.toml").write_text(CLUSTER.replace('"b"', r'"b\u202ec"'))
    split("-o", "plan.json", method="single")
    screen = output_of("simulate", "plan.json", "--frames", 5)
    assert re.search(r"│ b\?c +│ 100% \(100%\) ", screen) and "\u202e" not in screen
    assert "b\u202ec" in json.loads(output_of("simulate", "plan.json", "--frames", 5, "--json"))["utilisation"]
    (home / "home.toml").write_text(CLUSTER.replace('"b"', r'"b\nc"'))
    says = "name: a name has no control characters"
    fails(5, "split", "net.onnx", "--cluster", "home.toml", says=says)


def test_a_model_without_operators_is_unsupported_by_all_that_divide(home, fails):
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "empty", [value], [value])), home / "empty.onnx")
    fails(5, "split", "empty.onnx", "--cluster", "home.toml", says="no operators")
    fails(5, "stage", "empty.onnx", says="no operators")


def test_one_device_takes_as_long_as_one_frame_on_every_network(home):
    """A frame that waits to be taken is the source's, whether computing and sending overlap or not."""
    for kind in ("links", "shared"):
        (home / "home.toml").write_text(CLUSTER.replace("links", kind))
        split("-o", "plan.json", method="single")
        alone = json.loads((home / "plan.json").read_text())["latency_s"]
        found = json.loads(output_of("simulate", "plan.json", "--frames", 20, "--json"))["latency_s"]
        assert found["p50"] == pytest.approx(alone)
        assert found["max"] == pytest.approx(alone)


def test_cluster_files_of_windows_editors_are_read(home):
    (home / "home.toml").write_bytes(b"\xef\xbb\xbf" + CLUSTER.encode())
    assert load_cluster(home / "home.toml") == parse_cluster(CLUSTER)


def test_kinds_of_network_are_named():
    with pytest.raises(LoadError, match="line 2: kind: 'wifi' is no kind of network, write links or shared"):
        parse_cluster(CLUSTER.replace("links", "wifi"))


def test_kinds_of_duplex_are_named():
    for told in (CLUSTER.replace("[network]", '[network]\nduplex = "both"'), CLUSTER + '\nduplex = "both"\n'):
        with pytest.raises(LoadError, match="duplex: 'both' is no duplex, write half or full"):
            parse_cluster(told)
