"""Small `.tflite` files, written table by table, of which pairs compute different results or say the same in two
ways."""

import copy

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from downset.formats.certificates import METADATA_KEY, packed_certificate
from tests.equivalence.tflite_tables import TAIL, i32, made

TYPES = {name.lower(): number for name, number in vars(schema.TensorType).items() if name[0] != "_"}


def results(path, kernels=OpResolverType.BUILTIN_REF, *, feed=True):
    """What LiteRT computes from random inputs, or from those that the file holds."""
    interpreter = Interpreter(str(path), experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    random = np.random.default_rng(0)
    for detail in interpreter.get_input_details() if feed else ():
        whole = detail["dtype"] in (np.int8, np.int32)
        value = random.integers(0, 2, detail["shape"]) if whole else random.normal(size=detail["shape"])
        interpreter.set_tensor(detail["index"], value.astype(detail["dtype"]))
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]).tobytes() for detail in interpreter.get_output_details()]


class Build:
    """A file. Tensors are numbers of one subgraph, which is 0 unless another is given."""

    def __init__(self):
        self.model = made(schema.ModelT, version=3, operatorCodes=[], buffers=[schema.BufferT()], subgraphs=[])
        self.graph()

    def graph(self):
        lists = {name: [] for name in ("tensors", "operators", "inputs", "outputs")}
        self.model.subgraphs.append(made(schema.SubGraphT, **lists))
        return len(self.model.subgraphs) - 1

    def buffer(self, **values):
        self.model.buffers.append(made(schema.BufferT, **values))
        return len(self.model.buffers) - 1

    def tensor(self, shape, dtype="float32", value=None, graph=0, **values):
        if value is not None:
            data = value if isinstance(value, bytes) else np.asarray(value, dtype).tobytes()
            values["buffer"] = self.buffer(data=np.frombuffer(data, np.uint8))
        tensors = self.model.subgraphs[graph].tensors
        values = {"name": f"t{len(tensors)}".encode()} | values
        tensors.append(made(schema.TensorT, shape=i32(*shape), type=TYPES[dtype], **values))
        return len(tensors) - 1

    def input(self, *given, graph=0, **values):
        self.model.subgraphs[graph].inputs.append(self.tensor(*given, graph=graph, **values))
        return self.model.subgraphs[graph].inputs[-1]

    def op(self, name, inputs, outputs, *options, graph=0, version=1):
        """An operator with up to one table of options of each union, and what it makes."""
        number = getattr(schema.BuiltinOperator, name)
        code = made(schema.OperatorCodeT, builtinCode=number, deprecatedBuiltinCode=min(number, 127), version=version)
        self.model.operatorCodes.append(code)
        entry = made(schema.OperatorT, inputs=i32(*inputs), outputs=i32(*outputs))
        entry.opcodeIndex = len(self.model.operatorCodes) - 1
        for held in options:
            kind = type(held).__name__[:-1]
            first = hasattr(schema.BuiltinOptions, kind)
            union, key = (
                (schema.BuiltinOptions, "builtinOptions") if first else (schema.BuiltinOptions2, "builtinOptions2")
            )
            setattr(entry, key, held)
            setattr(entry, f"{key}Type", getattr(union, kind))
        self.model.subgraphs[graph].operators.append(entry)
        return outputs[0] if outputs else None

    def outputs(self, *tensors, graph=0):
        self.model.subgraphs[graph].outputs = i32(*tensors)
        return self.model


def unary(build, name, tensor, graph=0, shape=(1,), dtype="float32"):
    return build.op(name, [tensor], [build.tensor(shape, dtype, graph=graph)], graph=graph)


def add(build, *tensors, graph=0, shape=(1,), dtype="float32"):
    return build.op("ADD", tensors, [build.tensor(shape, dtype, graph=graph)], schema.AddOptionsT(), graph=graph)


def loop(bodies=(2, 2)):
    """A WHILE that adds 1 (subgraph 2) or 2 (subgraph 3) while its value is less than 10. `bodies`: those that its two
    tables of options state."""
    build = Build()
    x = build.input((1,), "int32")
    for at, step in ((1, None), (2, 1), (3, 2)):
        assert build.graph() == at
        given = build.input((1,), "int32", graph=at)
        held = build.tensor((1,), "int32", [10 if step is None else step], graph=at)
        if step is None:
            result = build.op("LESS", [given, held], [build.tensor((1,), "bool", graph=at)], graph=at)
        else:
            result = add(build, given, held, graph=at, dtype="int32")
        build.outputs(result, graph=at)
    tables = (schema.WhileOptionsT, schema.StablehloWhileOptionsT)
    pairs = zip(tables, bodies, strict=True)
    options = [made(table, condSubgraphIndex=1, bodySubgraphIndex=body) for table, body in pairs]
    return build.outputs(build.op("WHILE", [x], [build.tensor((1,), "int32")], *options))


def fed_constant(value):
    build = Build()
    x = build.input((1,), value=[value])
    return build.outputs(unary(build, "ABS", x))


def added(buffer):
    """x + a constant of type int8 in this buffer; there are bytes in the flatbuffer in buffer 2."""
    build = Build()
    half = made(schema.QuantizationParametersT, scale=np.float32([1.0]), zeroPoint=np.array([0]))
    x = build.input((1,), "int8", quantization=half)
    build.model.buffers += buffer
    constant = build.tensor((1,), "int8", quantization=half, buffer=len(build.model.buffers) - 1)
    total = build.tensor((1,), "int8", quantization=half)
    return build.outputs(build.op("ADD", [x, constant], [total], schema.AddOptionsT(), version=2))


def outside(at, size=1, **values):
    return [made(schema.BufferT, offset=TAIL + at, size=size, **values)]


def made_twice(swapped):
    """Both operators make the tensor t; each of the two outputs reads it after one of them."""
    build = Build()
    x, y = build.input((1, 4)), build.input((1, 4))
    one = build.tensor((1,), "int32", [1])
    t = build.tensor((1, 1))
    tops = [build.tensor((1, 1), "int32") for _ in range(2)]
    reads = [build.tensor((1, 1)) for _ in range(2)]
    for at, given in enumerate((x, y)):
        build.op("TOPK_V2", [given, one], [t, tops[at]], schema.TopKV2OptionsT())
        read = reads[1 - at if swapped else at]
        build.op("ABS", [t], [read], schema.AbsOptionsT())
    return build.outputs(*tops, *reads)


def variable(container, shared, *, late):
    """A variable is read before or after it is written through a second handle, of this container and name."""
    build = Build()
    x = build.input((1,))
    first, second = build.tensor((1,), "resource"), build.tensor((1,), "resource")
    build.op("VAR_HANDLE", [], [first], made(schema.VarHandleOptionsT, container=b"", sharedName=b"v"))
    build.op("VAR_HANDLE", [], [second], made(schema.VarHandleOptionsT, container=container, sharedName=shared))
    zero = build.tensor((1,), value=[0])
    build.op("ASSIGN_VARIABLE", [first, zero], [], schema.AssignVariableOptionsT())
    read = build.tensor((1,))
    steps = [
        lambda: build.op("READ_VARIABLE", [first], [read], schema.ReadVariableOptionsT()),
        lambda: build.op("ASSIGN_VARIABLE", [second, x], [], schema.AssignVariableOptionsT()),
    ]
    for step in steps[::-1] if late else steps:
        step()
    return build.outputs(unary(build, "ABS", read))


def looked_up(scale):
    """Rows of int4 weights whose blockwise scales lie in a tensor that no operator reads."""
    build = Build()
    rows = build.input((1,), "int32")
    scales = build.tensor((2, 2), "float16", value=[[scale] * 2] * 2)
    zeros = build.tensor((2, 2), "int32", [[0, 0], [0, 0]])
    details = made(schema.BlockwiseQuantizationT, scales=scales, zeroPoints=zeros, blockSize=32)
    parameters = made(
        schema.QuantizationParametersT,
        details=details,
        scale=np.float32([1, 1]),
        zeroPoint=np.array([0, 0]),
        detailsType=schema.QuantizationDetails.BlockwiseQuantization,
    )
    weights = build.tensor((2, 64), "int4", bytes(range(64)), quantization=parameters)
    return build.outputs(build.op("EMBEDDING_LOOKUP", [rows, weights], [build.tensor((1, 64))], version=4))


def scaled_along(axis):
    """A constant with a scale for each row or column."""
    build = Build()
    x = build.input((2, 2))
    parameters = made(
        schema.QuantizationParametersT, scale=np.float32([1, 8]), zeroPoint=np.array([0, 0]), quantizedDimension=axis
    )
    held = build.tensor((2, 2), "int8", [[1, 2], [3, 4]], quantization=parameters)
    constant = build.op("DEQUANTIZE", [held], [build.tensor((2, 2))], version=5)
    return build.outputs(add(build, x, constant, shape=(2, 2)))


def densified(order):
    """A matrix of which all elements are stored, in this sequence of axes."""
    build = Build()
    x = build.input((2, 2))
    dimensions = [made(schema.DimensionMetadataT, format=0, denseSize=2) for _ in range(2)]
    sparse = made(schema.SparsityParametersT, traversalOrder=i32(*order), dimMetadata=dimensions)
    held = build.tensor((2, 2), value=[[1, 2], [3, 4]], sparsity=sparse)
    return build.outputs(add(build, x, build.op("DENSIFY", [held], [build.tensor((2, 2))]), shape=(2, 2)))


def cast(dtype):
    """x * 70000 as a whole number of this type."""
    build = Build()
    x = build.input((4,))
    many = build.op("MUL", [x, build.tensor((1,), value=[70000])], [build.tensor((4,))], schema.MulOptionsT())
    whole = build.op("CAST", [many], [build.tensor((4,), dtype)], schema.CastOptionsT(), version=6)
    return build.outputs(build.op("CAST", [whole], [build.tensor((4,))], schema.CastOptionsT(), version=6))


def certified(model, parts=None):
    """The file with a certificate: it states of every tensor that it is the original's of its name."""
    changed = copy.deepcopy(model)
    data = np.frombuffer(packed_certificate(parts or {}), np.uint8)
    changed.buffers.append(made(schema.BufferT, data=data))
    entry = made(schema.MetadataT, name=METADATA_KEY.encode(), buffer=len(changed.buffers) - 1)
    changed.metadata = [*(changed.metadata or []), entry]
    return changed


def state_beside(reader, *, late):
    """A state that SVDF moves on, and an operator with another effect that reads it, before or after."""
    build = Build()
    x = build.input((1, 2))
    weights = [build.tensor((1, size), value=np.full(size, 50, np.float32)) for size in (2, 4)]
    state = build.tensor((1, 4), isVariable=True)
    options = made(schema.SVDFOptionsT, rank=1)

    def moved():
        return build.op("SVDF", [x, *weights, -1, state], [build.tensor((1, 1))], options)

    def read():
        if reader == "MULTINOMIAL":
            count = build.tensor((), "int32", [64])
            seeds = made(schema.RandomOptionsT, seed=1, seed2=2)
            return build.op(reader, [state, count], [build.tensor((1, 64), "int32")], seeds)
        build.op(reader, [handle, state], [], schema.AssignVariableOptionsT())
        return build.op("READ_VARIABLE", [handle], [build.tensor((1, 4))], schema.ReadVariableOptionsT())

    named = made(schema.VarHandleOptionsT, sharedName=b"v")
    handle = None if reader == "MULTINOMIAL" else build.op("VAR_HANDLE", [], [build.tensor((), "resource")], named)
    first, second = (step() for step in ((moved, read) if late else (read, moved)))
    return build.outputs(*((first, second) if late else (second, first)))


def numbered(names, seen):
    """Two variables, whose handles stand in the order of `names`, and of which "a" is assigned x and "b" -x. `seen`:
    the number of a variable is read as a handle, or counted as a table."""
    build = Build()
    x = build.input((1,))
    handles = {
        name: build.op(
            "VAR_HANDLE", [], [build.tensor((), "resource")], made(schema.VarHandleOptionsT, sharedName=name.encode())
        )
        for name in names
    }
    for name in "ab":
        value = x if name == "a" else unary(build, "NEG", x)
        build.op("ASSIGN_VARIABLE", [handles[name], value], [], schema.AssignVariableOptionsT())
    handle = build.tensor((), "resource", np.int32(0).tobytes()) if seen else handles["a"]
    return build.outputs(build.op("READ_VARIABLE", [handle], [build.tensor((1,))], schema.ReadVariableOptionsT()))
