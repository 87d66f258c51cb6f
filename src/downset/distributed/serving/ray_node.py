"""Runs `ray start` so that a node on loopback stays there (`ray_private.addresses_kept`).

python -m downset.distributed.serving.ray_node start ...
"""

from __future__ import annotations

import sys

from downset.distributed.serving.ray_private import addresses_kept
from downset.extras import optional_library

__all__ = ["main"]


def main() -> int:
    with addresses_kept():
        scripts = optional_library("ray.scripts.scripts", what="running pipelines on devices", extra="cluster")
        return int(scripts.main() or 0)


if __name__ == "__main__":
    sys.exit(main())
