// Bindings only: integers in, integers out; each family is bound in a file of the folder bindings. Each search is a
// header in the folder of its family, and names the oracle that the tests hold it to. Every function takes its limits
// as arguments and runs without the GIL; every argument is checked before a search sees it. An object that searches is
// for one thread at a time. The types of it all for Python: src/downset/_native.pyi.
#include "bindings/common.hpp"
#include "deadline.hpp"
#include "outcome.hpp"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_native, module) {
    using downset::Outcome;
    module.doc() = "The searches of downset, compiled.";
    nb::enum_<Outcome>(module, "Outcome", "How a search ended.")
        .value("SOLVED", Outcome::kSolved, "What was asked for is found.")
        .value("IMPOSSIBLE", Outcome::kImpossible, "Proof that there is none.")
        .value("LIMIT", Outcome::kLimit, "A limit came first: nothing is settled.")
        .value("OUT_OF_MEMORY", Outcome::kOutOfMemory, "Likewise, and no time will settle it.");
    module.def(
        "interrupt", [](bool interrupted) { downset::interrupted = interrupted; }, "interrupted"_a,
        "Whether the searches that run, and those to come, end at once as if their time were over.");
    downset::bind_orders(module);
    downset::bind_memory(module);
    downset::bind_memories(module);
    downset::bind_arenas(module);
    downset::bind_stages(module);
    downset::bind_pieces(module);
    downset::bind_partial(module);
    downset::bind_pipelines(module);
    downset::bind_loads(module);
}
