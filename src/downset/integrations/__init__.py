"""Applies downset's plans inside the compilers and runtimes of others: PyTorch and ExecuTorch."""

from importlib import import_module

__all__ = ["inductor"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
