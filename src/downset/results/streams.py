"""The record of a stream file, which its writers put into the metadata and `verify` checks.

A *stream* is a network that is called once a hop. It computes what the window's network computes on the last `window`
rows of its input, and keeps rows of tensors, its *states*, from one call to the next.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, get_args

from downset.errors import LoadError

__all__ = ["STREAM_KEY", "Hop", "State", "StreamForm", "StreamRecord", "read_stream_record"]

STREAM_KEY = "downset.stream"
"""The name of the record in the metadata of a file."""

StreamForm = Literal["variables", "in_place", "states"]
"""How states are kept: resource variables of a .tflite file; inputs and outputs of a .tflite file, each pair at one
offset of the arena, for TFLite Micro alone; inputs and outputs of an .onnx file, which the caller passes on."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class State:
    """Rows of one tensor of the window's network that are kept from one call to the next.

    `name`: the shared name of the variable, or the input's. `next`: the output's name; empty for a variable. Before the
    call that computes a window, the state holds the rows [a, b) = `rows` along `axis` of that window's `tensor`; the
    call writes the rows [a + shift, b + shift). `age`: 0, or the place in a queue of several states of one tensor,
    where it moves by `shift` rows only every few hops: the state of age 0 is read, and each call moves the state of
    age g + 1 into that of age g and writes the oldest place again."""

    name: str
    tensor: str
    axis: int
    rows: tuple[int, int]
    shift: int
    next: str = ""
    age: int = 0


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """The record of a stream. `window`, `hop`: rows along `axis` of the window's input named `input`, and of the
    stream's. `first_exact`: the first hop, from 0, whose outputs are the window's: that by which all rows of a
    window were given."""

    window: int
    hop: int
    input: str
    axis: int
    form: StreamForm
    first_exact: int
    states: tuple[State, ...]

    def to_json(self) -> str:
        """The record as the text that stands in a file's metadata."""
        states = [{key: value for key, value in asdict(state).items() if value != ""} for state in self.states]
        return json.dumps({"format": _FORMAT, **asdict(self), "states": states}, ensure_ascii=False)


class Hop(NamedTuple):
    """A stream that is asked for: called every `rows` rows along `axis` of an input; None: the axis that moves."""

    rows: int
    axis: int | None = None


def read_stream_record(text: str | bytes) -> StreamRecord:
    """The record of this text. Raises LoadError for any other text; what it says is not checked."""
    try:
        said = json.loads(text)
        if not isinstance(said, dict) or said.get("format") != _FORMAT:
            raise ValueError
        form = said["form"]
        if form not in get_args(StreamForm):
            raise ValueError
        states = tuple(_state(state) for state in _list(said["states"]))
        numbers = (_integer(said[key]) for key in ("window", "hop", "axis", "first_exact"))
        window, hop, axis, first_exact = numbers
        return StreamRecord(window, hop, _text(said["input"]), axis, form, first_exact, states)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise LoadError(
            f"its metadata {STREAM_KEY!r} are not a record of a stream that this version reads; write the stream again"
        ) from None


def _state(said: object) -> State:
    if not isinstance(said, dict):
        raise TypeError
    first, stop = (_integer(row) for row in _list(said["rows"]))
    return State(
        name=_text(said["name"]),
        tensor=_text(said["tensor"]),
        axis=_integer(said["axis"]),
        rows=(first, stop),
        shift=_integer(said["shift"]),
        next=_text(said.get("next", "")),
        age=_integer(said.get("age", 0)),
    )


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError
    return value
