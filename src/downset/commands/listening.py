"""The part of `downset serve --listen`: until it is stopped, frames come over the network."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from downset.errors import UsageError
from downset.process.command import Stopped
from downset.text import counted

if TYPE_CHECKING:
    from downset.distributed.keys import DeviceKeys
    from downset.distributed.serving.serve import RunningPipeline
    from downset.graph.core import Graph

__all__ = ["JsonLines", "Listening"]

_FIELDS = ("device", "client", "status")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message, and device, client or status where the record
    has them."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name in _FIELDS if (value := getattr(record, name, None)) is not None}
        return msgspec.json.encode(fields).decode()


class Listening:
    """The settings of `--listen`, checked before anything starts. Raises UsageError for those that are not possible."""

    def __init__(self, address: str, keys: str | None, *, deadline_s: float, queue: int) -> None:
        from downset.distributed.keys import open_keys
        from downset.distributed.service.server import ServiceLimits, listening, web_library
        from downset.distributed.serving.nodes import host_and_port

        web_library()
        self.host, self.port = host_and_port(address)
        self.keys: DeviceKeys | None = None if keys is None else open_keys(keys)
        if self.keys is None and not _is_loopback(self.host):
            raise UsageError(
                f"--listen {address} takes frames from other machines, which needs --keys: make them with `downset "
                "keys`; without them it listens on loopback alone"
            )
        if self.keys is not None and not _is_any(self.host):
            self.keys.check_host(self.host)
        listening(self.host, self.port).close()
        self.limits = ServiceLimits(queue=queue, deadline_s=deadline_s)

    def run(self, pipeline: RunningPipeline, graph: Graph, model: str, talk: Console) -> None:
        """Take frames until a signal stops this, or the pipeline ends with an error, which is raised."""
        from downset.distributed.service.server import Service

        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(model).stem) or "model"
        with Service(pipeline, graph, name, (self.host, self.port), self.keys, self.limits) as service:
            scheme = "http" if self.keys is None else "https"
            line = f"listening at {scheme}://{self.host}:{service.port}/v2/models/{name}"
            talk.print(line, markup=False, soft_wrap=True, highlight=False)
            try:
                service.wait()
            except Stopped as stopped:
                service.close()
                stopped.add_lines([f"{counted(pipeline.figures().completed, 'frame')} answered"])
                raise


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_any(host: str) -> bool:
    return host.strip("[]") in ("0.0.0.0", "::")
