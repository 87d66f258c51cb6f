# downset_add_model(NAME MODEL [KERNELS NAME@VERSION] [RAM SIZE] [OPTIONS OPTION...])
#
# Adds a static library NAME that holds the .tflite file MODEL, fitted for TFLite Micro when the build runs. Its header
# NAME.h declares the model, the size of its arena and its operators; targets that link NAME find it.
#
#   KERNELS   the library of kernels that the firmware runs, as for `downset fit --kernels`
#   RAM       the build fails where the model is not known to fit into so many bytes, for example 256KB
#   OPTIONS   further options of `downset fit`
#
# Include it from the installed package:
#   execute_process(COMMAND python3 -m downset.integrations.cmake OUTPUT_VARIABLE DOWNSET_CMAKE OUTPUT_STRIP_TRAILING_WHITESPACE)
#   include(${DOWNSET_CMAKE})

cmake_minimum_required(VERSION 3.19)
find_program(DOWNSET_EXECUTABLE downset)

function(downset_add_model name model)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "KERNELS;RAM" "OPTIONS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "downset_add_model: unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT DOWNSET_EXECUTABLE)
    message(FATAL_ERROR "downset_add_model: the command downset is not found; install it, or set DOWNSET_EXECUTABLE")
  endif()
  get_filename_component(model "${model}" ABSOLUTE)
  if(NOT EXISTS "${model}")
    message(FATAL_ERROR "downset_add_model: ${model} does not exist")
  endif()
  set(options ${arg_OPTIONS})
  if(arg_KERNELS)
    list(APPEND options --kernels ${arg_KERNELS})
  endif()
  if(arg_RAM)
    list(APPEND options --ram ${arg_RAM})
  endif()
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/${name}.downset")
  file(MAKE_DIRECTORY "${folder}")
  add_custom_command(
    OUTPUT "${folder}/${name}.cc" "${folder}/${name}.h" "${folder}/${name}.tflite"
    COMMAND "${DOWNSET_EXECUTABLE}" fit "${model}" -o "${folder}/${name}.tflite" --header "${folder}/${name}.cc"
            --quiet ${options}
    DEPENDS "${model}"
    COMMENT "Fitting ${model}"
    VERBATIM)
  add_library(${name} STATIC "${folder}/${name}.cc" "${folder}/${name}.h")
  target_include_directories(${name} PUBLIC "${folder}")
endfunction()
