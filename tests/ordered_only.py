"""Compiles that end behind Inductor's scheduler: our passes have run and reported, and the graph runs as plain PyTorch.

A compiler of C++ takes several seconds a graph, and what it makes is the subject of few tests.
"""

import copy

from torch._inductor import compile_fx, scheduler


class Ordered(BaseException):
    """Ends a compile where code would be generated; no `except Exception` of the compiler sees it."""


def order_only(replace):
    """From here on nothing is generated. `replace` is `setattr`, or that of a MonkeyPatch."""
    compiles = compile_fx._compile_fx_inner

    def stop(_):
        raise Ordered

    def compile_(graph, inputs, **options):
        plain = copy.deepcopy(graph)
        try:
            compiles(graph, inputs, **options)
        except Ordered:
            return compile_fx.make_boxed_func(plain.forward)
        raise AssertionError("the scheduler generated code")

    replace(compile_fx, "_compile_fx_inner", compile_)
    replace(scheduler.Scheduler, "codegen", stop)
