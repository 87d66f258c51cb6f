// What the parts of the module share: each of them binds the searches of some families.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

namespace downset {

namespace nb = nanobind;
using namespace nb::literals;

using Unlocked = nb::call_guard<nb::gil_scoped_release>;
using Int64s = std::vector<std::int64_t>;
using Int64Array = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoubleArray = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto listed(const Array& array) {
    return std::vector(array.data(), array.data() + array.size());
}

void bind_orders(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_memories(nb::module_& module);
void bind_arenas(nb::module_& module);
void bind_stages(nb::module_& module);
void bind_pieces(nb::module_& module);
void bind_partial(nb::module_& module);
void bind_pipelines(nb::module_& module);
void bind_loads(nb::module_& module);

}  // namespace downset
