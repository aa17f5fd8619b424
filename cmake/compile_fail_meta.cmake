# SPDX-License-Identifier: Apache-2.0
#
# Keeps the compile-fail driver honest: CASE has a comment "// driver: words", and the driver must fail on it with these.
#
#   cmake -DCASE=file.cpp -DCOMPILER=g++ -DFLAGS=flags.rsp -P compile_fail_meta.cmake

cmake_minimum_required(VERSION 3.25)

file(STRINGS "${CASE}" words REGEX "^// driver: ")
string(REGEX REPLACE "^// driver: *" "" words "${words}")
if(NOT words)
  message(FATAL_ERROR "${CASE} needs a '// driver:' comment")
endif()
execute_process(
  COMMAND "${CMAKE_COMMAND}" "-DCASE=${CASE}" "-DCOMPILER=${COMPILER}" "-DFLAGS=${FLAGS}"
    -P "${CMAKE_CURRENT_LIST_DIR}/compile_fail.cmake"
  RESULT_VARIABLE result OUTPUT_VARIABLE printed ERROR_VARIABLE printed)
if(result EQUAL 0)
  message(FATAL_ERROR "the driver accepts ${CASE}, but should say: ${words}")
endif()
string(REGEX REPLACE "[ \n]+" " " printed "${printed}")
string(FIND "${printed}" "${words}" position)
if(position EQUAL -1)
  message(FATAL_ERROR "the driver refuses ${CASE}, but does not say: ${words}\n${printed}")
endif()
message(STATUS "the driver says: ${words}")
