#!/bin/bash
# Builds and runs the program on an emulated Cortex-M4 with two memories and nothing between them:
#   build.sh SOURCES HEADER.h FAST SLOW [plain]
#
# HEADER.h is what `downset fit MODEL.tflite --fast SIZE --slow SIZE --distance SLOW-FAST --kernels reference -o OUT.tflite
# --header HEADER.h` wrote. FAST and SLOW: addresses within the SRAM of mps2-an386 (0x20200000 to 0x203fffff; the program
# itself has the half below) and its PSRAM (0x21000000 to 0x21ffffff). plain: with MicroAllocator::Create.
# SOURCES as for ../cortex_m_program/build.sh, without cmsis_nn/, and signal/ of tensorflow/tflite-micro.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
header=$(realpath "$2")
name=$(basename "$header" .h)
objects=$(mktemp -d)
cd "$1"
cpu="-mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16"
common="$cpu -mthumb -O1 -w -ffunction-sections -fdata-sections -funsigned-char -fno-exceptions -DNDEBUG
  -DTF_LITE_STATIC_MEMORY -DTF_LITE_MCU_DEBUG_LOG -I. -Ithird_party/flatbuffers/include -Ithird_party/gemmlowp
  -Ithird_party/ruy -I$(dirname "$header")"
plus="-std=c++17 -fno-rtti -fno-threadsafe-statics"
lite=tensorflow/lite
sources=$(ls $lite/micro/*.cc $lite/micro/{arena_allocator,memory_planner,tflite_bridge,kernels}/*.cc $lite/core/api/*.cc \
  $lite/core/c/*.cc $lite/kernels/*.cc $lite/kernels/internal/*.cc $lite/kernels/internal/reference/*.cc \
  $lite/schema/*.cc tensorflow/compiler/mlir/lite/{core/api,schema}/*.cc 2>/dev/null |
  grep -vE "_test|test_|mock_|kernel_runner|fake_micro|debug_log|system_setup|micro_time")
[ -f lib.a ] || { for each in $sources; do
    echo "arm-none-eabi-g++ $common $plus -c $each -o $objects/${each//\//_}.o"
  done | tr '\n' '\0' | xargs -0 -P "$(nproc)" -I{} sh -c '{}'; arm-none-eabi-ar rcs lib.a "$objects"/*.o; }
program=$here/../cortex_m_program
arm-none-eabi-gcc $common -c "$program/start.c" -o "$objects/start.oo"
arm-none-eabi-g++ $common $plus -DFAST="$3" -DSLOW="$4" ${5:+-DPLAIN} -DHEADER="\"$name.h\"" \
  -DNAMESPACE="downset_$(sed -n 's/^namespace downset_\(.*\) {$/\1/p' "$header")" -c "$here/main.cc" -o "$objects/main.oo"
arm-none-eabi-cpp -P -DROM_BYTES=0x400000 -DRAM=0x20000000 -DRAM_BYTES=0x200000 "$program/memory.ld" -o "$objects/memory.ld"
arm-none-eabi-g++ $cpu -mthumb --specs=rdimon.specs -T "$objects/memory.ld" -Wl,--gc-sections "$objects/start.oo" \
  "$objects/main.oo" lib.a -lrdimon -o "$objects/program.elf"
timeout 60 qemu-system-arm -M mps2-an386 -nographic -monitor none -serial none \
  -semihosting-config enable=on,target=native -kernel "$objects/program.elf"
rm -r "$objects"
