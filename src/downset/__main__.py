"""The command line: what `downset` and `python -m downset` run."""

from __future__ import annotations

import signal

from downset.supervisor import Ended, supervise

__all__ = ["main"]


def main() -> None:
    """Run the command line in a process of its own, and watch it. An interrupt until that one answers signals ends both
    at once: Python would print a traceback of the module that it imports."""
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
