"""Runs `ray start` so that a node on loopback stays there.

    python -m downset.distributed.serving.ray_node start ...

Ray's processes listen on loopback alone where the node's address is 127.0.0.1. `ray start` and `ray.init` replace that
address by the machine's own, at which they listen on all interfaces.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from downset.extras import optional_library

__all__ = ["addresses_kept"]

_WHAT = "running pipelines on devices"


def _as_given(host: str) -> str:
    return host


@contextmanager
def addresses_kept() -> Iterator[None]:
    """A context in which Ray takes the addresses of nodes as they are given."""
    services = optional_library("ray._private.services", what=_WHAT, extra="cluster")
    replaced = services.resolve_ip_for_localhost
    services.resolve_ip_for_localhost = _as_given
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = replaced


def main() -> int:
    with addresses_kept():
        return int(optional_library("ray.scripts.scripts", what=_WHAT, extra="cluster").main() or 0)


if __name__ == "__main__":
    sys.exit(main())
