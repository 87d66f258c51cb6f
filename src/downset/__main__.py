"""The command line: what `downset` and `python -m downset` run."""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """Import the command line and run it. An interrupt until it answers signals by itself ends the process at once:
    Python would print a traceback of the module that it imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from downset.cli import main as run

    run()


if __name__ == "__main__":
    main()
