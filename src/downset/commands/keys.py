"""`downset keys`: TLS certificates and the token of a cluster of devices."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.options import console, path_option
from downset.errors import UsageError

__all__ = ["keys"]

_authority = path_option(
    "--authority",
    default=["downset-keys"],
    show_default=True,
    help="The authority's folder. Keep it off the devices.",
)


@click.group()
def keys() -> None:
    """Make the TLS certificates and the token without which nothing joins a cluster."""


@keys.command("init")
@_authority
@click.option("--days", type=click.IntRange(1, 36_500), default=3650, show_default=True, help="Days that it is valid.")
@json_option("keys")
def init(authority: str, days: int, as_json: bool) -> None:
    """Make an authority and a token, in a new folder."""
    from downset.distributed.keys import make_authority

    folder = make_authority(authority, days=days)
    _tell(
        folder,
        f"{folder}: an authority and a token. For every device and for the driver:",
        f"  downset keys issue NAME --host ADDRESS --authority {folder}",
        as_json=as_json,
    )


@keys.command("issue")
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="ADDRESS",
    help="Address or name by which other nodes reach this device; repeatable.",
)
@click.option(
    "--client", is_flag=True, help="Keys of a client of `downset serve --listen`: without --host and a token."
)
@_authority
@click.option("--days", type=click.IntRange(1, 36_500), default=825, show_default=True, help="Days that it is valid.")
@path_option("-o", "--output", help="The folder to make; default: AUTHORITY/NAME.")
@json_option("keys")
def issue(
    name: str, hosts: tuple[str, ...], client: bool, authority: str, days: int, output: str | None, as_json: bool
) -> None:
    """Make the folder of keys that the device or the client NAME needs."""
    from downset.distributed.keys import issue_keys

    if client and hosts:
        raise UsageError("--client makes keys for a program that nobody connects to: leave out --host")
    if not client and not hosts:
        raise UsageError(f"--host says under which address other nodes reach {name}; --client makes keys without one")
    folder = issue_keys(authority, name, hosts=None if client else hosts, folder=output, days=days)
    _tell(
        folder,
        f"{folder}: the keys of {name}. Copy this folder to {'its machine' if client else 'the device'} (it keeps its "
        "modes with scp -p or rsync -a):",
        f"  scp -pr {folder} {name if client else hosts[0]}:",
        as_json=as_json,
    )


@keys.command("token")
@_authority
@json_option("keys")
def token(authority: str, as_json: bool) -> None:
    """Change the token: in the authority's folder, and in the device folders inside it."""
    from downset.distributed.keys import new_token

    written = new_token(authority)
    if as_json:
        print_json("keys", {"folder": authority, "files": [str(file) for file in written]})
        return
    for file in written:
        _say(f"written: {file}")
    _say("Copy each token to its device, and start every worker and the driver again: running ones keep the old token.")


def _tell(folder: Path, *lines: str, as_json: bool) -> None:
    """Print a new folder and what it holds as JSON, or lines on what to do with it."""
    if as_json:
        print_json("keys", {"folder": str(folder), "files": [str(file) for file in sorted(folder.iterdir())]})
        return
    for line in lines:
        _say(line)


def _say(line: str) -> None:
    console().print(line, markup=False, soft_wrap=True)
