"""Pipeline plans with any one value replaced: simulated, or refused in one line, never a traceback."""

import copy
import itertools
import json
import re
from random import Random

import pytest

from downset.clusters.model import Cluster, Device, Link, Network
from downset.clusters.toml_file import parse_cluster
from downset.distributed.serving.ray_fleet import cluster
from downset.distributed.simulator import simulate
from downset.errors import DownsetError, InvalidPlan, UsageError
from downset.formats.plan_json import decode_plan, encode_plan
from downset.formats.reading import load
from downset.joint.check import verify
from downset.pipelines.check import verify_without_graph
from downset.pipelines.plan import plan_pipeline
from tests.cluster_toml import cluster_toml
from tests.effort import LONG
from tests.models import branchy_model

VALUES = (0, -1, 7, 1e-300, 1e300, 10**30, "", None, [], {}, True)


def two_devices(kind):
    return cluster_toml({"a": 1e9, "b": 2e9}, kind=kind, rate_mbps=5000, latency_ms=0.001)


def leaves(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def replaced(plan, path, value):
    changed = copy.deepcopy(plan)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("kind", "method"), [("links", "pico"), ("shared", "coedge"), *[("links", "coedge"), ("shared", "pico")] * LONG]
)
def test_one_wrong_value_is_survived(tmp_path, kind, method):
    graph = load(branchy_model(tmp_path / "net.onnx"))
    plan = json.loads(encode_plan(plan_pipeline(graph, parse_cluster(two_devices(kind)), method=method)))
    refused = 0
    for path in leaves(plan):
        for value in VALUES if path else ():
            try:
                changed = decode_plan(json.dumps(replaced(plan, path, value)).encode())
                verify_without_graph(changed)
                simulate(changed, frames=2)
            except DownsetError as error:
                assert "\n" not in str(error)
                refused += 1
    assert refused > 100


@pytest.mark.parametrize("path", [("period_s",), ("latency_s",), ("schedule", "load_bound_s")])
def test_every_time_is_checked(tmp_path, path):
    graph = load(branchy_model(tmp_path / "net.onnx"))
    devices = parse_cluster(two_devices("shared"))
    plan = json.loads(encode_plan(plan_pipeline(graph, devices, method="layerwise")))
    verify_without_graph(decode_plan(json.dumps(plan).encode()))
    at = plan
    for key in path:
        at = at[key]
    for factor in (0.5, 1.001):
        with pytest.raises(InvalidPlan, match=r"period|latency|load bound"):
            verify_without_graph(decode_plan(json.dumps(replaced(plan, path, at * factor)).encode()))


HARMLESS = re.compile(
    r"note|space|stopped|floor_s|frame_bytes|result_bytes|evidence\.\w+|cluster\.devices\.#\.(name|alpha|memory_bytes|power_\w+)|source|sink"
    r"|stages\.#\.leader|stages\.#\.blocks\.#\.stop|tasks\.#\.(stage|block)|schedule\.window"
    r"|cluster\.network\.occupied_\w+|schedule\.orders\.#\.turns\.#\.behind|schedule\.buffers\.#\.slots"
)
"""What may differ in a plan that is served: notes, what messages occupy where devices do not overlap, who is asked for
what, figures that the check works out, and bytes of frames, which may be left out."""


@pytest.mark.parametrize("method", ["exact", "layerwise"])
def test_a_plan_that_was_altered_is_served_only_where_it_does_the_same(tmp_path, method):
    graph = load(branchy_model(tmp_path / "net.onnx"))
    plan = json.loads(encode_plan(plan_pipeline(graph, parse_cluster(two_devices("links")), method=method)))
    assert plan["memory"]
    refused, paths = 0, [path for path in leaves(plan) if path]
    for path in paths if LONG else Random(0).sample(paths, 150):
        for value in (0, 7, 10**19, "b", []):
            try:
                verify(graph, decode_plan(json.dumps(replaced(plan, path, value)).encode()))
            except DownsetError:
                refused += 1
                continue
            same = replaced(plan, path, value) == plan
            assert same or HARMLESS.fullmatch(".".join("#" if isinstance(key, int) else key for key in path)), path
    assert refused > 300


ALTERED = {
    "two of one name": (("cluster", "devices", 0, "name"), "a"),
    "less than one": (("cluster", "devices"), []),
    "source is": (("source",), "nobody"),
    "sink is": (("sink",), ""),
    "after cut": (("stages", 0, "blocks", 0, "start"), -1),
    "from cut": (("stages", -1, "blocks", -1, "stop"), 10**9),
    "between 0": (("evidence", "bound"), -1.0),
    "floor": (("floor_s",), 1e9),
    "must be stated for": (("memory",), []),
    "matching regex": (("cluster", "devices", 0, "name"), "a\0b"),
    "length <= 63": (("cluster", "devices", 0, "name"), "n" * 64),
    "not between two": (("cluster", "network", "links"), [{"pair": [0, 7], "bytes_per_s": 1.0, "latency_s": 0.0}]),
}


@pytest.mark.parametrize("says", ALTERED)
def test_what_no_running_pipeline_may_have_is_refused(tmp_path, says):
    graph = load(branchy_model(tmp_path / "net.onnx"))
    plan = json.loads(encode_plan(plan_pipeline(graph, parse_cluster(two_devices("links")), method="layerwise")))
    path, value = ALTERED[says]
    with pytest.raises(DownsetError, match=says if says != "less than one" else "devices"):
        verify(graph, decode_plan(json.dumps(replaced(plan, path, value)).encode()))


def test_links_of_a_cluster_are_found_in_any_order():
    devices = tuple(Device(name, 1e9) for name in "abcd")
    links = [Link(pair, 10.0 * pair[0] + pair[1], 0.5) for pair in ((2, 3), (0, 3), (1, 2))]
    found = Cluster(devices, Network("links", 7.0, links=tuple(links)))
    for one, two in itertools.permutations(range(4), 2):
        expected = [(link.bytes_per_s, 0.5) for link in links if link.pair == (min(one, two), max(one, two))]
        assert found.link(one, two) == (expected or [(7.0, 0.0)])[0]


def test_devices_that_one_machine_cannot_hold_are_not_started():
    with pytest.raises(UsageError, match="too many for one machine"), cluster([f"d{at}" for at in range(65)]):
        pass
