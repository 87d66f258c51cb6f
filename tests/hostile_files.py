"""Small files that crash, hang, flood or surprise what reads them, made here: the kinds that attackers and accidents
have sent. Each is named after what it does to an unprotected reader."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import onnx
from ai_edge_litert import schema_py_generated as schema
from onnx import TensorProto, helper

from downset.tuning.profiles import row_checksum
from tests.tflite_net import TfliteNet


def value(name, shape=(4,), kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, *, functions=(), initializers=(), domains=(), version=17):
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", version), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)


def crashes():
    """ONNX's shape inference dereferences the type of an input that nothing makes."""
    node = helper.make_node("RegexFullMatch", ["X"], ["Y"], pattern="a")
    return model([node], [], [value("Y", (2,), TensorProto.BOOL)], version=20)


def hangs():
    """ONNX's shape inference never ends on this equation."""
    node = helper.make_node("Einsum", ["x", "y"], ["z"], equation="-o")
    return model([node], [value("x", (5,)), value("y", (5,))], [value("z", ())], version=21)


def function(name, calls):
    names = ["a", *(f"t{at}" for at in range(len(calls) - 1)), "b"]
    nodes = [helper.make_node(call, [names[at]], [names[at + 1]], domain="my") for at, call in enumerate(calls)]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    return helper.make_function("my", name, ["a"], ["b"], nodes, imports)


def unfolds(depth=40):
    """Each function calls the next twice."""
    functions = [function(f"F{at}", [f"F{at + 1}"] * 2) for at in range(depth)]
    imports = [helper.make_opsetid("", 17)]
    functions.append(
        helper.make_function("my", f"F{depth}", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports)
    )
    node = helper.make_node("F0", ["x"], ["y"], domain="my")
    return model([node], [value("x")], [value("y")], functions=functions, domains=["my"])


def calls_itself():
    node = helper.make_node("F", ["x"], ["y"], domain="my")
    return model([node], [value("x")], [value("y")], functions=[function("F", ["F"])], domains=["my"])


def loops(turns=1 << 62):
    """A loop of very many turns, which only running shows."""
    given = [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("v")]
    body = helper.make_graph(
        [helper.make_node("Neg", ["v"], ["w"]), helper.make_node("Identity", ["c"], ["d"])],
        "b",
        given,
        [value("d", (), TensorProto.BOOL), value("w")],
    )
    node = helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)
    count = helper.make_tensor("m", TensorProto.INT64, (), [turns])
    return model([node], [value("x")], [value("y")], initializers=[count])


def claims(elements=1 << 34):
    """Tensors of 64 GiB in 82 bytes."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    return model(nodes, [value("x", (elements,))], [value("z", (elements,))])


def dead_branch():
    """A segment that makes nothing that anybody reads."""
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, (4, 3, 3, 3), np.ones(108, np.float32)) for name in ("v", "w")
    ]
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        helper.make_node("Concat", ["a", "a"], ["dead"], axis=1),
        helper.make_node("Conv", ["x", "w"], ["b"], pads=[1] * 4),
        helper.make_node("Relu", ["b"], ["p"]),
    ]
    return model(nodes, [value("x", (1, 3, 16, 16))], [value("p", (1, 4, 16, 16))], initializers=weights)


def strings():
    return model([helper.make_node("Cast", ["x"], ["s"], to=TensorProto.STRING)], [value("x")], [value("s", (4,), 8)])


def traps():
    """A division whose result no int64 holds: on x86 the processor ends the process that computes it."""
    kept = [helper.make_tensor(name, 7, (4,), [of] * 4) for name, of in (("zero", 0), ("low", -(2**63)), ("one", -1))]
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mul", ["whole", "zero"], ["none"]),
        helper.make_node("Add", ["none", "low"], ["least"]),
        helper.make_node("Div", ["least", "one"], ["most"]),
        helper.make_node("Cast", ["most"], ["y"], to=TensorProto.FLOAT),
    ]
    return model(nodes, [value("x")], [value("y")], initializers=kept)


NAME = "\x1b[31m\x9b2J\u202eevil\x07"


def escapes():
    """Names that move a terminal's cursor, and turn a line around."""
    nodes = [helper.make_node("Relu", ["x"], ["a"], name=NAME), helper.make_node("Neg", ["a"], [f"y{NAME}"], name="n")]
    return model(nodes, [value("x", (1, 3, 8, 8))], [value(f"y{NAME}", (1, 3, 8, 8))])


def no_text():
    """A name that is not UTF-8."""
    whole = model([helper.make_node("Relu", ["x"], ["y"], name="node_NAME")], [value("x")], [value("y")])
    return whole.SerializeToString().replace(b"node_NAME", b"node\xffNAME")


def outside(location="../secret.bin"):
    """A Constant's value in a file outside the model's folder."""
    node = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.FLOAT, (4,), [0] * 4))
    tensor = node.attribute[0].t
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return model([node, helper.make_node("Add", ["x", "c"], ["y"])], [value("x")], [value("y")])


def plain(**changes):
    graph = {"tensors": [{"size": 1}, {"size": 1}], "ops": [{"ins": [0], "outs": [1], "name": NAME}]}
    return json.dumps({**graph, "inputs": [0], "outputs": [1], **changes}).encode()


def reads_before_writing(path):
    """A variable tensor that an operator makes after another one has read it."""
    net = TfliteNet()
    given, state = net.input(2), net.image(2)
    net.main.tensors[state].isVariable = True
    joined = net.op("ADD", [given, state], 2, "AddOptions")
    made = net.op("RELU", [joined], 2)
    net.op("RELU", [joined], 2)
    net.main.operators[-1].outputs = np.asarray([state], np.int32)
    net.save(path, [made])


def damaged_behind(path):
    """What is planned is whole; a string that only writing reads points outside the file."""
    net = TfliteNet()
    net.model.description = "a network"
    given = net.input(2)
    left, right = net.op("RELU", [given], 2), net.op("RELU", [given], 2)
    data = bytearray(net.save(path, [net.concat([left, right])]).read_bytes())
    table = schema.Model.GetRootAsModel(data, 0)._tab
    at = table.Pos + table.Offset(10)
    data[at : at + 4] = len(data).to_bytes(4, "little")
    path.write_bytes(data)


ODD_TIMINGS = (
    (b"\xff", 1.0, 1.0),
    (NAME, "abc", 1.0),
    (NAME, float("inf"), 1.0),
    (NAME, 1.0, 1e300),
    (NAME, 1.0, -1e18),
    (NAME, 1.0, "soon"),
    (NAME, 1.0, b"\xff"),
    (NAME, 1.0, 1.0),
)
"""(device, seconds, taken_at): text that is none, numbers that are none, moments that no calendar has; a lawful one."""


def profiles(path, device, seconds, taken_at):
    """A file of measurements with one row."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE timings (device TEXT NOT NULL, versions TEXT NOT NULL, dtype TEXT NOT NULL, "
            "batch INTEGER NOT NULL, signature TEXT NOT NULL, seconds REAL NOT NULL CHECK (seconds >= 0), "
            "taken_at REAL NOT NULL, checksum INTEGER NOT NULL, "
            "PRIMARY KEY (device, versions, dtype, batch, signature)) WITHOUT ROWID"
        )
        checksum, form = row_checksum(device, "v", "f", 1, "s", seconds, taken_at), "CAST(? AS TEXT)"
        given = (device, seconds, taken_at, checksum)
        connection.execute(f"INSERT INTO timings VALUES ({form}, 'v', 'f', 1, 's', ?, ?, ?)", given)


ONNX = {
    "crashes": crashes,
    "hangs": hangs,
    "unfolds": unfolds,
    "calls_itself": calls_itself,
    "loops": loops,
    "claims": claims,
    "dead_branch": dead_branch,
    "strings": strings,
    "escapes": escapes,
    "no_text": no_text,
    "outside": outside,
    "traps": traps,
}


def write_all(folder):
    """All of them, by their names, into a folder."""
    for name, make in ONNX.items():
        made = make()
        data = made if isinstance(made, bytes) else made.SerializeToString()
        (folder / f"{name}.onnx").write_bytes(data)
    (folder / "escapes.json").write_bytes(plain())
    (folder / "makes_nothing.json").write_bytes(plain(ops=[{"ins": [0], "outs": []}], outputs=[0]))
    (folder / "no_archive.pt2").write_bytes(b"PK\x05\x06" + bytes(18))
    reads_before_writing(folder / "reads_before_writing.tflite")
    damaged_behind(folder / "damaged_behind.tflite")
    whole = onnx.load(folder / "dead_branch.onnx").SerializeToString()
    (folder / "cut.onnx").write_bytes(whole[: len(whole) // 2])
