"""What a running pipeline records: planned shares are of the plan's own periods, however fast frames leave."""

import pytest

import downset as ds
from downset.clusters.model import Cluster, Device, Network
from downset.distributed.serving.record import ServeRecord
from tests.models import branchy_model


def test_planned_shares_do_not_depend_on_how_fast_frames_leave(tmp_path):
    graph = ds.load(branchy_model(tmp_path / "net.onnx"))
    cluster = Cluster((Device("d0", 2e6), Device("d1", 1e6)), Network("links", 1e7, overlap=True))
    plan = ds.plan_pipeline(graph, cluster, time_limit_s=2)
    shares = []
    for pace in (0.1, 3.0):
        record = ServeRecord(plan, 0.0)
        for frame in range(1, 9):
            record.left(["d0", "d1"], plan.latency_s, frame * pace * plan.period_s)
        uses = record.served(8, 8 * pace * plan.period_s).devices
        shares.append([(use.planned_computing, use.planned_sending, use.planned_receiving) for use in uses])
    fast, slow = shares
    for one, other in zip(fast, slow, strict=True):
        assert one == pytest.approx(other) and max(one) <= 1 + 1e-9
    assert max(use[0] for use in fast) > 0.5
