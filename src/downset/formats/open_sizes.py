"""The sizes that the inputs of a file leave open: which there are, which are given, and which count as a batch of 1."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from downset.errors import LoadError, UsageError
from downset.messages import Call, Message, Setting
from downset.methods import is_whole
from downset.results.sizes import OpenSize, place_name, quoted
from downset.text import printable

__all__ = ["ALL_OTHERS", "A_SIZE", "LARGEST", "Axes", "OpenSizes", "settled", "settled_beside"]

Axes = Sequence[int | str] | None
"""The sizes of an input: a number, or the name of an open axis ("" where the file gives none); None where the file does
not state the number of axes."""
ALL_OTHERS = "*"
"""The key of `dims` for all open sizes that nothing else gives."""
LARGEST, A_SIZE = 1 << 48, "a size is a whole number above 0 and below 2**48"
_EXAMPLE = 64
"""The size in the example of an error."""
_BATCHES = re.compile(r"n|b|bs|bsz", re.IGNORECASE)
_GENERATED = re.compile(
    r"(unk|unknown|none|dyn|dynamic|dim|sym|axis)_*\d*|[sd]\d+|.*dynamic_?(dimension|axes).*", re.IGNORECASE
)
"""Names that exporters make up."""
_LONGEST_NAME = 200
"""The most characters of a name that is read as arithmetic."""


@dataclass(frozen=True, slots=True)
class OpenSizes:
    """The open sizes of a file's inputs. `shapes`: those that were given, and those of the other inputs that have open
    axes and whose sizes are all known. `unranked`: the inputs whose number of axes is not known."""

    sizes: tuple[OpenSize, ...]
    shapes: Mapping[str, tuple[int, ...]]
    unranked: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[OpenSize, ...]:
        """The sizes that somebody has to give."""
        return tuple(one for one in self.sizes if one.size is None and not one.derived)

    @property
    def known(self) -> bool:
        return not (self.unranked or any(one.size is None for one in self.sizes))

    @property
    def note(self) -> str:
        """One line about the axes that count as a batch of 1; "" if none does."""
        assumed = [one for one in self.sizes if one.assumed]
        if not assumed:
            return ""
        others = Setting("dims", {one.name: 2 for one in assumed})
        return Message(f"the batch is 1: {', '.join(one.shown for one in assumed)}; ", others, " makes it 2")

    @property
    def wanted(self) -> Message:
        """The `dims` and `shapes` to add, with examples of sizes."""
        named = {one.name: _EXAMPLE for one in self.missing}
        shapes = dict.fromkeys(self.unranked, (1, _EXAMPLE))
        listed = [*(one.shown for one in self.missing), *(f"how many axes {quoted(x)} has" for x in self.unranked)]
        settings = [Setting(key, value) for key, value in (("dims", named), ("shapes", shapes)) if value]
        spaced: list[Setting | str] = [part for setting in settings for part in (" ", setting)]
        if len(named) > 1 and not shapes:
            spaced += [", or for all of them ", Setting("dims", {ALL_OTHERS: _EXAMPLE})]
        return Message(f"{', '.join(listed)}: add for example", *spaced)

    def check(self) -> OpenSizes:
        """Return the sizes themselves where all are known; else raise LoadError that names the missing ones."""
        if self.known:
            return self
        most = ", with the sizes that you run most, as every figure is for these alone"
        if self.missing or self.unranked:
            raise LoadError("sizes are left open: ", self.wanted, most)
        hidden = next(one for one in self.sizes if one.size is None)
        raise LoadError(f"{hidden.shown} is not a whole number above 0 with the sizes given: change ", Setting("dims"))


def settled(
    inputs: Mapping[str, Axes], shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int] | None = None
) -> OpenSizes:
    """The open sizes of these inputs, after `shapes` of whole inputs and `dims` of single axes are applied.

    A key of `dims` is the name of open axes in the file, or `x[2]` for one axis and all of the same name, or `*` for
    all that nothing else gives. A name that is arithmetic with others, such as `past + new`, follows from them. A batch
    is 1 unless it is given. Raises UsageError for `dims` that no open axis has, that are not a whole
    number above 0, or that contradict each other or `shapes`.
    """
    symbols, dims = _named(inputs), dict(dims or {})
    others = dims.pop(ALL_OTHERS, None)
    given = _given(symbols, inputs, dims)
    stated = _stated(symbols, inputs, shapes)
    for name, size in given.items():
        for one, (other, axis) in stated.get(name, {}).items():
            if one != size:
                there = f", which gives axis {axis} of {quoted(other)} the size {one}"
                raise UsageError(Setting("dims", {name: size}), " contradicts ", Setting("shapes"), there)
    sizes = {name: next(iter(ones)) for name, ones in stated.items() if len(ones) == 1} | given
    assumed = {
        name for name, places in symbols.items() if name not in sizes and _is_batch(name, places, symbols, inputs)
    }
    sizes |= dict.fromkeys(assumed, 1)
    formulas = {name: formula for name in symbols if name not in sizes and (formula := _arithmetic(name, symbols))}
    for name in given:
        formula = _arithmetic(name, symbols)
        if formula is not None and formula(sizes) not in (None, sizes[name]):
            sizes_given = Setting("dims", {name: sizes[name]})
            raise UsageError(
                sizes_given, f" contradicts the sizes that its name is made of, which give {formula(sizes)}"
            )
    if others is not None:
        left = [name for name in symbols if name not in sizes and name not in formulas]
        sizes |= dict.fromkeys(left, _size_of_others(others, left))
    computed = {name: formula(sizes) for name, formula in formulas.items()}
    sizes |= {name: size for name, size in computed.items() if size is not None}
    listed = tuple(
        OpenSize(name, places, sizes.get(name), name in assumed, name in formulas)
        for name, places in symbols.items()
        if any(place not in shapes for place, _ in places)
    )
    whole = {
        name: tuple(size if isinstance(size, int) else sizes[_key(name, axis, size)] for axis, size in enumerate(axes))
        for name, axes in inputs.items()
        if axes is not None and any(isinstance(size, str) for size in axes)
        if all(isinstance(size, int) or _key(name, axis, size) in sizes for axis, size in enumerate(axes))
    }
    unranked = tuple(name for name, axes in inputs.items() if axes is None and name not in shapes)
    return OpenSizes(listed, {**whole, **shapes}, unranked)


def settled_beside(
    fixed: Mapping[str, Axes],
    inputs: Mapping[str, Axes],
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, int] | None = None,
) -> OpenSizes:
    """`settled` of inputs whose open sizes are those of the inputs of the same name in `fixed`, where it has them."""
    both = dict(inputs)
    for name, axes in inputs.items():
        others = fixed.get(name)
        if axes is None or (others is not None and len(others) == len(axes)):
            stated = others if axes is None else axes
            both[name] = stated and [
                one if isinstance(one, int) or isinstance(other, str) else other
                for one, other in zip(stated, others or stated, strict=True)
            ]
    taken = {
        name: tuple(size for size in axes if isinstance(size, int))
        for name, axes in both.items()
        if axes is not None and [*axes] != [*(inputs[name] or ())] and all(isinstance(size, int) for size in axes)
    }
    sizes = settled(both, shapes, dims)
    return replace(sizes, shapes={**taken, **sizes.shapes})


def _key(name: str, axis: int, symbol: str) -> str:
    """The name by which `dims` gives an open axis. A name such as `?` says nothing: each such axis has its own."""
    usable = any(character.isalpha() for character in symbol) and printable(symbol) == symbol
    return symbol if usable else place_name(name, axis)


def _open_axes(inputs: Mapping[str, Axes]) -> Iterator[tuple[str, int, str]]:
    """(input, axis, symbol) of every open axis."""
    for name, axes in inputs.items():
        yield from ((name, axis, size) for axis, size in enumerate(axes or ()) if isinstance(size, str))


def _named(inputs: Mapping[str, Axes]) -> dict[str, tuple[tuple[str, int], ...]]:
    """The places of each open size, by what `dims` calls it."""
    symbols: dict[str, list[tuple[str, int]]] = {}
    for name, axis, symbol in _open_axes(inputs):
        symbols.setdefault(_key(name, axis, symbol), []).append((name, axis))
    return {key: tuple(places) for key, places in symbols.items()}


def _given(
    symbols: Mapping[str, Sequence[tuple[str, int]]], inputs: Mapping[str, Axes], dims: Mapping[str, int]
) -> dict[str, int]:
    """The sizes that `dims` gives, by name. Raises UsageError."""
    names = {place_name(*place): key for key, places in symbols.items() for place in places} | {
        key: key for key in symbols
    }
    fixed = {
        place_name(name, axis): size
        for name, axes in inputs.items()
        for axis, size in enumerate(axes or ())
        if isinstance(size, int)
    }
    given: dict[str, int] = {}
    for key, size in dims.items():
        dim = Setting("dims", {key: size})
        _check_size(dim, size)
        if key in names:
            if given.setdefault(names[key], size) != size:
                raise UsageError(dim, " contradicts ", Setting("dims", {names[key]: given[names[key]]}))
        elif key not in fixed:
            raise UsageError(
                dim, f" is not one of the open sizes: {printable(', '.join(symbols)) or 'the file has none'}"
            )
        elif fixed[key] != size:
            raise UsageError(dim, f" is another size than the {fixed[key]} that the file fixes")
    return given


def _check_size(dim: Setting, size: object) -> None:
    """Raise UsageError where this is not a size."""
    if isinstance(size, range):
        raise UsageError(dim, ": only `", Call("fit"), "` takes a range; give one size here")
    if not is_whole(size) or not 1 <= size < LARGEST:  # type: ignore[operator]
        raise UsageError(dim, ": ", A_SIZE)


def _size_of_others(size: int, names: Sequence[str]) -> int:
    """The size of these names, which nothing else gives. Raises UsageError for another value, or without names."""
    dim = Setting("dims", {ALL_OTHERS: size})
    _check_size(dim, size)
    if not names:
        raise UsageError(dim, ": no open size is left that nothing else gives")
    return size


def _stated(
    symbols: Mapping[str, Sequence[tuple[str, int]]], inputs: Mapping[str, Axes], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[int, tuple[str, int]]]:
    """By name: the sizes that `shapes` gives it, each with the first axis that has it."""
    stated: dict[str, dict[int, tuple[str, int]]] = {}
    for key, places in symbols.items():
        for name, axis in places:
            if len(shapes.get(name, ())) == len(inputs[name] or ()):
                stated.setdefault(key, {}).setdefault(shapes[name][axis], (name, axis))
    return stated


def _is_batch(
    name: str,
    places: Sequence[tuple[str, int]],
    symbols: Mapping[str, Sequence[tuple[str, int]]],
    inputs: Mapping[str, Axes],
) -> bool:
    """Whether an open size is a batch: its name has the word, or it stands first, and nowhere else, in an input with
    further axes, and its name is `N` or `B` or says nothing; or it stands so in a state (`_of_state`). A size that an
    input has twice is none."""
    if len({place for place, _ in places}) < len(places) or _arithmetic(name, symbols):
        return False
    if "batch" in name.lower():
        return True
    plain = name == place_name(*places[0]) or _BATCHES.fullmatch(name) or _GENERATED.fullmatch(name)
    if plain and all(_of_state(inputs, name) for name, _ in places):
        return True
    return bool(plain) and all(axis == 0 for _, axis in places) and any(len(inputs[x] or ()) > 1 for x, _ in places)


def _of_state(inputs: Mapping[str, Axes], name: str) -> bool:
    """Whether an input with three axes may leave the middle one alone open, where another input leaves its first
    axis open: ONNX's recurrent operators have states of (directions, batch, width)."""
    axes = inputs[name] or ()
    alone = len(axes) == 3 and isinstance(axes[0], int) and isinstance(axes[2], int)
    return alone and any(isinstance((others or (0,))[0], str) for one, others in inputs.items() if one != name)


def _arithmetic(name: str, others: Mapping[str, object]) -> Callable[[Mapping[str, int]], int | None] | None:
    """A function that computes a size from others, where its name is arithmetic with the names of others; else None.
    The result is None where one of them is not known, or where it is not a whole number above 0."""
    if len(name) > _LONGEST_NAME or name.isidentifier():
        return None
    try:
        body = ast.parse(name.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    called = {id(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}
    names = {node.id for node in ast.walk(body) if isinstance(node, ast.Name) and id(node) not in called}
    if not names or not all(one in others and one != name for one in names):
        return None

    def compute(sizes: Mapping[str, int]) -> int | None:
        try:
            value = _value(body, sizes)
        except (KeyError, ZeroDivisionError, TypeError, ValueError):
            return None
        return int(value) if value.denominator == 1 and value >= 1 else None

    return compute


_OPERATIONS: Mapping[type, Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: lambda one, other: one + other,
    ast.Sub: lambda one, other: one - other,
    ast.Mult: lambda one, other: one * other,
    ast.Div: lambda one, other: one / other,
    ast.FloorDiv: lambda one, other: one // other,
    ast.Mod: lambda one, other: one % other,
}
_FUNCTIONS: Mapping[str, Callable[..., Fraction | int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "ceiling": math.ceil,
    "max": max,
    "min": min,
}


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Fraction:
    """The value of an arithmetic expression. Raises ValueError for anything else, KeyError for an unknown name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.Name):
        return Fraction(sizes[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, sizes)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return Fraction(_OPERATIONS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return Fraction(_FUNCTIONS[node.func.id](*(_value(argument, sizes) for argument in node.args)))
    raise ValueError
