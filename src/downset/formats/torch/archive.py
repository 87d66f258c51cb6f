"""Reading of `.pt2` archives as data, without PyTorch. An archive is a zip of JSON and raw weights.

PyTorch's own loader runs code from the file: it unpickles objects, evaluates symbolic sizes as Python, and imports
modules that the file names. A graph needs none of that. The JSON is decoded into the structs below, and weights are
bytes. Contents that only PyTorch can read are refused: pickled weights, symbolic sizes and PyTorch's own objects.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from downset.errors import LoadError
from downset.formats.certificates import METADATA_KEY
from downset.graph.core import tensor_bytes
from downset.graph.float_types import numpy_type
from downset.messages import Message, Setting
from downset.text import EXPORT, printable

__all__ = ["DTYPES", "STRIDED", "TRUST", "Archive", "ArchiveNode"]

_PICKLE = b"\x80"
"""The first byte of a pickle, which torch.save wrote before it wrote zip archives."""

TRUST = Message("PyTorch itself reads it with ", Setting("trust", True), ", which runs code that the file brings")

DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8e4m3fn",
    30: "float8e5m2",
    31: "float8e4m3fnuz",
    32: "float8e5m2fnuz",
    33: "float8e8m0",
    34: "uint32",
    35: "uint64",
}
"""Element types by their numbers in the file."""
_RAW_BYTES = {"float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz", "float8e8m0"}
STRIDED = 7
"""The layout of dense tensors."""


class _Size(msgspec.Struct):
    as_int: int | None = None


class _TensorMeta(msgspec.Struct):
    dtype: int
    sizes: list[_Size]
    strides: list[_Size]
    storage_offset: _Size
    layout: int = STRIDED


class Argument(msgspec.Struct):
    """One named argument of a call. `kind` 1 is positional, 2 is by keyword."""

    name: str
    arg: dict[str, Any]
    kind: int | None = None


class ArchiveNode(msgspec.Struct):
    """One call of an operator, as the file states it."""

    target: str
    inputs: list[Argument]
    outputs: list[dict[str, Any]]
    name: str | None = None


class _ArchiveGraph(msgspec.Struct):
    outputs: list[dict[str, Any]]
    nodes: list[ArchiveNode]
    tensor_values: dict[str, _TensorMeta]


class _Signature(msgspec.Struct):
    input_specs: list[dict[str, dict[str, Any]]]


class _Module(msgspec.Struct):
    graph: _ArchiveGraph
    signature: _Signature


class _Version(msgspec.Struct):
    major: int


class _Model(msgspec.Struct):
    graph_module: _Module
    schema_version: _Version


class _Payload(msgspec.Struct):
    path_name: str
    use_pickle: bool = False
    tensor_meta: _TensorMeta | None = None


class _Payloads(msgspec.Struct):
    config: dict[str, _Payload]


class TensorType(msgspec.Struct, frozen=True):
    """Shape and element type of a tensor."""

    shape: tuple[int, ...]
    dtype: str


class Archive:
    """One `.pt2` file. Its graph is read at once, weights only on request. Nothing in the file is ever executed.

    Raises LoadError that says why in one line, if the file is damaged, compressed or encrypted, or if only PyTorch can
    read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            with path.open("rb") as file:
                begins = file.read(1)
            raise self._pickled() if begins == _PICKLE else self._damaged(str(error)) from None
        except OSError as error:
            raise LoadError(f"cannot read {path}: {error.strerror or error}") from None
        self._entries = {entry.filename: entry for entry in entries}
        if len({name.lower() for name in self._entries}) < len(entries):  # PyTorch does not tell cases apart
            raise self._damaged("two entries have one name")
        if any(name.count("/") == 1 and name.endswith("/data.pkl") for name in self._entries):
            raise self._pickled()
        if any(entry.flag_bits & 1 or entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise LoadError(f"{path}: entries are compressed or encrypted, as torch.export.save never writes them")
        self._root = self._find_root()
        self.model_entry = self._find_model()
        model = self._decoded(self.model_entry, _Model)
        if model.schema_version.major != _SCHEMA:
            raise LoadError(
                f"{path} is of schema {model.schema_version.major}, and downset reads {_SCHEMA}: export the program "
                "again with a PyTorch of today; ",
                TRUST,
            )
        byteorder = self._root + "byteorder"
        if byteorder in self._entries and self.read(byteorder).strip() != b"little":
            raise LoadError(f"{path}: its weights are not little-endian; export the program again on such a machine")
        self.graph = model.graph_module.graph
        self.input_specs = model.graph_module.signature.input_specs
        name = self.model_entry.rpartition("/")[2].removesuffix(".json")
        self._weights = self._payloads(f"data/weights/{name}_weights_config.json")
        self._constants = self._payloads(f"data/constants/{name}_constants_config.json")

    @property
    def certificate_entry(self) -> str:
        """The name of the entry that holds the certificate of a rewritten file, where PyTorch keeps a user's files."""
        return f"{self._root}extra/{METADATA_KEY}"

    @property
    def certificate(self) -> bytes | None:
        """The certificate in the file; None where there is none."""
        return self.read(self.certificate_entry) if self.certificate_entry in self._entries else None

    def _find_root(self) -> str:
        """The folder of the archive that holds all entries. torch.export.save names it after the file."""
        roots = {name.partition("/")[0] + "/" for name in self._entries if "/" in name}
        marked = [root for root in sorted(roots) if root + "archive_format" in self._entries]
        if len(marked) == 1 and self.read(marked[0] + "archive_format").strip() == b"pt2":
            return marked[0]
        if "serialized_exported_program.json" in self._entries:
            raise LoadError(
                f"{self.path} is from PyTorch before 2.8, with pickled weights; export it again with a newer one; ",
                TRUST,
            )
        raise LoadError(
            f"{self.path} is not an exported program (a zip archive without archive_format); write one with {EXPORT}"
        )

    def _find_model(self) -> str:
        prefix = self._root + "models/"
        models = [name for name in self._entries if name.startswith(prefix) and name.endswith(".json")]
        if len(models) != 1:
            raise LoadError(f"{self.path} holds {len(models)} programs; give a file with one")
        return models[0]

    def _payloads(self, name: str) -> dict[str, _Payload]:
        folder, _, _ = name.rpartition("/")
        model = self.model_entry.rpartition("/")[2].removesuffix(".json")
        if f"{self._root}{folder}/{model}.pt" in self._entries:  # PyTorch reads it before any others
            raise LoadError(f"{self.path}: its weights are pickled; export again with a newer PyTorch; ", TRUST)
        if self._root + name not in self._entries:
            return {}
        config: dict[str, _Payload] = self._decoded(self._root + name, _Payloads).config
        types: dict[str, int] = {}
        for payload in config.values():
            meta = payload.tensor_meta
            if meta is not None and types.setdefault(payload.path_name, meta.dtype) != meta.dtype:
                raise self._damaged(f"{printable(payload.path_name)} holds values of two element types")
        return config

    def _decoded(self, name: str, form: Any) -> Any:
        try:
            return msgspec.json.decode(self.read(name), type=form)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(f"{printable(name)}: {error}") from None

    def _pickled(self) -> LoadError:
        return LoadError(
            f"{self.path} is not an exported program: a file of torch.save holds weights and code, not a graph; write "
            f"one with {EXPORT}"
        )

    def _damaged(self, reason: str) -> LoadError:
        return LoadError(f"{self.path} is not an exported program or is damaged ({reason})")

    @property
    def names(self) -> list[str]:
        """The names of the entries, in their order in the file."""
        return list(self._entries)

    def read(self, name: str) -> bytes:
        """The bytes of one entry. Raises LoadError if it is missing or its checksum is wrong."""
        entry = self._entries.get(name)
        if entry is None:
            raise self._damaged(f"{printable(name)} is missing")
        try:
            with zipfile.ZipFile(self.path) as archive:
                return archive.read(entry)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
            raise self._damaged(str(error)) from None
        except OSError as error:
            raise LoadError(f"cannot read {self.path}: {error.strerror or error}") from None

    def tensor(self, name: str) -> TensorType | None:
        """The type of the value `name` of the program; None if the value is not a tensor. Raises LoadError for symbolic
        sizes, unknown element types and tensors that are not dense."""
        meta = self.graph.tensor_values.get(name)
        return None if meta is None else self._tensor(name, meta)

    def strides(self, name: str) -> list[int]:
        """The strides, in elements, of the tensor `name` of the program."""
        return [self._fixed(name, stride) for stride in self.graph.tensor_values[name].strides]

    def _tensor(self, name: str, meta: _TensorMeta) -> TensorType:
        if meta.dtype not in DTYPES:
            raise LoadError(f"{self.path}: tensor {name!r} has the unknown element type {meta.dtype}")
        if meta.layout != STRIDED:
            raise LoadError(f"{self.path}: tensor {name!r} is not dense; ", TRUST)
        return TensorType(tuple(self._fixed(name, size) for size in meta.sizes), DTYPES[meta.dtype])

    def _fixed(self, name: str, size: _Size) -> int:
        """A fixed size. A symbolic one is refused: its expression is code from the file, and is never evaluated."""
        if size.as_int is None:
            raise LoadError(f"{self.path}: {name!r} has a symbolic shape; export with fixed sizes")
        if size.as_int < 0:
            raise LoadError(f"{self.path}: {name!r} has the negative size {size.as_int}")
        return size.as_int

    def shares_bytes(self, name: str | None) -> bool:
        """Whether the weight or buffer `name` lies in an entry that holds others, too."""
        return any(
            sum(payload.path_name == payloads[name].path_name for payload in payloads.values()) > 1
            for payloads in (self._weights, self._constants)
            if name in payloads
        )

    def weight(self, name: str, expected: TensorType | None) -> Callable[[], npt.NDArray[Any]]:
        """A function that reads the value of a weight, buffer or constant, by its name in the program. Values of
        bfloat16 are float32, those of other element types that numpy does not have flat arrays of their bytes.
        Everything but the bytes is checked in this call: it raises LoadError if the value is missing, pickled, not of
        the type `wanted`, or outside its entry."""
        payload = self._weights.get(name) or self._constants.get(name)
        if payload is None:
            raise self._damaged(f"the value of {name!r} is missing")
        if payload.use_pickle or payload.tensor_meta is None:
            raise LoadError(f"{self.path}: the value of {name!r} is pickled; ", TRUST)
        meta = payload.tensor_meta
        described = self._tensor(name, meta)
        if expected is not None and described != expected:
            raise self._damaged(
                f"the weights {name!r} are {described.dtype} {list(described.shape)} in one place, not in another"
            )
        folder = "weights" if name in self._weights else "constants"
        entry = f"{self._root}data/{folder}/{payload.path_name}"
        if entry not in self._entries:
            raise self._damaged(f"{printable(entry)} is missing")
        strides = [self._fixed(name, stride) for stride in meta.strides]
        first = self._fixed(name, meta.storage_offset)
        width = tensor_bytes((1,), described.dtype)
        last = first + sum((size - 1) * stride for size, stride in zip(described.shape, strides, strict=False))
        empty = 0 in described.shape
        if len(strides) != len(described.shape) or (not empty and (last + 1) * width > self._entries[entry].file_size):
            raise self._damaged(f"the weights {name!r} end outside their entry")
        return lambda: _array(self.read(entry), described, strides, first, width)


_SCHEMA = 8
"""The major version of the JSON that PyTorch 2.8 to 2.13 write."""


def _array(data: bytes, tensor: TensorType, strides: Sequence[int], first: int, width: int) -> npt.NDArray[Any]:
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, np.uint8 if tensor.dtype in _RAW_BYTES else numpy_type(tensor.dtype))
    wide = tensor.dtype == "bfloat16"
    kind = np.dtype(f"V{width}") if tensor.dtype in _RAW_BYTES else np.dtype(np.uint16 if wide else tensor.dtype)
    elements = np.frombuffer(data, kind, len(data) // width)[first:]
    steps = [stride * width for stride in strides]
    value = np.ascontiguousarray(np.lib.stride_tricks.as_strided(elements, tensor.shape, steps, writeable=False))
    if wide:
        value = (value.astype(np.uint32) << 16).view(np.float32)
    return value.reshape(-1).view(np.uint8) if tensor.dtype in _RAW_BYTES else value.reshape(tensor.shape)
