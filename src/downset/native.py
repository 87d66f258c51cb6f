"""The compiled module as `compiled`; its types are in _native.pyi."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from downset.errors import UnsupportedError

__all__ = ["compiled"]

if TYPE_CHECKING:
    from downset import _native as compiled
else:

    def __getattr__(name: str) -> Any:
        """`compiled`, imported when it is first used. Where it is not built, raises UnsupportedError that says how to
        build it."""
        if name != "compiled":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from downset import _native
        except ImportError as error:
            raise UnsupportedError(
                f"the native module is not built ({error}); `python -m pip install .` in a checkout of downset builds "
                "it, with a C++20 compiler"
            ) from None
        return _native
