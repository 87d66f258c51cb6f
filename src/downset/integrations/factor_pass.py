"""Writes a sum with a factor as a product and a sum, before Inductor matches its patterns.

Inductor's pattern for the sum of a matrix product and a tensor leaves out the factor (torch 2.13): it compiles
`(a @ b).add(c, alpha=0.01)` to `a @ b + c`. In the graph of a whole step the gradient of a layer's weights is such a
product, and weight decay adds the weights with a factor.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from downset.integrations.code_fingerprint import code_fingerprint

__all__ = ["factor_options"]


def factor_options() -> dict[str, Any]:
    """Options of `torch.compile` with which a sum keeps its factor."""
    return {"post_grad_custom_pre_pass": _pass_class()()}


@cache
def _pass_class() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class FactorPass(CustomGraphPass):  # type: ignore[misc, unused-ignore]
        """Rewrites every sum with a factor in a graph."""

        def uuid(self) -> str:
            return f"downset {code_fingerprint()} factors"

        def __reduce__(self) -> tuple[Any, ...]:
            return _again, ()

        def __call__(self, graph: Any) -> None:
            _write_products(graph)

    return FactorPass


def _again() -> Any:
    return _pass_class()()


def _write_products(graph: Any) -> None:
    """Replace each `add(x, y, alpha=f)` by `add(x, mul(y, f))`."""
    import torch

    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        factor = node.kwargs.get("alpha", 1)
        if isinstance(factor, int | float) and factor == 1:
            continue
        first, second = node.args
        if not isinstance(second, torch.fx.Node):  # a number
            continue
        with graph.inserting_before(node):
            product = graph.call_function(aten.mul.Tensor, (second, factor))
        if "val" in second.meta:
            product.meta = {**second.meta, "val": second.meta["val"] * factor}
        node.args, node.kwargs = (first, product), {}
