# SPDX-License-Identifier: Apache-2.0
#
# Dovetail from another CMake project: installed, and as a subfolder. Each consumer is configured, built and run.

cmake_minimum_required(VERSION 3.25)

set(work "${BUILD_DIR}/tests/package")
set(prefix "${work}/installed")
file(REMOVE_RECURSE "${work}")

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE printed ERROR_VARIABLE printed)
  if(NOT result EQUAL 0)
    string(REPLACE "\n" "\n  " printed "${printed}")  # CMake leaves indented lines as they are
    message(FATAL_ERROR "${what} failed:\n  ${printed}")
  endif()
  set(printed "${printed}" PARENT_SCOPE)
endfunction()

# consumer(NAME EXPECTED ARGUMENTS...) builds tests/package/NAME and looks for EXPECTED in what it prints.
function(consumer name expected)
  set(launcher "")
  if(LAUNCHER)
    set(launcher "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
  endif()
  run("configuring ${name}" "${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_LIST_DIR}/${name}" -B "${work}/${name}"
    "-DCMAKE_CXX_COMPILER=${COMPILER}" ${launcher} ${ARGN})
  run("building ${name}" "${CMAKE_COMMAND}" --build "${work}/${name}")
  run("running ${name}" "${work}/${name}/consumer")
  if(NOT printed MATCHES "${expected}")
    message(FATAL_ERROR "${name} prints '${printed}', not '${expected}'")
  endif()
  message(STATUS "${name}: ${printed}")
endfunction()

run("installing" "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")
file(GLOB_RECURSE package_files "${prefix}/share/cmake/dovetail/*.cmake")
foreach(file IN LISTS package_files)
  file(READ "${file}" text)
  if(text MATCHES "${SOURCE_DIR}/(include|cmake)")
    message(FATAL_ERROR "${file} names the source folder")
  endif()
endforeach()

# Without LibTorch anywhere: the consumer must not look for it.
consumer(core "fsdp with bf16-mixed: yes, with apex-o2: no" "-Ddovetail_ROOT=${prefix}")
consumer(subfolder "fsdp with bf16-mixed: yes, with apex-o2: no" "-DDOVETAIL_SOURCE=${SOURCE_DIR}")
if(NOT CORE_ONLY)
  consumer(trainer "trained on 2.1[1-5]" "-Ddovetail_ROOT=${prefix}")
endif()
