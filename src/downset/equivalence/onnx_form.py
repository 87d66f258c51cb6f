"""The canonical form of the messages of `.onnx` files: equal forms mean equal messages, however tensors are stored.

Every field that is set is in the form, also one that the installed version of ONNX does not know. The only exceptions
are those in `WITHOUT_MEANING`. A tensor is its element type, its sizes and its bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from downset.errors import LoadError
from downset.formats.onnx.data_files import stored_range, stored_value
from downset.formats.onnx.fields import float_bits, set_fields, unknown_fields
from downset.formats.onnx.skeleton import LEAST_BYTES, left_out
from downset.process.file_ranges import FileRange

__all__ = ["WITHOUT_MEANING", "OnnxForm"]

_DESCRIBES = "a text for readers; no operator sees it"
_LABELS = "entries for tools beside the model; no operator sees them"
WITHOUT_MEANING: Mapping[tuple[str, str], str] = {
    **{
        (message, "doc_string"): _DESCRIBES
        for message in (
            "ModelProto",
            "GraphProto",
            "NodeProto",
            "AttributeProto",
            "TensorProto",
            "ValueInfoProto",
            "FunctionProto",
        )
    },
    **{
        (message, "metadata_props"): _LABELS
        for message in ("ModelProto", "GraphProto", "NodeProto", "TensorProto", "ValueInfoProto", "FunctionProto")
    },
    ("ModelProto", "producer_name"): "the program that wrote the file",
    ("ModelProto", "producer_version"): "the version of the program that wrote the file",
    ("ModelProto", "domain"): "a name for collections of models",
    ("ModelProto", "model_version"): "a number that the author counts",
    ("GraphProto", "name"): "nothing refers to a graph by name",
    ("NodeProto", "name"): "nothing refers to a node by name",
}
"""The fields of ONNX's schema, as (message, field), that have no effect on what is computed, each with the reason. All
other fields are part of the form, whether a runtime uses them or not."""

_VALUE = {
    1: "f",
    2: "i",
    3: "s",
    4: "t",
    5: "g",
    6: "floats",
    7: "ints",
    8: "strings",
    9: "tensors",
    10: "graphs",
    11: "sparse_tensor",
    12: "sparse_tensors",
    13: "tp",
    14: "type_protos",
}
"""By type of an attribute: the field with its value."""
_PLACE = ("location", "offset", "length")
_STRING = 8
_PACKED = (21, 22, 23, 25, 26)
"""Types of which several elements share a byte."""


class OnnxForm:
    """The forms of the messages of the file at `path`, whose tensors may lie beside it."""

    def __init__(self, onnx: Any, path: Path) -> None:
        self._onnx, self._path = onnx, path

    def stated(self, message: Any, without: frozenset[str] = frozenset()) -> tuple[Hashable, ...]:
        """Everything that a message states, except for the fields `without` and those without meaning."""
        kind = message.DESCRIPTOR.name
        if kind == "TensorProto" and not without:
            return ("tensor", message.name, *self.tensor(message), self._fingerprint(message))
        skipped = without | {field for holder, field in WITHOUT_MEANING if holder == kind}
        fields = tuple((name, self._plain(message, name, value)) for name, value in set_fields(message, skipped))
        unknown = unknown_fields(message)
        return (*fields, ("unknown fields", unknown)) if unknown else fields

    def _plain(self, message: Any, name: str, value: Any) -> Hashable:
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.message_type is not None:
            return tuple(self.stated(one) for one in value) if field.is_repeated else self.stated(value)
        if field.type == field.TYPE_FLOAT:
            return float_bits(message, name)
        if field.type == field.TYPE_DOUBLE:
            return np.asarray(value, np.float64).tobytes()
        return tuple(value) if field.is_repeated else value

    def tensor(self, tensor: Any) -> tuple[int, tuple[int, ...], Hashable]:
        """(element type, sizes, what a well-formed tensor does not state besides its bytes)."""
        expected = {"name", "dims", "data_type"}
        odd: tuple[Hashable, ...] = ()
        if tensor.data_location == tensor.EXTERNAL:
            expected |= {"external_data", "data_location"}
            keys = [entry.key for entry in tensor.external_data]
            odd = tuple(
                self.stated(entry)
                for entry in tensor.external_data
                if entry.key not in _PLACE or keys.count(entry.key) > 1 or unknown_fields(entry)
            )
        elif tensor.HasField("raw_data"):
            expected.add("raw_data")
        else:
            expected.add(self._typed_field(tensor))
        if tensor.data_location == tensor.DEFAULT:
            expected.add("data_location")
        return tensor.data_type, tuple(tensor.dims), self.stated(tensor, frozenset(expected)) + odd

    def _typed_field(self, tensor: Any) -> str:
        try:
            return str(self._onnx.helper.tensor_dtype_to_field(tensor.data_type))
        except (KeyError, ValueError, TypeError):
            return "data_type"  # an unknown type: all of its fields are stated

    def content(self, tensor: Any) -> bytes:
        """The bytes of a tensor's elements, wherever and however they are stored."""
        if tensor.data_type == _STRING and not tensor.HasField("raw_data") and not tensor.data_location:
            if len(tensor.string_data) != np.prod(tensor.dims, dtype=object):
                raise LoadError(f"{self._path}: the tensor {tensor.name!r} has {len(tensor.string_data)} strings")
            return b"".join(len(text).to_bytes(8, "little") + text for text in tensor.string_data)
        stored = self.stored(tensor)
        if stored is not None:
            return stored.read()
        value = stored_value(self._onnx, self._path, tensor)
        if value.dtype == object:
            raise LoadError(f"{self._path}: the tensor {tensor.name!r} is damaged (strings are stored as bytes)")
        if not tensor.HasField("raw_data") and not tensor.data_location:
            if self._typed_field(tensor) == "float_data":
                return float_bits(tensor, "float_data")
            self._in_range(tensor, value)
        return np.ascontiguousarray(value).tobytes()

    def _fingerprint(self, tensor: Any) -> Hashable:
        """The bytes of a tensor's elements; of many, their number and digest, however they are stored."""
        stored = self.stored(tensor)
        if stored is not None and stored.nbytes > LEAST_BYTES:
            return stored.nbytes, stored.digest()
        content = self.content(tensor)
        return (len(content), hashlib.sha256(content).digest()) if len(content) > LEAST_BYTES else content

    def stored(self, tensor: Any) -> FileRange | None:
        """The range of a file that is exactly the bytes of a tensor's elements; None for every other tensor."""
        if tensor.data_type == _STRING or (tensor.data_location != tensor.EXTERNAL and left_out(tensor) is None):
            return None
        try:
            element_bytes = np.dtype(self._onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
            stored = stored_range(self._path, tensor)
        except (KeyError, TypeError, ValueError, LoadError):
            return None  # a missing file is an error only when its bytes are needed
        if stored is None or tensor.data_type in _PACKED:
            return None
        return stored if stored.nbytes == math.prod(tensor.dims) * element_bytes else None

    def _in_range(self, tensor: Any, value: Any) -> None:
        """Raise LoadError where an element does not fit its type: readers cut it in different ways."""
        for values in (tensor.int32_data, tensor.uint64_data):
            if not len(values) or value.dtype.kind not in "iub" or value.size != len(values):
                continue  # bits of floats, and packed elements
            stored = np.asarray(values)
            if not np.array_equal(stored, value.reshape(-1).astype(stored.dtype)):
                raise LoadError(f"{self._path}: an element of the tensor {tensor.name!r} is outside its type")

    def attribute(self, attribute: Any) -> dict[Any, Hashable]:
        """The settings that an attribute states: (its type, its value) under its name, all else under another key."""
        field = _VALUE.get(attribute.type, "")
        settings: dict[Any, Hashable] = {attribute.name: (attribute.type, self._value(attribute, field))}
        further = self.stated(attribute, frozenset({"name", "type", field}))
        if attribute.type in (4, 9):
            tensors = [attribute.t] if attribute.type == 4 else attribute.tensors
            odd = tuple((tensor.name, self.tensor(tensor)[2]) for tensor in tensors)
            further += () if all(one == ("", ()) for one in odd) else odd
        if further:
            settings["further fields", attribute.name] = further
        return settings

    def _value(self, attribute: Any, field: str) -> Hashable:
        match attribute.type:
            case 5 | 10:
                return len(self.graphs(attribute))
            case 4 | 9:
                tensors = [attribute.t] if attribute.type == 4 else attribute.tensors
                return tuple((t.data_type, tuple(t.dims), self._fingerprint(t)) for t in tensors)
            case 11 | 13:
                return self.stated(getattr(attribute, field))
            case 12 | 14:
                return tuple(self.stated(one) for one in getattr(attribute, field))
            case 1 | 6:
                return float_bits(attribute, field)
            case 2 | 3:
                return int(attribute.i) if attribute.type == 2 else bytes(attribute.s)
            case 7 | 8:
                return tuple(getattr(attribute, field))
        return ()

    def graphs(self, attribute: Any) -> list[Any]:
        graphs = [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]
        typed = [attribute.g] if attribute.type == 5 else [*attribute.graphs] if attribute.type == 10 else []
        if len(graphs) != len(typed):
            raise LoadError(f"{self._path}: the attribute {attribute.name!r} holds graphs that its type does not name")
        return typed

    def numpy_name(self, number: int) -> str:
        """numpy's name of an element type; "" for one that numpy does not have."""
        try:
            return str(np.dtype(self._onnx.helper.tensor_dtype_to_np_dtype(number)))
        except (KeyError, TypeError, ValueError):
            return ""
