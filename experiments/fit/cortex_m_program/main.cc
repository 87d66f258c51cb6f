// Loads the model that lies in memory at MODEL into TFLite Micro with an arena at ARENA, runs it once on fixed inputs,
// and prints the bytes of the arena and a hash of the outputs.
#include <cstdint>
#include <cstdio>

#include "fixed_run.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/micro/micro_resource_variable.h"
#include "tensorflow/lite/micro/recording_micro_interpreter.h"
#include "tensorflow/lite/schema/schema_generated.h"

constexpr size_t kArenaBytes = 8 << 20;
constexpr int kVariables = 16;

int main() {
  static tflite::MicroMutableOpResolver<48> operators;
  operators.AddAdd();
  operators.AddAssignVariable();
  operators.AddAveragePool2D();
  operators.AddCallOnce();
  operators.AddConcatenation();
  operators.AddConv2D();
  operators.AddDepthwiseConv2D();
  operators.AddDequantize();
  operators.AddFullyConnected();
  operators.AddLogistic();
  operators.AddMaxPool2D();
  operators.AddMean();
  operators.AddMul();
  operators.AddPad();
  operators.AddQuantize();
  operators.AddReadVariable();
  operators.AddRelu();
  operators.AddReshape();
  operators.AddSlice();
  operators.AddSoftmax();
  operators.AddSplit();
  operators.AddSplitV();
  operators.AddStridedSlice();
  operators.AddSvdf();
  operators.AddTranspose();
  operators.AddTransposeConv();
  operators.AddVarHandle();
  auto* allocator = tflite::RecordingMicroAllocator::Create(reinterpret_cast<uint8_t*>(ARENA), kArenaBytes);
  auto* variables = tflite::MicroResourceVariables::Create(allocator, kVariables);
  const tflite::Model* model = tflite::GetModel(reinterpret_cast<const void*>(MODEL));
  static tflite::RecordingMicroInterpreter interpreter(model, operators, allocator, variables);
  if (interpreter.AllocateTensors() != kTfLiteOk) return 1;
  FillInputs(interpreter);
  if (interpreter.Invoke() != kTfLiteOk) return 2;
  auto* taken = interpreter.GetMicroAllocator().GetSimpleMemoryAllocator();
  printf("used %u head %u tail %u outputs %08x\n", static_cast<unsigned>(interpreter.arena_used_bytes()),
         static_cast<unsigned>(taken->GetNonPersistentUsedBytes()),
         static_cast<unsigned>(taken->GetPersistentUsedBytes()), static_cast<unsigned>(HashOfOutputs(interpreter)));
  return 0;
}
