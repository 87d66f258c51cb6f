"""The CMake function: a build fits the model, and its program has the header and the array."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tflite_net import TfliteNet

LISTS = """cmake_minimum_required(VERSION 3.19)
project(firmware CXX)
execute_process(COMMAND {python} -m downset.integrations.cmake
  OUTPUT_VARIABLE DOWNSET_CMAKE OUTPUT_STRIP_TRAILING_WHITESPACE)
include(${{DOWNSET_CMAKE}})
downset_add_model(wake_word m.tflite {arguments})
add_executable(firmware main.cc)
target_link_libraries(firmware PRIVATE wake_word)
"""
MAIN = """#include <cstdio>
#include "wake_word.h"
int main() {
  std::printf("%zu %zu\\n", downset_wake_word::kModelBytes, downset_wake_word::kArenaBytes);
  return downset_wake_word::model[4] != 'T';
}
"""


@pytest.fixture
def project(tmp_path):
    if not all(map(shutil.which, ("cmake", "g++"))):
        pytest.skip("no cmake or no C++ compiler here")
    net = TfliteNet(size=8, dtype="int8")
    x = net.conv(net.input(3), 8, 3)
    net.save(tmp_path / "m.tflite", [net.concat([net.conv(net.depthwise(x), 3), net.conv(x, 2)])])
    (tmp_path / "main.cc").write_text(MAIN)
    return tmp_path


def cmake(project, arguments, *steps):
    lists = LISTS.format(python=sys.executable, arguments=arguments)
    (project / "CMakeLists.txt").write_text(lists)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for step in (["-S", ".", "-B", "build"], *steps):
        done = subprocess.run(
            ["cmake", *step], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            break
    return done


def test_a_build_fits_the_model(project):
    build = ["--build", "build"]
    done = cmake(project, "KERNELS esp-nn-s3@1.1.2 RAM 64KB OPTIONS --time-limit 1s", build)
    assert done.returncode == 0, done.stdout + done.stderr
    model_bytes, arena = map(int, subprocess.check_output([project / "build" / "firmware"], text=True).split())
    folder = project / "build" / "wake_word.downset"
    assert model_bytes == (folder / "wake_word.tflite").stat().st_size
    header = (folder / "wake_word.h").read_text()
    assert "kEspNnScratchBytes" in header and arena > int(re.search(r"kTensorBytes = (\d+)", header)[1])
    again = cmake(project, "KERNELS esp-nn-s3@1.1.2 RAM 64KB OPTIONS --time-limit 1s", build)
    assert "Fitting" not in again.stdout, "a model that did not change is not fitted again"


def test_a_model_that_does_not_fit_fails_the_build(project):
    done = cmake(project, "RAM 1KB OPTIONS --time-limit 1s", ["--build", "build"])
    assert done.returncode != 0 and "downset: error: " in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [("KERNEL reference", "unknown arguments"), (")\ndownset_add_model(b no.tflite", "no.tflite")],
)
def test_mistakes_are_told_when_the_build_is_configured(project, arguments, says):
    done = cmake(project, arguments)
    assert done.returncode != 0 and says in done.stderr
