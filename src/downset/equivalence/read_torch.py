"""`.pt2` -> FileNetwork, read as data. Calls with a known meaning take the form of ONNX's operators, so that the same
identities hold for them; of all others everything that the file states is kept.

A call that writes over a value makes a new one, which later readers of any of its names read. A program is refused that
writes over a value of which others are views, over an input, a weight or in another way. A padding that a rewrite put
before a window is read as pads of the window.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from downset.equivalence.claims import array_of
from downset.equivalence.file_network import ABSENT, Body, Effect, FileNetwork, FileNode, FileValue
from downset.equivalence.meaning import PYTORCH
from downset.equivalence.torch_arguments import Meaning
from downset.equivalence.torch_meaning import meaning_of
from downset.equivalence.torch_padding import Padding, padding_of, with_padding
from downset.errors import LoadError
from downset.formats.certificates import read_certificate
from downset.formats.torch.archive import DTYPES, Archive
from downset.formats.torch.effects import overwritten, owners, owners_outside, written_names
from downset.formats.torch.program import TorchCall, TorchProgram, TorchSetting, TorchValue, values_in
from downset.formats.torch.read import archive_program
from downset.graph.parts import Part

__all__ = ["read_torch"]

_RANDOM = (
    *("rand", "dropout", "bernoulli", "multinomial", "normal", "poisson", "exponential", "geometric", "cauchy"),
    *("attention", "rrelu", "lstm", "gru", "rnn_"),
)
"""Words in the names of calls that may draw random numbers, some where they drop values out."""


def read_torch(path: str | os.PathLike[str]) -> tuple[FileNetwork, bytes | None]:
    """(the network of the file, the certificate in it or None). Raises LoadError for a damaged file, and for a program
    of which names do not say what is read."""
    archive = Archive(Path(path))
    program = archive_program(archive)
    certificate = archive.certificate
    parts = read_certificate(certificate).parts if certificate is not None else {}
    try:
        model = json.loads(archive.read(archive.model_entry))
        return _ProgramReader(archive, program, parts).network(model), certificate
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise LoadError(f"{path} is damaged: {type(error).__name__} while reading it ({error})") from None


@dataclass(slots=True)
class _ProgramReader:
    archive: Archive
    program: TorchProgram
    new: Mapping[str, Part]
    """By name of a value that a rewrite made: the part of a value of the original that it holds."""
    values: list[FileValue] = field(default_factory=list)
    nodes: list[FileNode] = field(default_factory=list)
    number: dict[str, int] = field(default_factory=dict)
    """By name: the value that it has now."""

    def network(self, model: Mapping[str, Any]) -> FileNetwork:
        program, module = self.program, model["graph_module"]
        graph = module["graph"]
        states = self._states(module["signature"])
        for value, read in program.constants:
            if value not in states:
                form = ("constant", value.dtype, value.shape, tuple(self.archive.strides(value.name)))
                self._add(value, form, _content(read, value.dtype))
        for value in (*program.inputs, *states):
            strides = () if value.shape is None else tuple(self.archive.strides(value.name))
            self._add(value, ("input", value.dtype, value.shape, strides), default=states.get(value))
        inputs = tuple(self.number[value.name] for value in (*program.inputs, *states))
        self._check_writes()
        paddings = self._paddings()
        for call in program.calls:
            if call.results and call.results[0].name in paddings:  # its name stands for what it pads, as that is now
                self.number[call.results[0].name] = self.number[paddings[call.results[0].name].of.name]
            elif not self._view_of_weight(call) and not self._mask(call):
                self._call(call, paddings)
        outputs = tuple(self.number[name] for name in program.outputs)
        named = {("input", value.name): place for value, place in zip((*program.inputs, *states), inputs, strict=True)}
        stated = {
            **{key: module[key] for key in module if key not in ("graph", "metadata")},
            "graph": {key: graph[key] for key in graph if key not in ("nodes", "tensor_values")},
            "ranges": model.get("range_constraints"),
        }
        settings: dict[Any, Hashable] = {
            ("version of operator set", ""): (_VERSION,),
            PYTORCH: json.dumps(model.get("opset_version"), sort_keys=True),
            ("the interface",): json.dumps(stated, sort_keys=True),
        }
        body = Body("the program", inputs, outputs, tuple(range(len(self.nodes))))
        return FileNetwork(str(self.archive.path), tuple(self.values), tuple(self.nodes), (body,), settings, named)

    def _add(
        self,
        value: TorchValue,
        form: Hashable = None,
        content: Callable[[], bytes] | None = None,
        default: Callable[[], bytes] | None = None,
    ) -> int:
        dtype = "V2" if content is not None and value.dtype == "bfloat16" else value.dtype
        form = form or (value.dtype, value.shape)
        self.values.append(FileValue(value.name, form, content, shape=value.shape, dtype=dtype, default=default))
        self.number[value.name] = len(self.values) - 1
        return len(self.values) - 1

    def _view_of_weight(self, call: TorchCall) -> bool:
        """Whether a call is of a rewrite and only cuts rows out of a weight or gives it other sizes, to hold a part of
        that weight; then its result is added as a constant."""
        if len(call.results) != 1 or call.results[0].name not in self.new or call.target not in _VIEWS:
            return False
        meaning = meaning_of(call)
        if meaning is None:
            return False
        weight, value = self.values[self.number[meaning.inputs[0].name]], call.results[0]
        if weight.content is None or self.new[value.name].of != weight.label:
            return False
        form, sizes = ("constant", value.dtype, value.shape), list(weight.shape or ())
        cut: tuple[slice, ...] = ()
        if meaning.kind == "Reshape":
            stated = meaning.inputs[1].tolist()
            sizes = stated if math.prod(stated) == math.prod(sizes) else [-1]
        else:
            start, end, axis, step = (int(one[0]) for one in meaning.inputs[1:])
            cut = (*[slice(None)] * axis, slice(start, end, step))
            sizes[axis] = len(range(sizes[axis])[cut[axis]])
        if (value.dtype, value.shape) != (meaning.inputs[0].dtype, tuple(sizes)):  # the file only states these
            return False
        self._add(value, form, lambda: np.ascontiguousarray(array_of(weight)[cut]).tobytes())
        return True

    def _mask(self, call: TorchCall) -> bool:
        """Whether a call is of a rewrite and makes ones or cuts a triangle out of them; then its result is added as a
        constant. It is computed from what the call says."""
        if len(call.results) != 1 or call.results[0].name not in self.new:
            return False
        if math.prod(call.results[0].shape or ()) > _MOST_OF_A_MASK:
            return False
        read, value, names = call.args, call.results[0], [name for name, _ in call.names]
        form = ("constant", value.dtype, value.shape)
        if call.target == "aten.new_ones.default" and names == ["self", "size", "dtype"]:
            if read[1:] != ([*(value.shape or ())],) or call.kwargs != {"dtype": TorchSetting("as_scalar_type", _BOOL)}:
                return False
            self._add(value, form, lambda: np.ones(value.shape or (), bool).tobytes())
            return True
        if call.target != "aten.tril.default" or names != ["self", "diagonal"] or call.kwargs or value.dtype != "bool":
            return False
        ones = self.values[self.number[read[0].name]]
        if ones.content is None or ones.shape != value.shape or ones.dtype != "bool" or type(read[1]) is not int:
            return False
        self._add(value, form, lambda: np.tril(array_of(ones), read[1]).tobytes())
        return True

    def _check_writes(self) -> None:
        """Raise LoadError for a program in which a name does not say what its readers read."""
        program = self.program
        owner = owners(program.calls)
        outside = owners_outside(program, owner)
        last = {value.name: place for place, call in enumerate(program.calls) for value in _read(call)}
        last |= dict.fromkeys(program.outputs, len(program.calls))
        seen: dict[str, list[str]] = defaultdict(list)
        same: dict[str, str] = {}
        for place, call in enumerate(program.calls):
            target = overwritten(call)
            written = written_names(call)
            if written and (target is None or written != {target.name} or len(call.results) != 1):
                raise LoadError(f"{call.target} {call.name!r} may write into its inputs")
            if target is not None:
                if (call.results[0].shape, call.results[0].dtype) != (target.shape, target.dtype):
                    raise LoadError(f"{call.target} {call.name!r} writes into a value of another type or shape")
                alias = same.get(target.name, target.name)
                views = [name for name in seen[owner(target.name)] if same.get(name, name) != alias]
                if owner(target.name) in outside or any(last.get(name, -1) > place for name in views):
                    raise LoadError(f"{call.target} {call.name!r} writes into what others read by another name")
            for value in call.results:
                seen[owner(value.name)].append(value.name)
                if target is not None:
                    same[value.name] = same.get(target.name, target.name)

    def _states(self, signature: Mapping[str, Any]) -> dict[TorchValue, Callable[[], bytes]]:
        """The buffers that the program leaves changed, with the bytes that they begin with. Two that begin alike are
        not one. Raises LoadError where one shares its bytes with another constant."""
        contents = [content for spec in signature["output_specs"] for content in spec.values()]
        changed = {content["buffer_name"] for content in contents if content.get("buffer_name") is not None}
        for name in changed:
            if self.archive.shares_bytes(name):
                raise LoadError(f"the buffer {name!r} changes, and shares its bytes with another")
        specs = [content for spec in signature["input_specs"] for content in spec.values()]
        names = {content["arg"]["name"] for content in specs if content.get("buffer_name") in changed}
        constants = self.program.constants
        return {value: _content(read, value.dtype) for value, read in constants if value.name in names}

    def _paddings(self) -> dict[str, Padding]:
        """By name: the paddings that a rewrite made, and that only windows read which pad alike."""
        paddings = {}
        for call in self.program.calls:
            if call.results and call.results[0].name in self.new:
                padding = padding_of(call)
                if padding is not None:
                    paddings[call.results[0].name] = padding
        for call in self.program.calls:
            first = call.args[0].name if call.args and isinstance(call.args[0], TorchValue) else ""
            for place, value in enumerate(_read(call)):
                padding = paddings.get(value.name)
                as_input = place == 0 and value.name == first  # and not its weights
                if padding and not (as_input and with_padding(meaning_of(call), padding)):
                    del paddings[value.name]
        return {name: padding for name, padding in paddings.items() if name not in self.program.outputs}

    def _call(self, call: TorchCall, paddings: Mapping[str, Padding]) -> None:
        meaning = meaning_of(call) or _unknown(call)
        first = meaning.inputs[0] if meaning.inputs else None
        if isinstance(first, TorchValue) and first.name in paddings:
            padded = with_padding(meaning, paddings[first.name])
            assert padded is not None
            meaning = padded
        inputs = [self._input(item) for item in meaning.inputs]
        while inputs and inputs[-1] == ABSENT:
            inputs.pop()
        target = overwritten(call)
        before = None if target is None else self.number[target.name]
        outputs = tuple(self._add(value) for value in call.results)
        if before is not None:
            names = [name for name, place in self.number.items() if place == before and name not in paddings]
            self.number |= dict.fromkeys(names, outputs[0])
        effects: tuple[Effect, ...] = ()
        if isinstance(meaning.kind, tuple) and any(word in call.target for word in _RANDOM):
            effects = (("random numbers", True),)
        self.nodes.append(FileNode(call.name, meaning.kind, meaning.settings, tuple(inputs), outputs, effects=effects))

    def _input(self, item: Any) -> int:
        if item is None:
            return ABSENT
        if isinstance(item, TorchValue):
            return self.number[item.name]
        array = np.asarray(item)
        form = ("constant", str(array.dtype), array.shape)
        self.values.append(
            FileValue("numbers", form, lambda: array.tobytes(), shape=array.shape, dtype=str(array.dtype))
        )
        return len(self.values) - 1


_BOOL = next(number for number, name in DTYPES.items() if name == "bool")
_VIEWS = ("aten.slice.Tensor", "aten.reshape.default")
_MOST_OF_A_MASK = 1 << 28
"""The elements, of a byte each, of the largest mask that is made from what a call says: a file of a kilobyte can state
any. A larger one stays a call, of which nothing is known."""
_VERSION = 22
"""The version of ONNX's operators whose meaning known calls have."""


def _read(call: TorchCall) -> list[TorchValue]:
    return values_in((call.args, call.kwargs))


def _content(read: Callable[[], Any], dtype: str) -> Callable[[], bytes]:
    """The bytes of a constant; those of bfloat16 are read as the upper halves of floats."""
    if dtype == "bfloat16":
        return lambda: (np.ascontiguousarray(read()).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return lambda: np.ascontiguousarray(read()).tobytes()


def _unknown(call: TorchCall) -> Meaning:
    """All that the file states about a call."""
    values = iter(range(len(_read(call))))
    stated = (_plain(call.args, values), _plain(call.kwargs, values), call.names, len(call.results), call.several)
    return Meaning(("torch", call.target), {"arguments": repr(stated)}, tuple(_read(call)))


def _plain(argument: Any, values: Iterator[int]) -> Any:
    """The argument with a mark for each value in it."""
    if isinstance(argument, Mapping):
        return {str(key): _plain(item, values) for key, item in argument.items()}
    if isinstance(argument, (list, tuple)):
        return [_plain(item, values) for item in argument]
    if isinstance(argument, TorchValue):
        return ("value", next(values))
    if isinstance(argument, TorchSetting):
        return (argument.kind, json.dumps(argument.value, sort_keys=True))
    return struct.pack("<d", argument) if isinstance(argument, float) else argument
