# SPDX-License-Identifier: Apache-2.0
#
# How the tests, examples and benchmarks of this repository are compiled: warnings, compiler cache, linker, one
# precompiled header. None of it reaches a project that uses Dovetail.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

add_compile_options(-Wall -Wextra -fdiagnostics-color=auto)

find_program(DOVETAIL_MOLD mold)
if(DOVETAIL_MOLD AND NOT CMAKE_LINKER_TYPE)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold DOVETAIL_LINKS_WITH_MOLD)
  if(DOVETAIL_LINKS_WITH_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()

# The cache works across clones (paths below the source folder are made relative) and beside the precompiled header.
find_program(DOVETAIL_CCACHE ccache)
if(DOVETAIL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_NOHASHDIR=1 "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${DOVETAIL_CCACHE}")
endif()

if(DOVETAIL_CUDA)
  set(dovetail_target dovetail::cuda)
else()
  set(dovetail_target dovetail::dovetail)
endif()

# LibTorch's headers take 20 s and 1.5 GB for each unit, 7 s with this.
if(DOVETAIL_PCH AND NOT DOVETAIL_CORE_ONLY)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)  # what ccache needs to cache units that use it
  else()
    add_compile_options("SHELL:-Xclang -fno-pch-timestamp")
  endif()
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/pch/dovetail_pch.cpp" CONTENT "// Compiled for its precompiled header.\n")
  add_library(dovetail_pch OBJECT "${CMAKE_BINARY_DIR}/pch/dovetail_pch.cpp")
  target_link_libraries(dovetail_pch PRIVATE ${dovetail_target})
  target_precompile_headers(dovetail_pch PRIVATE
    <torch/torch.h>
    <torch/csrc/autograd/function.h>
    <torch/csrc/autograd/functions/accumulate_grad.h>
    <torch/csrc/autograd/variable.h>
    <torch/csrc/distributed/c10d/FileStore.hpp>
    <torch/csrc/distributed/c10d/PrefixStore.hpp>
    <torch/csrc/distributed/c10d/ProcessGroup.hpp>
    <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
    <torch/csrc/distributed/c10d/TCPStore.hpp>
    <ATen/autocast_mode.h>)
endif()

# dovetail_program(NAME SOURCES file... [LIBRARIES target...]): a program with Dovetail and the precompiled header.
function(dovetail_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${dovetail_target} ${arg_LIBRARIES})
  if(TARGET dovetail_pch)
    target_precompile_headers(${name} REUSE_FROM dovetail_pch)
  endif()
endfunction()
