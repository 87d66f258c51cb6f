"""Pipeline plans with any one value replaced: simulated, or refused in one line, never a traceback."""

import copy
import json

import pytest

from downset.clusters.toml_file import parse_cluster
from downset.distributed.simulator import simulate
from downset.errors import DownsetError, InvalidPlan
from downset.formats.plan_json import decode_plan, encode_plan
from downset.formats.reading import load
from downset.pipelines.check import verify_without_graph
from downset.pipelines.plan import plan_pipeline
from tests.cluster_toml import cluster_toml
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


@pytest.mark.parametrize("method", ["pico", "coedge"])
@pytest.mark.parametrize("kind", ["links", "shared"])
def test_one_wrong_value_is_survived(tmp_path, method, kind):
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
    cluster = parse_cluster(two_devices("shared"))
    plan = json.loads(encode_plan(plan_pipeline(graph, cluster, method="layerwise")))
    verify_without_graph(decode_plan(json.dumps(plan).encode()))
    at = plan
    for key in path:
        at = at[key]
    for factor in (0.5, 1.001):
        with pytest.raises(InvalidPlan, match=r"period|latency|load bound"):
            verify_without_graph(decode_plan(json.dumps(replaced(plan, path, at * factor)).encode()))
