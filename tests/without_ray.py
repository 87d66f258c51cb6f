"""Devices of this process for the commands that start a cluster: Ray is not what every test of them is about.

With Ray they are tested in tests/cli/test_serve_command.py, tests/distributed and tests/docs/test_guides.py."""

from contextlib import contextmanager

from downset.distributed.profiling import joined, measure
from downset.distributed.serving import serve
from tests.distributed.thread_fleet import ThreadFleet
from tests.fuzz.stand_in import joined_cluster, measure_cluster

__all__ = ["start_no_ray"]


def start_no_ray(monkeypatch, folder):
    """`serve` runs on threads of this process, and `profile-cluster` joins nobody and states fixed rates."""

    @contextmanager
    def cluster(names, **_):
        fleet = ThreadFleet(names, folder / "devices")
        try:
            yield fleet
        finally:
            fleet.close()

    monkeypatch.setattr(serve, "cluster", cluster)
    monkeypatch.setattr(joined, "joined_cluster", joined_cluster)
    monkeypatch.setattr(measure, "measure_cluster", measure_cluster)
