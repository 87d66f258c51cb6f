"""The processes of a run, and the sockets on which they can be reached, as Linux lists them."""

from __future__ import annotations

import contextlib
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

_LISTENS, _UNCONNECTED = "0A", "07"
"""States in /proc/net: of TCP, and of UDP."""


class Socket(NamedTuple):
    """`process`: the name of a process that has it open."""

    process: str
    address: str
    port: int


def processes_of(*roots, session=None, mark=None):
    """Process numbers: these, those of a session, those that began with `mark` in their environment, and all
    descendants of each."""
    found, children = set(roots), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            state, parent, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if state == "Z":
                continue
            children.setdefault(int(parent), []).append(int(folder.name))
            if int(of) == session or (mark and mark.encode() in (folder / "environ").read_bytes()):
                found.add(int(folder.name))
    waiting = list(found)
    while waiting:
        new = set(children.get(waiting.pop(), ())) - found
        found |= new
        waiting += new
    return found


def _address(text):
    """An address of /proc/net, which is in words of the machine's order."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ip_address(b"".join(words))
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def open_sockets(processes):
    """Every socket of these processes that listens, or takes datagrams from anywhere."""
    tables = {}
    for kind, state in (("tcp", _LISTENS), ("udp", _UNCONNECTED)):
        for table in (kind, f"{kind}6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == state:
                    address, port = words[1].split(":")
                    tables[f"socket:[{words[9]}]"] = (str(_address(address)), int(port, 16))
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{process}/comm").read_text().strip()
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if (where := tables.get(str(descriptor.readlink()))) is not None:
                        found.add(Socket(name, *where))
    return sorted(found)
