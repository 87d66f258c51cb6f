"""Cluster files for tests: the TOML text of a few devices."""

import json


def cluster_toml(devices, *, kind="links", rate_mbps=50, **network):
    """`devices`: by name, MACs a second, or the device's keys; None leaves a key out."""
    lines = ["[network]", *_lines({"kind": kind, "rate_mbps": rate_mbps, **network})]
    for name, keys in devices.items():
        lines += ["[[device]]", *_lines({"name": name, **(keys if isinstance(keys, dict) else {"mac_per_s": keys})})]
    return "\n".join(lines) + "\n"


def _lines(keys):
    return [f"{key} = {json.dumps(value)}" for key, value in keys.items() if value is not None]
