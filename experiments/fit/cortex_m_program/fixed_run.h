// What the programs for emulated boards share: the functions that TFLite Micro asks of a platform, fixed inputs, and a
// hash of the outputs. For one source file of a program.
#ifndef DOWNSET_FIXED_RUN_H_
#define DOWNSET_FIXED_RUN_H_

#include <cstdarg>
#include <cstdint>
#include <cstdio>

#include "tensorflow/lite/micro/micro_interpreter.h"

extern "C" void DebugLog(const char* format, va_list arguments) { vprintf(format, arguments); }
extern "C" int DebugVsnprintf(char* buffer, size_t size, const char* format, va_list arguments) {
  return vsnprintf(buffer, size, format, arguments);
}
namespace tflite {
void InitializeTarget() {}
uint32_t ticks_per_second() { return 0; }
uint32_t GetCurrentTimeTicks() { return 0; }
}  // namespace tflite

inline void FillInputs(tflite::MicroInterpreter& interpreter) {
  for (size_t input = 0; input < interpreter.inputs_size(); ++input) {
    TfLiteTensor* tensor = interpreter.input(input);
    for (size_t place = 0; place < tensor->bytes; ++place) tensor->data.uint8[place] = place * 37 + 11;
  }
}

inline uint32_t HashOfOutputs(tflite::MicroInterpreter& interpreter) {
  uint32_t hash = 2166136261u;
  for (size_t output = 0; output < interpreter.outputs_size(); ++output) {
    const TfLiteTensor* tensor = interpreter.output(output);
    for (size_t place = 0; place < tensor->bytes; ++place) hash = (hash ^ tensor->data.uint8[place]) * 16777619u;
  }
  return hash;
}

#endif  // DOWNSET_FIXED_RUN_H_
