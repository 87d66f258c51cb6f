"""`downset worker`: makes this machine a device of pipelines, for any driver that starts a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from downset.commands.envelope import json_option, print_json
from downset.commands.options import BYTES, SECONDS, console, path_option

__all__ = ["worker"]


@click.command()
@click.option("--head", required=True, metavar="HOST:PORT", help="Where `downset serve --head` listens.")
@click.option("--name", required=True, help="This device's name in the cluster file.")
@path_option("--keys", required=True, help="The folder that `downset keys issue` made for it.")
@click.option("--address", help="Address of this machine for the others; default: that of its route to the head.")
@click.option(
    "--object-store", type=BYTES, default="256MB", show_default=True, help="Shared memory for shards on their way."
)
@click.option(
    "--threads", type=click.IntRange(0, 1024), default=0, help="Threads of ONNX Runtime; default: one for each core."
)
@path_option("--shards", help="Where shards are kept; default: downset/shards in the user's cache folder.")
@click.option(
    "--shards-limit",
    type=BYTES,
    default="4GB",
    show_default=True,
    help="Most bytes of kept shards; the longest unused are removed.",
)
@click.option("--wait", "wait_s", type=SECONDS, help="End after this time without a head; default: never.")
@click.option(
    "--install",
    metavar="FILE",
    help="Write a systemd unit that does this at every start of the board, and end; - prints it. It is not enabled.",
)
@json_option("worker")
@click.option("-q", "--quiet", is_flag=True, help="Print no notes on stderr.")
def worker(head: str, name: str, keys: str, quiet: bool, as_json: bool, **options: Any) -> None:
    """Serve as device NAME until stopped: join the head whenever one is there."""
    from downset.distributed.keys import open_keys
    from downset.distributed.serving.systemd_unit import worker_unit
    from downset.distributed.serving.worker import WorkerOptions, work
    from downset.process.whole_files import write_whole
    from downset.tuning.profiles import cache_folder

    talk = console(stderr=True, quiet=quiet)
    shards = options["shards"]
    given = WorkerOptions(
        head,
        name,
        open_keys(keys),
        options["address"],
        options["object_store"],
        options["threads"],
        Path(shards) if shards is not None else cache_folder("keeping shards", extra="cluster") / "shards",
        options["shards_limit"],
        wait_s=options["wait_s"],
    )
    if (install := options["install"]) is not None:
        unit = worker_unit(given)
        if install == "-":
            click.echo(unit, nl=False)
            return
        write_whole(install, unit.encode())
        talk.print(f"written: {install}; it starts with the board after", markup=False, soft_wrap=True)
        talk.print(
            f"  sudo cp {install} /etc/systemd/system/ && sudo systemctl daemon-reload && sudo systemctl enable --now "
            f"{Path(install).name}",
            markup=False,
            soft_wrap=True,
        )
        return
    joined = work(given, report=lambda line: talk.print(line, markup=False, soft_wrap=True))
    if as_json:
        print_json("worker", {"name": name, "joined": joined})
