"""The systemd unit of a worker: a device that serves from the start of its board on."""

from __future__ import annotations

import getpass
import sys

from downset.clusters.model import check_device_name
from downset.distributed.serving.nodes import head_address
from downset.distributed.serving.worker import WorkerOptions

__all__ = ["worker_unit"]

_UNIT = """\
[Unit]
Description=downset worker {name}
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
User={user}
ExecStart={command}
Restart=always
RestartSec=5
SuccessExitStatus=130 143
KillMode=mixed
TimeoutStopSec=30
LimitNOFILE=65536
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


def worker_unit(options: WorkerOptions) -> str:
    """The text of a unit that runs `downset worker` with these options, as this user and with this Python. All paths in
    it are absolute. Raises UsageError as `work` does for a head, a name or keys that do not fit."""
    head_address(options.head)
    check_device_name(options.name)
    options.keys.check_name(options.name)
    words = [sys.executable, "-m", "downset", "worker", "--head", options.head, "--name", options.name]
    words += ["--keys", str(options.keys.folder), "--shards", str(options.shards.absolute())]
    words += ["--shards-limit", str(options.shards_bytes), "--object-store", str(options.object_store_bytes)]
    words += ["--threads", str(options.threads), *(["--address", options.address] if options.address else [])]
    command = " ".join(map(_word, words))
    return _UNIT.format(name=options.name.replace("%", "%%"), user=getpass.getuser(), command=command)


def _word(text: str) -> str:
    """A word of a command as systemd reads it: without specifiers, variables and escapes."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"' if plain != text or any(sign in " ';" for sign in text) or not text else plain
