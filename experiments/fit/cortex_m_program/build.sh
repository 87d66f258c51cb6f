#!/bin/bash
# Builds the program with CMSIS-NN's kernels: build.sh m4|m55 SOURCES OUTPUT.elf
#
# SOURCES is a folder with what is fetched for reading and measuring, and never committed:
#   tensorflow/  of tensorflow/tflite-micro 90b983c2, cmsis_nn/ (Include, Source) of ARM-software/CMSIS-NN 4ab83cc3,
#   third_party/ (flatbuffers, gemmlowp, ruy) of espressif/esp-tflite-micro 99f49e1c.
# Needs Debian's gcc-arm-none-eabi, libnewlib-arm-none-eabi and libstdc++-arm-none-eabi-newlib.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
output=$(realpath -m "$3")
case $1 in
  m4) cpu="-mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16"
      arena="-DARENA=0x21000000 -DMODEL=0x21800000"
      memory="-DROM_BYTES=0x400000 -DRAM=0x20000000 -DRAM_BYTES=0x400000" ;;
  m55) cpu="-mcpu=cortex-m55 -mfloat-abi=hard -mfpu=auto"
      arena="-DARENA=0x60000000 -DMODEL=0x61000000"
      memory="-DROM_BYTES=0x80000 -DRAM=0x21000000 -DRAM_BYTES=0x200000" ;;
esac
cd "$2"
objects=$(mktemp -d)
common="$cpu -mthumb -Os -w -ffunction-sections -fdata-sections -funsigned-char -fno-exceptions -DNDEBUG
  -DTF_LITE_STATIC_MEMORY -DTF_LITE_MCU_DEBUG_LOG -DCMSIS_NN -DARM_NN_ENABLE_F16=0 -DARM_NN_ENABLE_F32=0 -I. -Icmsis_nn
  -Icmsis_nn/Include -Ithird_party/flatbuffers/include -Ithird_party/gemmlowp -Ithird_party/ruy"
plus="-std=c++17 -fno-rtti -fno-threadsafe-statics"
lite=tensorflow/lite
sources=$(ls $lite/micro/*.cc $lite/micro/{arena_allocator,memory_planner,tflite_bridge,kernels,kernels/cmsis_nn}/*.cc \
  $lite/core/api/*.cc $lite/core/c/*.cc $lite/kernels/*.cc $lite/kernels/internal/*.cc \
  $lite/kernels/internal/reference/*.cc $lite/schema/*.cc tensorflow/compiler/mlir/lite/{core/api,schema}/*.cc \
  2>/dev/null | grep -vE "_test|test_|mock_|kernel_runner|fake_micro|debug_log|system_setup|micro_time")
for replaced in $lite/micro/kernels/cmsis_nn/*.cc; do
  sources=$(echo "$sources" | grep -v "^$lite/micro/kernels/$(basename "$replaced")$")
done
{ for each in $sources; do echo "arm-none-eabi-g++ $common $plus -c $each -o $objects/${each//\//_}.o"; done
  for each in $(find cmsis_nn/Source -name '*.c' | grep -vE "_f16.c|_f32.c|nntables_flt"); do
    echo "arm-none-eabi-gcc $common -Ofast -c $each -o $objects/${each//\//_}.o"
  done; } | tr '\n' '\0' | xargs -0 -P "$(nproc)" -I{} sh -c '{}'
arm-none-eabi-ar rcs "$objects/lib.a" "$objects"/*.o
arm-none-eabi-gcc $common -c "$here/start.c" -o "$objects/start.oo"
arm-none-eabi-g++ $common $plus $arena -c "$here/main.cc" -o "$objects/main.oo"
arm-none-eabi-cpp -P $memory "$here/memory.ld" -o "$objects/memory.ld"
arm-none-eabi-g++ $cpu -mthumb --specs=rdimon.specs -T "$objects/memory.ld" -Wl,--gc-sections \
  "$objects/start.oo" "$objects/main.oo" "$objects/lib.a" -lrdimon -o "$output"
rm -r "$objects"
