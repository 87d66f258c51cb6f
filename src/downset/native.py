"""The compiled module as `compiled`; its types are in _native.pyi."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from downset.errors import UnsupportedError

__all__ = ["compiled"]

if TYPE_CHECKING:
    from downset import _native as compiled
else:

    def _load() -> None:
        """Import the module in a thread of its own, which no signal interrupts: where a handler raises while nanobind
        makes an enumeration, it reports a critical error and leaves a module that is half made."""

        def load() -> None:
            with suppress(ImportError):  # which the import behind this raises again
                import_module("downset._native")

        if "downset._native" not in sys.modules:
            thread = threading.Thread(target=load)
            thread.start()
            thread.join()

    def __getattr__(name: str) -> Any:
        """`compiled`, imported when it is first used. Where it is not built, raises UnsupportedError that says how to
        build it."""
        if name != "compiled":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _load()
        try:
            from downset import _native
        except ImportError as error:
            raise UnsupportedError(
                f"the native module is not built ({error}); `python -m pip install .` in a checkout of downset builds "
                "it, with a C++20 compiler"
            ) from None
        return _native
