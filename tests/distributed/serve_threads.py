"""`downset` with the arguments of the command line, where the devices of `serve` are threads of its process.

python -m tests.distributed.serve_threads FOLDER serve ...
"""

import sys
from contextlib import contextmanager
from pathlib import Path

from downset.cli import main
from downset.distributed.serving import serve
from tests.distributed.thread_fleet import ThreadFleet

if __name__ == "__main__":
    folder = Path(sys.argv.pop(1))

    @contextmanager
    def cluster(names, **_):
        fleet = ThreadFleet(names, folder / "devices")
        try:
            yield fleet
        finally:
            fleet.close()

    serve.cluster = cluster
    main()
