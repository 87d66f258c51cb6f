"""The library does not speak command line: its messages hold parameters as data, and each front end words them."""

import ast
import inspect
import json
import pickle
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import downset
from downset import errors
from downset.commands.options import BYTES, DISTANCE, FACTOR, PRICES, SECONDS, SHARE, parse_shapes
from downset.commands.wording import COMMAND_OF, OPTION_OF, command_named, option_of
from downset.errors import UsageError
from downset.messages import Call, Message, Setting, joined, of_plain
from downset.process.limits import limits
from tests.command import typed

SOURCE = Path(downset.__file__).parent
LIBRARY = [path for path in sorted(SOURCE.rglob("*.py")) if path.parent.name != "commands" and path.name != "cli.py"]
PUBLIC = [*filter(callable, (getattr(downset, name) for name in downset.__all__)), limits]
COMMANDS = sorted({words.split()[0] for words in COMMAND_OF.values()})


@cache
def nodes_of():
    """The nodes of each file's syntax tree, its root first: made once, in the one process that runs these tests."""
    return {path.relative_to(SOURCE).as_posix(): [*ast.walk(ast.parse(path.read_text()))] for path in LIBRARY}


def parameters(function):
    try:
        return set(inspect.signature(function).parameters)
    except ValueError:  # a type without a signature
        return set()


@cache
def named(kind):
    """(file, name) of each `kind("name", …)` in the library, which names a parameter or a function."""
    return sorted(
        (path, node.args[0].value)
        for path, nodes in nodes_of().items()
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == kind
        if node.args and isinstance(node.args[0], ast.Constant)
    )


def test_a_setting_is_a_parameter_of_a_public_function_and_an_option():
    settings, taken = named("Setting"), {name for function in PUBLIC for name in parameters(function)}
    assert len(settings) > 50
    assert not [f"{path}: no public function takes {name}" for path, name in settings if name not in taken]
    commands = [command_named(command) for command in COMMANDS]
    set_by = {name: any(option_of(name, command) for command in commands) for _, name in settings}
    assert not [f"{path}: no option sets {name}" for path, name in settings if not set_by[name]]


def test_a_call_is_of_a_function_that_a_command_makes():
    calls = named("Call")
    assert calls and not [f"{path}: no command makes {name}" for path, name in calls if name not in COMMAND_OF]
    for function, words in COMMAND_OF.items():
        module, _, name = function.rpartition(".")
        assert callable(getattr(import_module(f"downset.{module}") if module else downset, name))
        command, *rest = words.split()
        options = {word for option in command_named(command).params for word in option.opts}
        assert {word for word in rest if word.startswith("--")} <= options
        assert typed(Call(function)) == f"downset {words}"


OTHER_PROGRAMS = {
    "distributed/serving/nodes.py": "ray",
    "distributed/serving/systemd_unit.py": "systemd, which runs the command that is written",
    "reports/charts.py": "CSS",
    "integrations/esphome.py": "a program itself",
}
"""Files with options of another program in their texts."""
COMMANDS_TYPED = "fit|inspect|verify|order|arena|split|simulate|serve|stage|run|profiles"
TYPED = re.compile(rf"(?<![\w-])--[a-z]|\bdownset ({COMMANDS_TYPED})\b(?!:)")
"""What a user of a shell types. The programs that run on other machines, `downset worker` and `downset keys`, are the
same for all."""


def texts(nodes):
    """(line, text) of each string in a file that is not a docstring, with the fixed parts of f-strings."""
    docs = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def test_no_text_of_the_library_is_typed_into_a_shell():
    found = [
        f"{path}:{line}: {text[:80]}"
        for path, nodes in nodes_of().items()
        if path not in OTHER_PROGRAMS
        for line, text in texts(nodes)
        if TYPED.search(text)
    ]
    assert not found, "name a Setting or a Call"
    assert all(any(TYPED.search(text) for _, text in texts(nodes_of()[path])) for path in OTHER_PROGRAMS)


def loses_settings(nodes):
    """Lines that make a string of a downset error: its message has the settings, and `str` has Python's words alone."""
    ours = set(errors.__all__)
    for handler in nodes:
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        if not all(isinstance(kind, ast.Name) and kind.id in ours for kind in kinds):
            continue
        for node in ast.walk(handler):
            shown = node.value if isinstance(node, ast.FormattedValue) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
                shown = node.args[0]
            if isinstance(shown, ast.Name) and shown.id == handler.name:
                yield node.lineno


def test_messages_of_errors_keep_their_settings():
    found = [
        f"{path}:{line}"
        for path, nodes in nodes_of().items()
        if not path.startswith("integrations/")  # no command runs them
        for line in loses_settings(nodes)
    ]
    assert not found, "join error.message to a Message"


def messages_of(tree):
    """Names of a module's constants that are messages."""
    for node in tree.body:
        made = node.value.func if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
        if isinstance(made, ast.Name) and made.id == "Message":
            yield from (target.id for target in node.targets)


def test_no_f_string_holds_a_message_of_a_module():
    messages = {name for nodes in nodes_of().values() for name in messages_of(nodes[0])}
    assert "TRUST" in messages
    found = [
        f"{path}:{node.lineno}"
        for path, nodes in nodes_of().items()
        for node in nodes
        if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name) and node.value.id in messages
    ]
    assert not found, "give it as a part of its own"


def test_other_names_of_options_are_of_parameters_and_options_that_there_are():
    for name, option in OPTION_OF.items():
        assert any(name in parameters(function) for function in PUBLIC)
        assert any(one.name == option for command in COMMANDS for one in command_named(command).params)


@given(
    st.sampled_from([BYTES, SECONDS, SHARE, FACTOR, DISTANCE, PRICES]).flatmap(
        lambda kind: st.tuples(
            st.just(kind),
            {
                BYTES: st.integers(1, 2**40) | st.integers(1, 2**10).map(lambda count: count * 1024),
                SECONDS: st.floats(1e-6, 1e6) | st.integers(1, 10**5),
                SHARE: st.floats(0, 1) | st.integers(0, 1000).map(lambda count: count / 1000),
                FACTOR: st.floats(1, 100) | st.integers(100, 300).map(lambda count: count / 100),
                DISTANCE: st.integers(-(2**31), 2**31),
                PRICES: st.dictionaries(st.sampled_from(["load", "store", "read"]), st.floats(1e-6, 1e6), min_size=1),
            }[kind],
        )
    )
)
def test_the_words_of_a_value_are_read_back_as_the_value(pair):
    kind, value = pair
    assert kind.convert(kind.word(value), None, None) == value


@pytest.mark.parametrize(
    ("setting", "python", "words"),
    [
        (Setting("slower", 1.05), "slower=1.05", "--slower 1.05x"),
        (Setting("time_limit_s", 240), "time_limit_s=240", "--time-limit 4min"),
        (Setting("max_recompute", 0.015), "max_recompute=0.015", "--max-recompute 1.5%"),
        (Setting("ram_bytes", 262144), "ram_bytes=262144", "--ram 256KB"),
        (Setting("ram_bytes"), "ram_bytes", "--ram"),
        (Setting("capacity_bytes", None), "capacity_bytes=None", "without --capacity"),
        (Setting("int8", True), "int8=True", "--int8"),
        (Setting("ahead", False), "ahead=False", "--no-ahead"),
        (Setting("output", "a b.onnx"), "output='a b.onnx'", "-o 'a b.onnx'"),
        (Setting("units", 3), "units=3", "units=3"),  # no command has it
    ],
)
def test_each_front_end_words_a_setting_in_its_own_terms(setting, python, words):
    assert (str(setting), typed(setting)) == (python, words)


@given(st.dictionaries(st.text("ab :='\"", min_size=1), st.lists(st.integers(1, 9), min_size=1).map(tuple), min_size=1))
def test_sizes_by_input_are_read_back(shapes):
    words = shlex.split(typed(Setting("shapes", shapes)))
    assert words[::2] == ["--shape"] * len(shapes) and parse_shapes(words[1::2]) == shapes


def test_a_message_is_python_as_a_string_and_keeps_its_data():
    inner = Message("try ", Setting("slower", 1.5))
    whole = joined("; ", [Message("(1) ", inner.removesuffix(".")), Message("(2) wait.").removesuffix(".")])
    assert whole == "(1) try slower=1.5; (2) wait" and typed(whole) == "(1) try --slower 1.50x; (2) wait"
    call = Call("fit", (Setting("shapes", {"x": [1, 3]}), Setting("int8", True)), ("m.tflite",))
    message = Message("again: ", call, ", or ", Setting("ram_bytes"))
    assert str(message) == "again: downset.fit('m.tflite', shapes={'x': [1, 3]}, int8=True), or ram_bytes"
    assert typed(message) == "again: downset fit m.tflite --shape x=1,3 --int8, or --ram"
    for copy in (of_plain(json.loads(json.dumps(message.plain()))), pickle.loads(pickle.dumps(message))):
        assert copy == message and copy.parts == message.parts and copy.settings == message.settings
    error = pickle.loads(pickle.dumps(UsageError(f"no {'file'}: ", message)))
    assert str(error) == "no file: " + str(message) and typed(error.message) == f"no file: {typed(message)}"


def test_words_of_the_user_are_not_taken_for_settings():
    assert typed(Message("tensor 'slower=2' {0} --ram")) == "tensor 'slower=2' {0} --ram"
