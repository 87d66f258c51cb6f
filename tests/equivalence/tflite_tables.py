"""A small `.tflite` file that has every table of the schema, and every change of every field of every table. The schema
is read from its generated classes: their fields, and the types that these state."""

import copy
import inspect
import re
from dataclasses import dataclass

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

from tests.effort import LONG

TAIL = 8192
"""Where the bytes behind the flatbuffer begin."""
TABLES = {
    name[:-1]: held
    for name, held in vars(schema).items()
    if inspect.isclass(held) and name.endswith("T") and hasattr(held, "Pack")
}


def types(table):
    """By field of a table: the type that its class states."""
    return dict(re.findall(r"self\.(\w+) = \w+ +# type: (.*)", inspect.getsource(table.__init__)))


def save(model, path):
    """The file, with 64 different bytes behind the flatbuffer, from `TAIL` on."""
    data = bytes(flatbuffer_utils.convert_object_to_bytearray(model))
    assert len(data) <= TAIL
    path.write_bytes(data.ljust(TAIL, b"\0") + bytes(range(64)))
    return path


def made(table, **values):
    entry = table()
    for key, value in values.items():
        assert hasattr(entry, key)
        setattr(entry, key, value)
    return entry


def filled(name):
    """A table of options with a value in every field; subgraphs are number 1."""
    entry = TABLES[name]()
    for key, kind in types(TABLES[name]).items():
        inner = kind.removeprefix("Optional[List[").rstrip("]")
        value = {"bool": True, "int": 1, "float": 0.5, "Optional[str": b"text"}[inner]
        setattr(entry, key, value if inner == kind or kind == "Optional[str]" else [value])
    return entry


def i32(*values):
    return np.array(values, np.int32)


def tensor(shape, buffer=0, **values):
    return made(schema.TensorT, shape=i32(*shape), buffer=buffer, name=f"t{shape}".encode(), **values)


def sparsity(kind):
    number = getattr(schema.SparseIndexVector, kind)
    indices = [made(TABLES[kind], values=np.array([0, 1])) for _ in range(2)]
    dimension = made(
        schema.DimensionMetadataT,
        format=1,
        denseSize=2,
        arraySegmentsType=number,
        arrayIndicesType=number,
        arraySegments=indices[0],
        arrayIndices=indices[1],
    )
    return made(schema.SparsityParametersT, traversalOrder=i32(0, 1), blockMap=i32(1), dimMetadata=[dimension])


def quantization(details):
    number = getattr(schema.QuantizationDetails, details)
    held = TABLES[details]()
    for key, value in {"scales": 3, "zeroPoints": 3, "blockSize": 2, "custom": [7, 8]}.items():
        if hasattr(held, key):
            setattr(held, key, value)
    for key in ("blockShape", "quantizedDimensions"):
        if hasattr(held, key):
            setattr(held, key, i32(1, 2))
    return made(
        schema.QuantizationParametersT,
        scale=np.float32([0.5, 0.25]),
        zeroPoint=np.array([3, 4]),
        min=np.float32([-1]),
        max=np.float32([1]),
        quantizedDimension=0,
        detailsType=number,
        details=held,
    )


def operator(**values):
    given = {"opcodeIndex": 0, "inputs": i32(0, 1, 2), "outputs": i32(5), "mutatingVariableInputs": [True, False]}
    return made(schema.OperatorT, intermediates=i32(6), debugMetadataIndex=0, **(given | values))


def subgraph(number, entry, *tensors):
    """Six tensors of different shapes: an input, two constants, two that details name, a result, one in between."""
    constants = [tensor((2, at), buffer=at) for at in (1, 2, 3, 4)]
    held = [tensor((1, 1 + number)), *constants, tensor((3, 1 + number)), tensor((4, 1))]
    for at, given in enumerate(tensors):
        held[at] = given
    return made(
        schema.SubGraphT,
        tensors=held,
        inputs=i32(0),
        outputs=i32(5),
        operators=[entry],
        name=f"graph {number}".encode(),
        debugMetadataIndex=0,
    )


def body(number):
    return subgraph(number, operator(opcodeIndex=1, customOptions=[1, 2]))


def base(first="WhileOptions", second="StablehloWhileOptions", details="BlockwiseQuantization", indices="Int32Vector"):
    """The file with both tables of options in the first operator, and details and sparse indices in its operands."""
    main = operator(
        builtinOptions=filled(first),
        builtinOptionsType=getattr(schema.BuiltinOptions, first),
        builtinOptions2=filled(second),
        builtinOptions2Type=getattr(schema.BuiltinOptions2, second),
        largeCustomOptionsOffset=TAIL,
        largeCustomOptionsSize=4,
    )
    variant = made(schema.VariantSubTypeT, shape=i32(2, 3), type=1, hasRank=True)
    fed = tensor(
        (1, 9),
        buffer=4,
        quantization=quantization(details),
        shapeSignature=i32(-1, 9),
        hasRank=True,
        variantTensors=[variant],
        externalBuffer=1,
    )
    stored = tensor((2, 9), buffer=1, sparsity=sparsity(indices))
    outside = tensor((2, 2), buffer=5)
    codes = [
        made(schema.OperatorCodeT, deprecatedBuiltinCode=old, builtinCode=new, customCode=b"custom", version=2)
        for old, new in ((101, 0), (0, 116))
    ]
    data = [made(schema.BufferT, data=np.array([at, 10, 20, 30], np.uint8)) for at in range(1, 5)]
    buffers = [schema.BufferT(), *data, made(schema.BufferT, offset=TAIL + 8, size=4)]
    signature = made(
        schema.SignatureDefT,
        signatureKey=b"key",
        subgraphIndex=0,
        inputs=[made(schema.TensorMapT, name=b"in", tensorIndex=0)],
        outputs=[made(schema.TensorMapT, name=b"out", tensorIndex=5)],
    )
    return made(
        schema.ModelT,
        version=3,
        operatorCodes=codes,
        buffers=buffers,
        description=b"text",
        metadataBuffer=i32(1),
        subgraphs=[subgraph(0, main, fed, stored, outside), *map(body, (1, 2))],
        metadata=[made(schema.MetadataT, name=b"anything", buffer=1)],
        signatureDefs=[signature],
        externalBufferGroups=[made(schema.ExternalBufferGroupT, name=name) for name in (b"a", b"b")],
        externalBuffers=[made(schema.ExternalBufferT, id=1, group=0, offset=2, length=3, packing=b"p")],
    )


def tables(entry):
    """Every table below a table, with itself."""
    found = [entry]
    for one in found:
        for value in vars(one).values():
            inside = value if isinstance(value, list) else [value]
            found += [held for held in inside if type(held).__name__[:-1] in TABLES]
    return found


def bases():
    """Files that have every table together."""
    unions = {
        "first": schema.BuiltinOptions,
        "second": schema.BuiltinOptions2,
        "details": schema.QuantizationDetails,
        "indices": schema.SparseIndexVector,
    }
    for place, union in unions.items():
        yield from (base(**{place: member}) for member in vars(union) if member in TABLES)


@dataclass(frozen=True)
class Change:
    table: str
    field: str
    what: str
    before: object
    after: object


def changes():
    """The changes of every field of every table, with the files before and after each: all of them, or one a field in a
    short run. Each field is changed where it has a value, if it has one anywhere."""
    sites = {}
    for model in bases():
        for at, entry in enumerate(tables(model)):
            for key in vars(entry):
                site = (type(entry).__name__[:-1], key)
                if site not in sites or not (_has_value(sites[site][2]) or not _has_value(getattr(entry, key))):
                    sites[site] = (model, at, getattr(entry, key))
    for (name, key), (model, at, value) in sites.items():
        for what, other in others(value, types(TABLES[name])[key])[: None if LONG else 1]:
            after = copy.deepcopy(model)
            setattr(tables(after)[at], key, other)
            yield Change(name, key, what, model, after)


def _has_value(value):
    return value is not None and (not isinstance(value, (int, float)) or value != 0)


def others(value, kind):
    """(what changes, another value) of a field."""
    if kind == "bool":
        return [("other", not value)]
    if kind == "int":
        return [("greater", int(value) + 1), *([("smaller", int(value) - 1)] if value else [])]
    if kind == "float":
        return [("other", 0.75), ("negative zero", -0.0)]
    if kind == "Optional[str]":
        return [("other", b"another"), ("absent", None), ("no text", b"\xff")]
    if kind.startswith("Optional[List") and value is not None:
        last = others(value[-1], kind[14:-2])[0][1] if kind[14:-2] in ("int", "float", "bool") else None
        changed = [("last", [*value[:-1], last])] if last is not None else []
        return [*changed, ("shorter", value[:-1]), ("absent", None)]
    return [("absent", None)] if value is not None else []
