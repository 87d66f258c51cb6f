"""Weights of an `.onnx` file in one file beside it, laid out so that ONNX Runtime can map them: it uses the pages of
the file where they are, and reads none before a kernel does.

ONNX Runtime writes small weights without gaps, and crashes where a kernel reads packed weights at an address that is
not aligned. So what lies at such an address is copied behind the end (`align`), and nothing else: most bytes of a large
model are written once, by ONNX Runtime, and where nothing was copied that very file ships.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from downset.errors import LoadError, UsageError
from downset.formats.onnx.bodies import tensors_of
from downset.formats.onnx.data_files import external_path
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.skeleton import save, streamed
from downset.formats.onnx.written import check_model
from downset.process.file_ranges import FileRange, check_ranges, file_state
from downset.process.whole_files import check_output, is_one_name, link_whole, write_whole

__all__ = ["align", "check_data_file", "data_name", "has_packed", "leave_packed", "mapped_bytes", "write_mapped"]

_PACKED = "prepacked_"
"""How the entries begin that name packed weights: `KEY|offset;length;checksum|...`."""
_ALIGNED, _PAGE = 64, 4096
_LARGE = 4 * _PAGE
"""Bytes from which a blob begins a page: smaller ones share pages, since each gap is up to a page."""

Blob = tuple[str, int, int]
"""The file that holds the bytes, as the model names it; the first of them, and their number."""


def data_name(output: Path) -> str:
    """The name of the file with the weights of `output`, beside it."""
    return f"{output.name}.data"


def check_data_file(output: Path, sources: Sequence[Path]) -> None:
    """Raise UsageError where the file with the weights of `output` would replace a file that is read. A second name of
    such a file is replaced, and the file stays."""
    data = output.with_name(data_name(output))
    if any(is_one_name(data, source) for source in sources):
        raise UsageError(f"output {output} may get its weights in {data}, which is being read; choose another name")
    check_output(data)


def has_packed(path: Path) -> bool:
    """Whether a file names packed weights."""
    return any(_is_packed(entry) for tensor in _external(read_skeleton(path)) for entry in tensor)


def align(path: Path, model: Any, output: Path) -> None:
    """Write `model`, a changed skeleton of the file at `path`, to `output`, and let the largest file with its weights
    be `data_name` next to `output`: weights in it stay where they are, and those at an address that is not aligned, or
    in other files, are copied behind its end. A file that has another name as well is somebody else's, and does not
    change. Raises LoadError where the place of weights is not valid, and OSError."""
    blobs = _blobs(path, model)
    if not blobs:
        save(model, output)
        return
    files = _files(path, blobs)
    own = [name for name, file in files.items() if file.stat().st_nlink == 1]
    main = max(own, key=lambda name: files[name].stat().st_size, default="")
    data = output.with_name(data_name(output))
    grows = files.get(main, data)
    end = grows.stat().st_size if main else 0
    places = {blob: blob[1] for blob in blobs if blob[0] == main and blob[1] % _step(blob) == 0}
    moved = [blob for blob in blobs if blob not in places]
    with grows.open("ab") as file:
        for blob in moved:
            places[blob] = -(-end // _step(blob)) * _step(blob)
            file.write(b"\0" * (places[blob] - end))
            file.flush()  # this very file may be read
            file.writelines(_ranges(files, [blob])[blob].pieces())
            end = places[blob] + blob[2]
    _rename(path, model, places, data.name)
    grows.replace(data)
    save(model, output)


def leave_packed(path: Path, output: Path) -> None:
    """Write the model at `path` to `output`, in the same folder, without the packed weights that it names. Both read
    one file with weights."""
    model = read_skeleton(path)
    for tensor in _external(model):
        kept = [(entry.key, entry.value) for entry in tensor if not _is_packed(entry)]
        del tensor[:]
        for key, value in kept:
            tensor.add(key=key, value=value)
    save(model, output)


def mapped_bytes(path: Path) -> int:
    """The bytes that `write_mapped` writes for the model at `path`, with the file beside it."""
    places = _layout(_blobs(path, read_skeleton(path)))
    return path.stat().st_size + max((start + blob[2] for blob, start in places.items()), default=0)


def write_mapped(path: Path, model: Any, output: Path) -> None:
    """Write `model`, a changed skeleton of the file at `path`, to `output`, and its weights that lie in other files
    into the file `data_name` next to `output`, aligned and without what the model does not name: the file itself under
    another name, where it is laid out so. Both are written whole or not at all, the weights first, and compared with
    what was read. Raises LoadError where the place of weights is not valid, and what `write_whole` and `check_model`
    raise."""
    blobs = _blobs(path, model)
    places, ranges = _layout(blobs), _ranges(_files(path, blobs), blobs)
    data = output.with_name(data_name(output))
    check_data_file(output, [Path(of.path) for of in ranges.values()])

    def check(part: Path) -> None:
        state = file_state(part.stat())
        written = {blob: FileRange(str(part.absolute()), places[blob], blob[2], state) for blob in blobs}
        check_ranges(data, [(ranges[blob], written[blob]) for blob in blobs])

    if blobs and _is_laid_out(places, ranges):
        link_whole(Path(ranges[blobs[0]].path), data, source=path, check=check)
    elif blobs:
        content = _content([(places[blob], ranges[blob]) for blob in places])
        write_whole(data, content, source=path, check=check)
    _rename(path, model, places, data.name)
    write_whole(output, streamed(model), source=path, check=lambda part: check_model(model, output, part, output))


def _is_packed(entry: Any) -> bool:
    return bool(entry.key.startswith(_PACKED))


def _external(model: Any) -> list[Any]:
    """The places of all tensors of a model that lie beside it, each as its entries."""
    return [tensor.external_data for tensor in tensors_of(model) if tensor.data_location == tensor.EXTERNAL]


def _plain(path: Path, entries: Any) -> Blob:
    """The weights of a tensor as they are."""
    named = {entry.key: entry.value for entry in entries}
    location, start = named.get("location", ""), int(named.get("offset", 0))
    nbytes = named.get("length") or external_path(path, location).stat().st_size - start
    return location, start, int(nbytes)


def _packed(location: str, value: str) -> Iterator[Blob]:
    """The buffers that an entry names."""
    for one in value.split("|")[1:]:
        start, nbytes, *_ = one.split(";")
        yield location, int(start), int(nbytes)


def _blobs(path: Path, model: Any) -> list[Blob]:
    """Find the places that a model names beside it, each once. Weights whose packed form is used are never read: they
    lie behind all others. Raises LoadError where one ends outside its file."""
    used: list[Blob] = []
    unread: list[Blob] = []
    for tensor in _external(model):
        plain = _plain(path, tensor)
        packed = [blob for entry in tensor if _is_packed(entry) for blob in _packed(plain[0], entry.value)]
        used += packed
        (unread if packed else used).append(plain)
    blobs = [*dict.fromkeys([*used, *unread])]
    sizes = {name: file.stat().st_size for name, file in _files(path, blobs).items()}
    for name, start, nbytes in blobs:
        if start < 0 or nbytes < 0 or start + nbytes > sizes[name]:
            raise LoadError(f"{path}: weights end outside {name}, which has {sizes[name]} bytes")
    return blobs


def _step(blob: Blob) -> int:
    return _PAGE if blob[2] >= _LARGE else _ALIGNED


def _layout(blobs: Sequence[Blob]) -> dict[Blob, int]:
    """Where each begins in a file that holds them alone, in the order in which they lie."""
    places, end = dict[Blob, int](), 0
    for blob in sorted(blobs):
        places[blob] = -(-end // _step(blob)) * _step(blob)
        end = places[blob] + blob[2]
    return places


def _files(path: Path, blobs: Sequence[Blob]) -> dict[str, Path]:
    """The files of these places, by the name in the model."""
    return {name: external_path(path, name) for name in dict.fromkeys(blob[0] for blob in blobs)}


def _ranges(files: Mapping[str, Path], blobs: Sequence[Blob]) -> dict[Blob, FileRange]:
    states = {name: file_state(files[name].stat()) for name in {blob[0] for blob in blobs}}
    return {blob: FileRange(str(files[blob[0]]), *blob[1:], states[blob[0]]) for blob in blobs}


def _is_laid_out(places: Mapping[Blob, int], ranges: Mapping[Blob, FileRange]) -> bool:
    """Whether one file holds all of them at their new places, and nothing behind them."""
    ends = {(each.path, each.state[1]) for each in ranges.values()}
    end = max(start + blob[2] for blob, start in places.items())
    return (
        len(ends) == 1
        and {size for _, size in ends} == {end}
        and all(blob[1] == start for blob, start in places.items())
    )


def _rename(path: Path, model: Any, places: Mapping[Blob, int], location: str) -> None:
    """Write the new places into the entries of a model's tensors. `places` has each of them."""
    for tensor in _external(model):
        plain = _plain(path, tensor)
        for entry in tensor:
            if _is_packed(entry):
                key, *buffers = entry.value.split("|")
                moved = []
                for blob, buffer in zip(_packed(plain[0], entry.value), buffers, strict=True):
                    moved.append(";".join([str(places[blob]), *buffer.split(";")[1:]]))
                entry.value = "|".join([key, *moved])
        place = {"location": location, "offset": str(places[plain]), "length": str(plain[2])}
        kept = [(entry.key, entry.value) for entry in tensor if entry.key not in (*place, "checksum")]
        del tensor[:]
        for key, value in [*place.items(), *kept]:
            tensor.add(key=key, value=value)


def _content(placed: Sequence[tuple[int, FileRange]]) -> Iterator[bytes]:
    """The new file, with zeros in its gaps."""
    end = 0
    for start, content in placed:
        yield b"\0" * (start - end)
        yield from content.pieces()
        end = start + content.nbytes
