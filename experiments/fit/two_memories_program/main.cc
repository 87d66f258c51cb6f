// Runs the model of a header that `downset fit --fast --slow --header` wrote, with fast memory at FAST and slow memory at
// SLOW and nothing between them, once on fixed inputs; prints the bytes of the persistent part and a hash of the outputs.
// With PLAIN the arena is made as tflite::MicroAllocator::Create makes it, whose planner writes between the memories.
#include HEADER

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tensorflow/lite/micro/arena_allocator/non_persistent_arena_buffer_allocator.h"
#include "tensorflow/lite/micro/arena_allocator/persistent_arena_buffer_allocator.h"
#include "tensorflow/lite/micro/memory_planner/greedy_memory_planner.h"
#include "tensorflow/lite/micro/micro_allocator.h"
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

using namespace NAMESPACE;

extern "C" void DebugLog(const char* format, va_list arguments) { vprintf(format, arguments); }
extern "C" int DebugVsnprintf(char* buffer, size_t size, const char* format, va_list arguments) {
  return vsnprintf(buffer, size, format, arguments);
}
namespace tflite {
void InitializeTarget() {}
uint32_t ticks_per_second() { return 0; }
uint32_t GetCurrentTimeTicks() { return 0; }
}  // namespace tflite

int main() {
  auto* fast = reinterpret_cast<unsigned char*>(FAST);
  auto* slow = reinterpret_cast<unsigned char*>(SLOW);
  if (!MemoriesHold(fast, slow)) return 1;
  if (MemoriesHold(fast + kAlignment, slow) || MemoriesHold(fast, slow + kAlignment)) return 2;
  static tflite::PersistentArenaBufferAllocator persistent(PersistentBase(fast), kPersistentBytes);
#ifdef PLAIN
  tflite::MicroAllocator* allocator = tflite::MicroAllocator::Create(PersistentBase(fast), kPersistentBytes,
                                                                     ArenaBase(fast, slow), kArenaBytes);
#else
  static tflite::NonPersistentArenaBufferAllocator tensors(ArenaBase(fast, slow), kArenaBytes);
  static BoundedPlanner<tflite::GreedyMemoryPlanner> planner;
  static TwoMemoriesAllocator<tflite::MicroAllocator> made(&persistent, &tensors, &planner);
  tflite::MicroAllocator* allocator = &made;
#endif
  static tflite::MicroMutableOpResolver<kOperatorKinds> resolver;
  if (!RegisterOperators(resolver)) return 3;
  static tflite::MicroInterpreter interpreter(tflite::GetModel(model), resolver, allocator);
  if (interpreter.AllocateTensors() != kTfLiteOk) return 4;
  for (size_t input = 0; input < interpreter.inputs_size(); ++input) {
    TfLiteTensor* tensor = interpreter.input(input);
    for (size_t place = 0; place < tensor->bytes; ++place) tensor->data.uint8[place] = place * 37 + 11;
  }
  if (interpreter.Invoke() != kTfLiteOk) return 5;
  uint32_t hash = 2166136261u;
  for (size_t output = 0; output < interpreter.outputs_size(); ++output) {
    const TfLiteTensor* tensor = interpreter.output(output);
    for (size_t place = 0; place < tensor->bytes; ++place) hash = (hash ^ tensor->data.uint8[place]) * 16777619u;
  }
  printf("persistent %u outputs %08x\n", static_cast<unsigned>(persistent.GetPersistentUsedBytes()),
         static_cast<unsigned>(hash));
  return 0;
}
