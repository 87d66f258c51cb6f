"""The compiled module is built with the usual hardening, which its file tells."""

import re
import subprocess

import pytest

from tests.needs import program


def printed(options, path):
    readelf = program("readelf", brings="apt-get install binutils; macOS has no ELF files")
    return subprocess.run([readelf, "-W", *options, path], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def module():
    from downset import _native

    return _native.__file__


def test_nothing_is_bound_late_and_tables_are_read_only(module):
    segments, entries = printed(["-l"], module), printed(["-d"], module)
    assert "GNU_RELRO" in segments and re.search(r"\(FLAGS\).*BIND_NOW|\(BIND_NOW\)", entries)
    (stack,) = re.findall(r"GNU_STACK .* (\S+) +0x\w+$", segments, re.MULTILINE)
    assert "E" not in stack, "the stack is not executable"


def test_stacks_and_buffers_are_guarded(module):
    names = printed(["--dyn-syms"], module)
    assert "__stack_chk_fail" in names, "-fstack-protector-strong"
    assert re.search(r"__\w+_chk\b(?<!__stack_chk)", names), "_FORTIFY_SOURCE"
