// Bindings only: integers in, integers out. Each search is a header beside this file, specified by a Python twin or
// oracle that the tests hold it to. Every function takes its limits as arguments and runs without the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

NB_MODULE(_native, module) {
    module.doc() = "The searches of downset, compiled.";
}
