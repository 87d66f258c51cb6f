"""Plain TCP between two devices of a testbed, to hold its shapers to their rates. No part of Ray.

python -m experiments.testbed.traffic receive ADDRESS PORT            # prints bytes and seconds
python -m experiments.testbed.traffic send ADDRESS PORT BYTES
python -m experiments.testbed.traffic spin SECONDS                    # prints seconds of processor and of clock
"""

from __future__ import annotations

import socket
import sys
import time


def receive(address: str, port: int) -> None:
    """Bytes, and the times of the first and the last by the clock that all processes of a machine share."""
    with socket.create_server((address, port)) as server:
        print("ready", flush=True)
        end, _ = server.accept()
        with end:
            total, begun = len(end.recv(1)), time.monotonic()
            while piece := end.recv(1 << 16):
                total += len(piece)
        print(total, begun, time.monotonic(), flush=True)


def send(address: str, port: int, nbytes: int) -> None:
    with socket.create_connection((address, port), timeout=30) as end:
        piece = bytes(1 << 20)
        for begin in range(0, nbytes, len(piece)):
            end.sendall(piece[: nbytes - begin])


def spin(seconds: float) -> None:
    begun, used = time.monotonic(), time.process_time()
    while time.monotonic() - begun < seconds:
        pass
    print(time.process_time() - used, time.monotonic() - begun, flush=True)


def main() -> None:
    what, *words = sys.argv[1:]
    if what == "receive":
        receive(words[0], int(words[1]))
    elif what == "send":
        send(words[0], int(words[1]), int(words[2]))
    else:
        spin(float(words[0]))


if __name__ == "__main__":
    main()
