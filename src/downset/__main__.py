"""The entry point of the command line, for `downset` and `python -m downset`."""

from __future__ import annotations

import signal

from downset.process.supervisor import Ended, supervise

__all__ = ["main"]


def main() -> None:
    """Run the command line in a second process, and watch it. An interrupt ends both processes at once until the second
    one handles signals; otherwise Python would print a traceback of the module that it is importing."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    supervise(_work, _explain)


def _work() -> None:
    from downset.cli import main as run

    run()


def _explain(ended: Ended) -> int:
    from downset.cli import explain_end

    return explain_end(ended)


if __name__ == "__main__":
    main()
