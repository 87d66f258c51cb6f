"""A law over the schema of `.tflite` files: a change of any field of any table breaks the proof, or the field stands in
one list of fields without meaning, each with its reason and two files that differ in it alone and that the runtimes
execute alike. The schema is walked as it is installed."""

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import OpResolverType

from downset.equivalence import read_tflite
from downset.equivalence.offline import OFFLINE_KEY
from downset.equivalence.prove import prove
from downset.errors import LoadError
from downset.formats.certificates import METADATA_KEY, packed_certificate
from downset.results.streams import STREAM_KEY
from downset.runtimes import tflm
from tests.equivalence.tflite_pairs import results
from tests.equivalence.tflite_tables import TABLES, bases, changes, i32, made, save, tables, types
from tests.tflite_net import TfliteNet

WITHOUT_MEANING = {
    ("Tensor", "name"): "callers know tensors by place or by signature",
    ("SubGraph", "name"): "operators call a subgraph by its number",
    ("SubGraph", "debugMetadataIndex"): "where the subgraph comes from",
    ("Operator", "debugMetadataIndex"): "where the operator comes from",
    ("QuantizationParameters", "min"): "the range that training saw",
    ("QuantizationParameters", "max"): "the range that training saw",
    ("Model", "description"): "a text about the file",
    ("Model", "metadataBuffer"): "deprecated, read by no runtime",
}


ADDED = {"Optional[str]": b"another", "Optional[List[float]]": np.float32([9]), "Optional[List[int]]": i32(1)}


def runnable():
    """A network that LiteRT and TFLite Micro run."""
    net = TfliteNet(3, dtype="int8")
    x = net.input(2)
    net.main.outputs = i32(net.conv(net.concat([net.conv(x, 3, 3, relu=True), net.depthwise(x)]), 2))
    return net.model


def proven(one, other):
    try:
        return prove(one, other).proven
    except LoadError:
        return False


def test_every_table_of_the_schema_is_reached():
    reached = {type(entry).__name__[:-1] for model in bases() for entry in tables(model)}
    assert reached == set(TABLES)
    assert {table for table, _ in WITHOUT_MEANING} <= reached


def test_every_file_of_the_law_is_the_same_as_itself(tmp_path):
    for at, model in enumerate(bases()):
        path = save(model, tmp_path / f"{at}.tflite")
        assert prove(path, path).proven, at


def test_a_change_of_any_field_breaks_the_proof_or_has_no_meaning(tmp_path):
    tried, missed = set(), []
    for change in changes():
        one, other = save(change.before, tmp_path / "one.tflite"), save(change.after, tmp_path / "other.tflite")
        assert one.read_bytes() != other.read_bytes(), change
        key = (change.table, change.field)
        tried.add(key)
        if proven(one, other) != (key in WITHOUT_MEANING):
            missed.append((*key, change.what))
    assert missed == []
    every = {(name, key) for name, table in TABLES.items() for key in vars(table())}
    assert every == tried


def executed(path):
    """The outputs of LiteRT, by its plain kernels and by its fast ones, and of TFLite Micro."""
    plain, fast = (results(path, kernels) for kernels in (OpResolverType.BUILTIN_REF, OpResolverType.AUTO))
    return [plain, fast, [output.tobytes() for output in tflm.measure(path).outputs]]


METADATA = read_tflite.WITHOUT_MEANING - {STREAM_KEY}
"""A record makes a file a stream, which is proven as one."""


def with_metadata(name):
    """The network with metadata of this name; as offsets they leave all tensors to the runtime."""
    model = runnable()
    tensors = len(model.subgraphs[0].tensors)
    content = {METADATA_KEY: packed_certificate({}), OFFLINE_KEY: i32(1, 0, tensors, *[-1] * tensors).tobytes()}
    model.buffers.append(made(schema.BufferT, data=np.frombuffer(content.get(name, b"1.5.0"), np.uint8)))
    model.metadata = [made(schema.MetadataT, name=name.encode(), buffer=len(model.buffers) - 1)]
    return model


def test_the_runtimes_execute_alike_what_differs_in_a_field_without_meaning(tmp_path):
    one = save(runnable(), tmp_path / "one.tflite")
    expected, different = executed(one), {}
    for table, key in WITHOUT_MEANING:
        model = runnable()
        kind = types(TABLES[table])[key]
        for entry in tables(model):
            if type(entry).__name__[:-1] == table:
                setattr(entry, key, 1 if kind == "int" else ADDED[kind])
        different[f"{table}.{key}"] = model
    different |= {name: with_metadata(name) for name in METADATA}
    for what, model in different.items():
        other = save(model, tmp_path / "other.tflite")
        assert one.read_bytes() != other.read_bytes(), what
        assert executed(other) == expected, what
        assert prove(one, other).proven and prove(other, one).proven, what


@pytest.mark.parametrize(
    "name", ["anything", "model_control_dependencies", "reduced_precision_support", *sorted(METADATA)]
)
def test_metadata_that_is_not_known_breaks_the_proof(name, tmp_path):
    one, other = save(runnable(), tmp_path / "one.tflite"), save(with_metadata(name), tmp_path / "other.tflite")
    assert proven(one, other) == (name in METADATA)
