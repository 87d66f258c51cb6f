"""Makes clusters that guide the search by loads if messages take processor time.

The search knows loads of resources, but not the processor time of messages. On the cluster itself it gives a bound, and
plans for messages that take no processor time. Each guide counts that time in a way that the search knows. The plans
found are priced on the cluster like every other plan.
"""

from __future__ import annotations

from dataclasses import replace

from downset.clusters.model import Cluster, Link, MessageCosts, Network

__all__ = ["message_guides"]

_FASTEST = 1e24


def message_guides(cluster: Cluster) -> tuple[Cluster, ...]:
    """Two guides: the cluster in which only processors are loaded, and the cluster whose devices do one thing at a
    time. Empty if messages take no processor time, or if devices do one thing at a time already."""
    if not cluster.network.overlap or all(device.messages is None for device in cluster.devices):
        return ()
    cluster = cluster.occupied
    return (_by_processors(cluster), replace(cluster, network=replace(cluster.network, overlap=False)))


def _by_processors(cluster: Cluster) -> Cluster:
    """The cluster in which a message takes both devices for the mean of its processor times, and no time on a link."""
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
