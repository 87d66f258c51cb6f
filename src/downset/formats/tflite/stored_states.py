"""The states in place of a `.tflite` file, as its metadata names them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from downset.errors import LoadError
from downset.graph.core import Graph

__all__ = ["STATES_KEY", "StoredState", "packed_states", "read_states", "states_of"]

STATES_KEY = "downset.states"
"""The key in the metadata of .tflite files of the states that TFLite Micro keeps in place."""
_FORMAT = 1


class StoredState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`input`, `output`: the names of the tensors that are one state, before and after a call. `initial`: bytes in
    hexadecimal digits, repeated to the size of the tensor, that the caller puts there before the first call."""

    name: str
    input: str
    output: str
    initial: str = "00"

    @property
    def initial_bytes(self) -> bytes:
        return bytes.fromhex(self.initial)


class _States(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    states: tuple[StoredState, ...]


def states_of(graph: Graph) -> tuple[StoredState, ...]:
    """The states of a graph as metadata hold them."""
    name = [tensor.name for tensor in graph.tensors]
    return tuple(StoredState(one.name, name[one.read], name[one.written], one.initial.hex()) for one in graph.states)


def packed_states(states: Sequence[StoredState]) -> bytes:
    return msgspec.json.encode(_States(_FORMAT, tuple(states)))


def read_states(data: bytes) -> tuple[StoredState, ...]:
    """The states in these metadata. Raises LoadError for anything else."""
    try:
        states = msgspec.json.decode(data, type=_States)
        if states.format != _FORMAT:
            raise LoadError(f"its states are of format {states.format}; this downset reads {_FORMAT}")
        for state in states.states:
            state.initial_bytes  # noqa: B018 - raises ValueError where these are not hexadecimal digits
    except (msgspec.MsgspecError, ValueError) as error:
        raise LoadError(f"the names of its states are damaged: {error}") from None
    return states.states
