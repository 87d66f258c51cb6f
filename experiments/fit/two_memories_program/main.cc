// Runs the model of a header that `downset fit --fast --slow --header` wrote, with fast memory at FAST and slow memory at
// SLOW and nothing between them, once on fixed inputs; prints the bytes of the persistent part and a hash of the outputs.
// With PLAIN the arena is made as tflite::MicroAllocator::Create makes it, whose planner writes between the memories.
#include HEADER

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "../cortex_m_program/fixed_run.h"
#include "tensorflow/lite/micro/arena_allocator/non_persistent_arena_buffer_allocator.h"
#include "tensorflow/lite/micro/arena_allocator/persistent_arena_buffer_allocator.h"
#include "tensorflow/lite/micro/memory_planner/greedy_memory_planner.h"
#include "tensorflow/lite/micro/micro_allocator.h"
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

using namespace NAMESPACE;

int main() {
  auto* fast = reinterpret_cast<unsigned char*>(FAST);
  auto* slow = reinterpret_cast<unsigned char*>(SLOW);
  if (!MemoriesHold(fast, slow)) return 1;
  if (MemoriesHold(fast + kAlignment, slow) || MemoriesHold(fast, slow + kAlignment)) return 2;
  static tflite::PersistentArenaBufferAllocator persistent(PersistentBase(fast, slow), kPersistentBytes);
#ifdef PLAIN
  tflite::MicroAllocator* allocator = tflite::MicroAllocator::Create(PersistentBase(fast, slow), kPersistentBytes,
                                                                     ArenaBase(fast, slow), kArenaBytes);
#else
  static tflite::NonPersistentArenaBufferAllocator tensors(ArenaBase(fast, slow), kArenaBytes);
  static BoundedPlanner<tflite::GreedyMemoryPlanner> planner(slow);
  static TwoMemoriesAllocator<tflite::MicroAllocator> made(&persistent, &tensors, &planner);
  tflite::MicroAllocator* allocator = &made;
#endif
  static tflite::MicroMutableOpResolver<kOperatorKinds> resolver;
  if (!RegisterOperators(resolver)) return 3;
  static tflite::MicroInterpreter interpreter(tflite::GetModel(model), resolver, allocator);
  if (interpreter.AllocateTensors() != kTfLiteOk) return 4;
  FillInputs(interpreter);
  if (interpreter.Invoke() != kTfLiteOk) return 5;
  printf("persistent %u outputs %08x\n", static_cast<unsigned>(persistent.GetPersistentUsedBytes()),
         static_cast<unsigned>(HashOfOutputs(interpreter)));
  return 0;
}
