"""Uses names of Ray that are not public: all that downset needs are in this file, each with its reason.

`ray._raylet.Config.initialize`, `AuthenticationTokenLoader.reset_cache`: Ray reads token and settings once, when it is
imported. A process may join one cluster after another, and its owner may use Ray too.
`ray._private.worker.print_to_stdstream`: `log_to_driver=False` does not keep errors of other processes from stdout.
`ray._private.services.resolve_ip_for_localhost`: `ray start` and `ray.init` replace 127.0.0.1 by the machine's own
address, at which Ray listens on all interfaces.
`JobConfig._py_driver_sys_path`: devices would import from the driver's current folder and its script's.
`ray.init(_node_ip_address=...)` (`ray_fleet`): Ray looks for this machine's node at another address than the head has.

`check` says in one line which of them a Ray lacks. The versions that pyproject.toml allows were tried with a pipeline
on local devices.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from downset.errors import UnsupportedError
from downset.extras import optional_library, requirements_of

__all__ = ["addresses_kept", "check", "job_without_paths", "quieten", "read_settings"]

_WHAT = "running pipelines on devices"
_PRIVATE = {
    "ray._raylet": ("Config.initialize", "AuthenticationTokenLoader.reset_cache"),
    "ray._private.worker": ("print_to_stdstream",),
    "ray._private.services": ("resolve_ip_for_localhost",),
    "ray.job_config": ("JobConfig",),
}
_log = logging.getLogger("downset.serving")


def _module(name: str) -> Any:
    return optional_library(name, what=_WHAT, extra="cluster")


def check(modules: Mapping[str, Any] | None = None) -> None:
    """Raise UnsupportedError if this Ray lacks a name that is used here. `modules`: in place of Ray's, by name."""
    for module, names in _PRIVATE.items():
        for name in names:
            owner: Any = _module(module) if modules is None else modules[module]
            for part in name.split("."):
                owner = getattr(owner, part, None)
            if owner is None:
                version = getattr(_module("ray"), "__version__", "?")
                wanted = [one for one in requirements_of("cluster") if one.startswith("ray")]
                advice = f"; install {wanted[0]!r}" if wanted else ""
                raise UnsupportedError(f"Ray {version} has no {module}.{name}, which downset needs{advice}")


def read_settings() -> None:
    """Make Ray read its environment again: it does so once, when it is imported, which may have been with another
    cluster's token, or with none."""
    core = _module("ray._raylet")
    core.Config.initialize("")
    core.AuthenticationTokenLoader.instance().reset_cache()


def quieten() -> None:
    """Keep Ray from printing messages about workers to stdout, which is for data."""
    _module("ray._private.worker").print_to_stdstream = _logged


def _logged(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
    del ignore_prefix
    for line in data["lines"]:
        _log.info("Ray: %s", line)


def job_without_paths() -> Any:
    """A job configuration whose devices import installed packages only. Ray would add the current folder and the
    script's folder to their path, where a file such as msgspec.py may lie."""
    job = _module("ray.job_config").JobConfig()
    job._py_driver_sys_path = _NoPaths()
    return job


class _NoPaths(list[str]):
    """A list of folders that stays empty, for the import path of a job's processes."""

    def extend(self, folders: Iterable[str]) -> None:
        del folders


def _as_given(host: str) -> str:
    return host


@contextmanager
def addresses_kept() -> Iterator[None]:
    """A context in which Ray takes the addresses of nodes as they are given."""
    services = _module("ray._private.services")
    replaced = services.resolve_ip_for_localhost
    services.resolve_ip_for_localhost = _as_given
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = replaced
