"""A model in two memories as C++ for firmware: the model as an array, the sizes and the distance of the memories, and
what keeps TFLite Micro out of the addresses between them.

*Source*: micro_allocator.cc and greedy_memory_planner.cc (tflite-micro 90b983c2). While tensors are allocated, the
allocator hands all of the arena that is left to its planner, which divides that among five lists. With an arena that
spans both memories all but the first begin between them. `BoundedPlanner` gives it only what it needs, in slow memory:
before that the allocator describes each tensor at the beginning of the arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from downset import __version__
from downset.errors import UsageError
from downset.formats.firmware import Firmware, identifier, in_files, one_line, operator_lines
from downset.formats.tflite.read import tensor_counts
from downset.graph.core import Graph
from downset.memory.records import align_up
from downset.memory.reference_scratch import scratch_of_operators
from downset.results.memories_fit import MemoriesFit
from downset.results.two_memories import ALIGNMENT, TwoMemories

__all__ = ["described_bytes", "description_bytes", "memories_firmware", "note_bytes"]

_NOTE_BYTES, _DESCRIPTION_BYTES, _REQUEST_BYTES = 40, 32, 16
"""Bytes in which the planner notes a buffer (ten whole numbers of 32 bits), and in which the allocator describes a
tensor, a buffer of scratch, and a request for one, with pointers of eight bytes."""
_REQUESTS, _SPARE_REQUESTS = 4, 12
"""Buffers of scratch that one operator asks for at most, and requests for which the allocator keeps room."""
_TYPES = """
// Lets TFLite Micro's planner keep its notes in slow memory, and take no more for them than it needs: what it is given
// of the arena may lie between the memories. Use: BoundedPlanner<tflite::GreedyMemoryPlanner> planner(slow).
template <class Planner>
class BoundedPlanner : public Planner {
 public:
  explicit BoundedPlanner(unsigned char* slow) : slow_(slow) {}
  decltype(static_cast<Planner*>(nullptr)->Init(nullptr, 0)) Init(unsigned char* notes, int bytes) override {
    return kDistance > 0 ? Planner::Init(slow_, kNoteBytes)
                         : Planner::Init(notes, bytes < kNoteBytes ? bytes : kNoteBytes);
  }

 private:
  unsigned char* slow_;
  void operator delete(void*) {}
};

// Makes the constructor public that takes allocators and a planner. Use: TwoMemoriesAllocator<tflite::MicroAllocator>.
template <class Allocator>
class TwoMemoriesAllocator : public Allocator {
 public:
  template <class Persistent, class Tensors, class Planner>
  TwoMemoriesAllocator(Persistent* persistent, Tensors* tensors, Planner* planner)
      : Allocator(persistent, tensors, planner) {}

 private:
  void operator delete(void*) {}
};

// Whether the memories lie where the offsets in the model expect them. Nothing else checks that: do not go on if false.
inline bool MemoriesHold(const void* fast, const void* slow) {
  const intptr_t from = reinterpret_cast<intptr_t>(fast), to = reinterpret_cast<intptr_t>(slow);
  return to - from == kDistance && from % kAlignment == 0;
}

// The beginning of the arena: the memory that lies lower.
inline unsigned char* ArenaBase(unsigned char* fast, unsigned char* slow) { return kDistance > 0 ? fast : slow; }

// What TFLite Micro keeps from run to run lies at the end of one of the memories, where no tensor lies.
inline unsigned char* PersistentBase(unsigned char* fast, unsigned char* slow) {
  return kPersistentInSlow ? slow + kSlowBytes - kPersistentBytes : fast + kFastBytes - kPersistentBytes;
}
"""


def memories_firmware(fit: MemoriesFit, *, include: str = "") -> Firmware:
    """The model that a fit to two memories wrote, as C++11. `include`: the name by which the source includes the
    header; empty for one header that holds everything. Raises UsageError where the fit wrote no file."""
    if fit.output_path is None:
        raise UsageError("a header holds the model that is written: give an output, too")
    path = Path(fit.output_path)
    return in_files(
        path, _comment(fit, path), [*_constants(fit, path), *_TYPES.split("\n"), *operator_lines(path)], include
    )


def note_bytes(path: Path, graph: Graph, kernels: str) -> int:
    """The most bytes that TFLite Micro's planner needs for its notes on the tensors of a file and on scratch."""
    return _NOTE_BYTES * (tensor_counts(path)[1] + _requests(graph, kernels))


def description_bytes(path: Path, graph: Graph, kernels: str) -> int:
    """The most bytes at the beginning of the arena in which the allocator describes the tensors of a file, and
    scratch, while its planner runs."""
    return _described(tensor_counts(path)[0], graph, kernels)


def described_bytes(graph: Graph, kernels: str) -> int:
    """The description bytes of the file that states a network, without moves."""
    return _described(len({tensor for op in graph.ops for tensor in (*op.inputs, *op.outputs)}), graph, kernels)


def _described(tensors: int, graph: Graph, kernels: str) -> int:
    requests = _requests(graph, kernels)
    described = _DESCRIPTION_BYTES * (tensors + requests)
    return align_up(_REQUEST_BYTES * (requests + _SPARE_REQUESTS) + described, ALIGNMENT) + ALIGNMENT


def _requests(graph: Graph, kernels: str) -> int:
    return _REQUESTS * len(scratch_of_operators(graph, kernels)[0])


def arena_bytes(memories: TwoMemories) -> int:
    """Bytes from the beginning of the lower memory to the end of the higher one, without the persistent part."""
    fast_end = memories.fast_base + memories.fast_bytes - memories.fast_persistent_bytes
    return max(fast_end, memories.slow_base + memories.slow_end)


def _comment(fit: MemoriesFit, path: Path) -> Sequence[str]:
    memories = fit.memories
    kernels = f"the kernels of {one_line(fit.kernels)}" + ("" if fit.stated_kernels else " (nobody named others)")
    lower, higher = ("fast", "slow") if memories.distance > 0 else ("slow", "fast")
    return [
        f"// {one_line(path.name)}: {len(fit.graph.ops)} operators and {len(fit.moves)} moves between two memories, "
        f"written by downset {__version__}",
        f"// from {one_line(Path(fit.model).name)}.",
        "//",
        f"// A run moves {fit.plan.moved_bytes:,} bytes, and accesses {fit.plan.direct_bytes:,} in slow memory.",
        f"// Offsets count from {lower} memory; {higher} memory begins {abs(memories.distance):,} bytes above it.",
        f"// Run in TFLite Micro {one_line(fit.versions.get('tflite-micro', ''))} on a 64-bit host, with its reference "
        "kernels; on no board.",
        "//",
        "// What must hold on the board:",
        "// - MemoriesHold(fast, slow): the linker puts both memories at the distance below.",
        f"// - The firmware links {kernels}: others may ask for more scratch than the",
        f"//   {memories.scratch_bytes:,} bytes at the beginning of {lower} memory, and get it between the memories.",
        *_kept_in_slow_memory(memories),
        "// - The planner is bounded as below: tflite::MicroAllocator::Create(persistent, n, arena, kArenaBytes) would",
        "//   let it write its notes between the memories while tensors are allocated.",
        "// - The caller gives inputs and takes outputs by pointers of the interpreter, in whichever memory they lie.",
        "//",
        "// A sketch of its use:",
        '//   alignas(16) static unsigned char fast[kFastBytes] __attribute__((section(".fast")));',
        '//   alignas(16) static unsigned char slow[kSlowBytes] __attribute__((section(".slow")));',
        "//   if (!MemoriesHold(fast, slow)) abort();",
        "//   static tflite::PersistentArenaBufferAllocator persistent(PersistentBase(fast, slow), kPersistentBytes);",
        "//   static tflite::NonPersistentArenaBufferAllocator tensors(ArenaBase(fast, slow), kArenaBytes);",
        "//   static BoundedPlanner<tflite::GreedyMemoryPlanner> planner(slow);",
        "//   static TwoMemoriesAllocator<tflite::MicroAllocator> allocator(&persistent, &tensors, &planner);",
        "//   static tflite::MicroMutableOpResolver<kOperatorKinds> resolver;",
        "//   RegisterOperators(resolver);",
        "//   static tflite::MicroInterpreter interpreter(tflite::GetModel(model), resolver, &allocator);",
        "//   interpreter.AllocateTensors();",
        "// with the names below, in their namespace.",
    ]


def _kept_in_slow_memory(memories: TwoMemories) -> Sequence[str]:
    if not memories.slow_persistent_bytes:
        return ()
    return (
        "// - What TFLite Micro keeps from run to run lies in slow memory. The bytes above leave out",
        "//   its accesses.",
    )


def _constants(fit: MemoriesFit, path: Path) -> list[str]:
    memories, prefix = fit.memories, identifier(path.stem)
    kept, in_slow = memories.persistent_bytes, str(memories.persistent_in == "slow").lower()
    notes = note_bytes(path, fit.graph, fit.kernels)
    return [
        "",
        "#include <stdint.h>",
        "",
        f"namespace downset_{prefix} {{",
        "",
        f"static const unsigned char* const model = {prefix}_model;",
        f"constexpr size_t kModelBytes = {path.stat().st_size};",
        "",
        f"constexpr size_t kFastBytes = {memories.fast_bytes};  // of these, tensors take {fit.plan.fast_bytes}",
        f"constexpr size_t kSlowBytes = {memories.slow_bytes};  // of these, tensors take {fit.plan.slow_bytes}",
        f"constexpr intptr_t kDistance = {memories.distance};  // the address of slow memory less that of fast memory",
        f"constexpr size_t kPersistentBytes = {kept};  // at the end of {memories.persistent_in} memory",
        f"constexpr bool kPersistentInSlow = {in_slow};",
        f"constexpr size_t kScratchBytes = {memories.scratch_bytes};  // at the beginning of the lower memory",
        f"constexpr size_t kArenaBytes = {arena_bytes(memories)};  // from the lower memory to the end of the higher",
        f"constexpr int kNoteBytes = {notes};  // of TFLite Micro's planner, while tensors are allocated",
        f"constexpr intptr_t kAlignment = {ALIGNMENT};",
        'static_assert(kDistance % kAlignment == 0, "tensors in slow memory are not aligned");',
        "static_assert((kDistance > 0 ? kDistance : -kDistance) >= intptr_t(kDistance > 0 ? kFastBytes : kSlowBytes),",
        '              "the memories overlap");',
        f'static_assert(kArenaBytes < {1 << 31}u, "offsets in the model are whole numbers of 32 bits");',
    ]
