"""Plans of all methods under settings in which ties, times and rates are extreme: each keeps its laws, and none is
below `exact`, which also asks the others."""

from collections import Counter
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from downset.clusters.model import Cluster, Device, Network
from downset.errors import UnsupportedError, UsageError
from downset.joint.check import verify
from downset.pipelines import incumbents
from downset.pipelines.device_order import canonical
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.pipelines.problem import chain_problem
from tests.effort import cases
from tests.oracles_loads import computing_s
from tests.pipeline_generators import KINDS, random_setting

pytestmark = pytest.mark.native

COUNT = cases(120)


def extreme(random, cluster):
    """The cluster with devices that are equal in speed and not in `alpha`, and with messages that take next to no
    time."""
    members, alpha_of = [], random.choice([None, {"Conv": 0.5}])
    for device in cluster.devices:
        factor = random.choice([0.5, 1.0, 1.0, 2.0])
        speed = random.choice([10.0, 10.0, device.mac_per_s])
        own = device.alpha_of if alpha_of is None else alpha_of
        members.append(replace(device, mac_per_s=speed * factor, alpha=factor, alpha_of=own))
    rate = random.choice([None, None, 1e24])
    network = cluster.network
    if rate is not None:
        links = tuple(replace(link, bytes_per_s=rate, occupied_bytes_per_s=None) for link in network.links)
        network = replace(network, bytes_per_s=rate, occupied_bytes_per_s=None, links=links)
    return Cluster(tuple(members), network)


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_keeps_its_laws_and_none_is_below_exact(kind, monkeypatch):
    monkeypatch.setattr(incumbents, "_MOMENT_S", 60.0)  # `exhaustive` finishes under any load
    for seed in range(28, 28 + COUNT):
        random = Random(f"extreme/{kind}/{seed}")
        problem, cluster, source, sink = random_setting(random, kind, rows=4)
        cluster = extreme(random, cluster)
        names = [None if end is None else cluster.devices[end].name for end in (source, sink)]
        limits = {"source": names[0], "sink": names[1], "window": random.choice([None, None, 1, 2])}
        plans = {}
        for method in PIPELINERS:
            try:
                plans[method] = plan_pipeline(problem, cluster, method=method, **limits)
            except UnsupportedError:
                continue
            verify(plans[method])
        least = plans["exact"].period_s
        for method, plan in plans.items():
            assert least <= plan.period_s * (1 + 1e-9), (seed, method)


def test_devices_of_one_type_take_equally_long_for_everything():
    alike = 0
    for seed in range(cases(500)):
        random = Random(f"types/{seed}")
        _, cluster, _, _ = random_setting(random, "links", devices=4)
        cluster = extreme(random, cluster)
        form = canonical(cluster)
        for one, other in combinations(range(len(form.order)), 2):
            if form.type[one] != form.type[other]:
                continue
            alike += 1
            devices = [cluster.devices[form.order[place]] for place in (one, other)]
            for macs, moved in ((Counter(Conv=7), 0), (Counter(Gemm=7), 0), (Counter({"": 7}), 0), (Counter(), 7)):
                first, second = (computing_s(device, macs, moved) for device in devices)
                assert first == pytest.approx(second, rel=1e-12), seed
    assert alike


def test_work_whose_result_has_no_bytes_is_refused():
    """Strips leave out rows without bytes, and would leave out the work that makes them."""
    problem = chain_problem([(8, 3, 1, 0), (4, 3, 1, 2)], rows=6, row_bytes=2)
    with pytest.raises(UsageError, match="operator 0 multiplies, but its results have 0 bytes a row"):
        plan_pipeline(problem, Cluster((Device("one", 10.0),), Network("links", 10.0)))
