"""Clusters that guide the search by loads where messages take a part of processors' time.

The search knows a device's resources and not the part of a message that a processor takes: on the cluster itself it
gives a bound, and a plan for messages that cost no processor anything. Each guide counts that part in a way that it
knows; what it finds is priced on the cluster like every other plan.
"""

from __future__ import annotations

from dataclasses import replace

from downset.clusters.model import Cluster, Link, MessageCosts, Network

__all__ = ["message_guides"]

_FASTEST = 1e24


def message_guides(cluster: Cluster) -> tuple[Cluster, ...]:
    """The cluster by its processors alone, and with devices that do one thing at a time; none where messages take
    nothing of a processor, or all of its time already."""
    if not cluster.network.overlap or all(device.messages is None for device in cluster.devices):
        return ()
    cluster = cluster.occupied
    return (_by_processors(cluster), replace(cluster, network=replace(cluster.network, overlap=False)))


def _by_processors(cluster: Cluster) -> Cluster:
    """A message takes both ends for the mean of what it takes of their processors, and no link any time."""
    costs = [device.messages or MessageCosts() for device in cluster.devices]
    links = []
    for one in range(len(costs)):
        for two in range(one + 1, len(costs)):
            ends = [costs[one].send, costs[two].receive, costs[two].send, costs[one].receive]
            byte_s = sum(end.byte_s for end in ends) / 4
            rate = min(1 / byte_s, _FASTEST) if byte_s else _FASTEST
            links.append(Link((one, two), rate, sum(end.each_s for end in ends) / 4))
    alike = len({(link.bytes_per_s, link.latency_s) for link in links}) < 2
    common = links[0] if links else Link((0, 0), _FASTEST, 0.0)
    network = Network("links", common.bytes_per_s, common.latency_s, links=() if alike else tuple(links))
    return replace(cluster, network=network)
