"""The update of a parameter by Adam or AdamW as one operator.

As one node of a graph it is traced once, where its formulas would be some 30 nodes for each parameter: most of a whole
step's graph. Inductor compiles it to the kernels of those formulas: their graph is recorded once for each kind of
tensors, and lowered in place of the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

__all__ = ["adam"]


@cache
def adam() -> Any:
    """The operator `adam(of, moving, numbers, flags)`, which returns the new values of parameter, moments and step.

    `of`: parameter, gradient, first and second moment, step, rate and, for AMSGrad, the largest second moment.
    `numbers`: both betas, weight decay and eps; a tensor in `moving` (betas, weight decay) stands for such a number.
    `flags`: whether it maximises, whether there is weight decay, and whether that is apart from the gradient."""
    import torch
    from torch._inductor.lowering import register_lowering

    def like(of: Sequence[Any], *_: Any) -> list[Any]:
        return [torch.empty_like(of[number]) for number in (0, 2, 3, 4, 6) if number < len(of)]

    library = torch.library.Library("downset", "FRAGMENT")
    library.define("adam(Tensor[] of, Tensor?[] moving, float[] numbers, bool[] flags) -> Tensor[]")
    library.impl("adam", _new_values, "CompositeExplicitAutograd")
    torch.library.register_fake("downset::adam", like, lib=library)
    operator = torch.ops.downset.adam.default
    operator._library = library  # it would be taken back with its last reference
    register_lowering(operator, type_promotion_kind=None)(_lowered)
    return operator


def _new_values(of: Sequence[Any], moving: Sequence[Any], numbers: Sequence[float], flags: Sequence[bool]) -> list[Any]:
    """By the formulas of `torch.optim`, with the step counted in a tensor. The functions of torch.optim for such a
    counter divide by the learning rate: at a rate of 0 they write NaN where the second moment is 0."""
    import torch

    parameter, gradient, first, second, step, rate, *most = of
    beta1, beta2, decay = (
        number if tensor is None else tensor for tensor, number in zip(moving, numbers, strict=False)
    )
    maximize, decays, apart = flags
    step = step + 1
    wide = step.double()
    gradient = -gradient if maximize else gradient
    if decays and apart:
        parameter = (parameter * (1 - rate * decay)).to(parameter.dtype)  # as it would be in place
    elif decays:
        gradient = gradient + parameter * decay
    first = (first + (gradient - first) * (1 - beta1)).to(first.dtype)
    second = ((second * beta2).to(second.dtype) + gradient * gradient * (1 - beta2)).to(second.dtype)
    most = [torch.maximum(of_before, second) for of_before in most]
    root = (most[0] if most else second).sqrt() / (1 - beta2**wide).sqrt() + numbers[-1]
    parameter = (parameter - rate / (1 - beta1**wide) * (first / root)).to(parameter.dtype)
    return [parameter, first, second, step, *most]


def _lowered(of: Sequence[Any], moving: Sequence[Any], numbers: Sequence[float], flags: Sequence[bool]) -> list[Any]:
    """The formulas' graph in Inductor's own form, made node by node."""
    from torch._inductor.ir import TensorBox
    from torch._inductor.lowering import lowerings

    given = [*of, *(tensor for tensor in moving if tensor is not None)]
    forms = tuple((bool(tensor.get_size()), tensor.get_dtype()) for tensor in given)
    moves = tuple(tensor is not None for tensor in moving)
    graph = _formulas(len(of), forms, moves, (tuple(numbers), tuple(flags)))
    values: dict[Any, Any] = {}
    inputs = iter(given)
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "output":
            break
        else:
            args, kwargs = (_mapped(arguments, values) for arguments in (node.args, node.kwargs))
            values[node] = lowerings[node.target](*args, **kwargs)
        if len(node.users) > 1 and isinstance(values[node], TensorBox):
            values[node].mark_reuse(len(node.users))
    return [values[result] for result in node.args[0]]


def _mapped(arguments: Any, values: Any) -> Any:
    import torch

    return torch.fx.map_arg(arguments, lambda of: values[of])


@cache
def _formulas(
    count: int, forms: tuple[tuple[bool, Any], ...], moves: tuple[bool, ...], constants: tuple[Any, ...]
) -> Any:
    """The graph of the formulas, in the operators that Inductor lowers, of `count` tensors and those that move. Where
    a tensor has dimensions, its sizes do not count."""
    import torch
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    numbers, flags = constants

    def formulas(given: list[Any]) -> list[Any]:
        others = iter(given[count:])
        return _new_values(given[:count], [next(others) if moved else None for moved in moves], numbers, flags)

    with torch.no_grad():
        example = [torch.zeros((2,) if sized else (), dtype=dtype) for sized, dtype in forms]
        traced = make_fx(formulas, decomposition_table=select_decomp_table(), tracing_mode="fake")(example)
    return traced.graph
