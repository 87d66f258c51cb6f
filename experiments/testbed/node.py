"""One device of the testbed: a Ray node that joins the head. Started inside the device's namespace and share.

python -m experiments.testbed.node NAME ADDRESS HEAD KEYS FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from downset.distributed.keys import open_keys, ray_environment
from downset.distributed.serving.nodes import NodeOptions, start_node

_STORE_BYTES = 256 << 20
_WAITS_S = 120.0


def main() -> None:
    name, address, head, keys, folder = sys.argv[1:]
    own = Path(folder)
    environment = {
        **ray_environment(open_keys(keys)), "DOWNSET_THREADS": "1", "DOWNSET_SHARDS": str(own / "shards"),
    }  # fmt: skip
    options = NodeOptions(
        address, own, head=head, device=name, object_store_bytes=_STORE_BYTES, environment=environment
    )
    until = time.monotonic() + _WAITS_S
    while time.monotonic() < until:  # the head may not listen yet
        if start_node(options).wait():
            time.sleep(1.0)


if __name__ == "__main__":
    main()
