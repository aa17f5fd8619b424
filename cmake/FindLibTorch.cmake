# SPDX-License-Identifier: Apache-2.0
#
# FindLibTorch: LibTorch as imported targets, without a CUDA toolkit and without Torch's own CMake files.
#
#   find_package(LibTorch)  ->  dovetail::libtorch   headers, definitions, torch_cpu, c10
#                               LibTorch_ROOT, LibTorch_VERSION
#   find_package(LibTorch COMPONENTS cuda)  ->  dovetail::libtorch_cuda   what LibTorch has for NVIDIA's GPUs, with the
#                               headers and libraries of CUDA and NCCL: those of the wheels beside LibTorch, else those of
#                               a toolkit (CUDA_HOME, /usr/local/cuda) and of the system. No compiler of CUDA's.
#
# Looked for, in this order (variables of CMake first, then of the environment):
#   LibTorch_ROOT, LIBTORCH     the folder that holds include/ and lib/
#   Torch_DIR                   the folder that holds TorchConfig.cmake
#   CMAKE_PREFIX_PATH           any of its folders, or one that Python's torch.utils.cmake_prefix_path names
#   .deps/venv                  what the run scripts of this repository install
#   LibTorch_HINT               what an installed Dovetail was built with
#
# TorchConfig.cmake is not used: for a build of torch with CUDA it stops where there is no CUDA toolkit, and it links
# libtorch_cuda into every program.

set(LibTorch_OLDEST 2.11)
set(LibTorch_NEWEST 2.15)

# Sets `out` to the LibTorch folder that `folder` is or belongs to, or leaves it alone.
function(_libtorch_try out folder)
  foreach(candidate IN ITEMS "${folder}" "${folder}/../.." "${folder}/../../..")
    if(EXISTS "${candidate}/lib/libtorch_cpu.so" AND EXISTS "${candidate}/include/ATen/core/Tensor.h")
      get_filename_component(candidate "${candidate}" REALPATH)
      set(${out} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# A folder that the user named must hold a LibTorch; a prefix path or the repository's own folder may.
set(_libtorch_found "")
foreach(_name IN ITEMS LibTorch_ROOT LIBTORCH Torch_DIR)
  foreach(_hint IN ITEMS "${${_name}}" "$ENV{${_name}}")
    if(_libtorch_found OR NOT _hint OR _hint MATCHES "-NOTFOUND$")
      continue()
    endif()
    _libtorch_try(_libtorch_found "${_hint}")
    if(NOT _libtorch_found)
      message(FATAL_ERROR "${_name} is '${_hint}', but there is no LibTorch in it (lib/libtorch_cpu.so and include/).")
    endif()
  endforeach()
endforeach()
if(NOT _libtorch_found)
  string(REPLACE ":" ";" _libtorch_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  file(GLOB _libtorch_venv "${CMAKE_CURRENT_LIST_DIR}/../.deps/venv/lib/python3*/site-packages/torch")
  foreach(_hint IN LISTS CMAKE_PREFIX_PATH _libtorch_prefixes _libtorch_venv LibTorch_HINT)
    if(NOT _libtorch_found)
      _libtorch_try(_libtorch_found "${_hint}")
    endif()
  endforeach()
endif()

set(LibTorch_VERSION "")
string(CONCAT _libtorch_reason "Set LIBTORCH to a LibTorch ${LibTorch_OLDEST} - ${LibTorch_NEWEST}, or run ./tests/run once: "
  "it installs one under .deps/.")
if(_libtorch_found)
  foreach(_header IN ITEMS include/torch/headeronly/version.h include/torch/csrc/api/include/torch/version.h)
    if(NOT LibTorch_VERSION AND EXISTS "${_libtorch_found}/${_header}")
      file(STRINGS "${_libtorch_found}/${_header}" _lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
      list(JOIN _numbers "." LibTorch_VERSION)
    endif()
  endforeach()
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" _libtorch_minor "${LibTorch_VERSION}")
  if(NOT _libtorch_minor OR _libtorch_minor VERSION_LESS LibTorch_OLDEST OR _libtorch_minor VERSION_GREATER LibTorch_NEWEST)
    message(FATAL_ERROR "The LibTorch in ${_libtorch_found} is version '${LibTorch_VERSION}'; Dovetail needs "
      "${LibTorch_OLDEST} to ${LibTorch_NEWEST}. Set LIBTORCH to one of these, or unset it and run ./tests/run.")
  endif()
  # Kept, so that a later configure run without the environment's hint finds the same one.
  set(LibTorch_ROOT "${_libtorch_found}" CACHE PATH "The folder that holds LibTorch's include/ and lib/" FORCE)
endif()

# ---- CUDA and NCCL, where they are asked for.
if(_libtorch_found AND "cuda" IN_LIST LibTorch_FIND_COMPONENTS)
  file(GLOB _libtorch_includes LIST_DIRECTORIES true "${LibTorch_ROOT}/../nvidia/*/include")
  file(GLOB _libtorch_libraries LIST_DIRECTORIES true "${LibTorch_ROOT}/../nvidia/*/lib")
  set(_libtorch_toolkit $ENV{CUDA_HOME} /usr/local/cuda)
  set(_libtorch_missing "")
  foreach(_header IN ITEMS cuda_runtime_api.h cublas_v2.h cusparse.h cusolver_common.h nccl.h)
    string(MAKE_C_IDENTIFIER "LibTorch_${_header}" _variable)
    find_path(${_variable} ${_header} HINTS ${_libtorch_includes} ${_libtorch_toolkit} PATH_SUFFIXES include)
    mark_as_advanced(${_variable})
    if(${_variable})
      list(APPEND _libtorch_cuda_includes "${${_variable}}")
    else()
      list(APPEND _libtorch_missing ${_header})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES _libtorch_cuda_includes)
  # A wheel's libraries have no name without a version; those of the wheels go before a toolkit's.
  find_library(LibTorch_CUDART NAMES libcudart.so.13 libcudart.so.12 cudart NAMES_PER_DIR
    HINTS ${_libtorch_libraries} ${_libtorch_toolkit} PATH_SUFFIXES lib64 lib)
  find_library(LibTorch_NCCL NAMES libnccl.so.2 nccl NAMES_PER_DIR
    HINTS ${_libtorch_libraries} ${_libtorch_toolkit} PATH_SUFFIXES lib64 lib)
  mark_as_advanced(LibTorch_CUDART LibTorch_NCCL)
  foreach(_library IN ITEMS LibTorch_CUDART LibTorch_NCCL)
    if(NOT ${_library})
      string(REPLACE "LibTorch_" "lib" _name "${_library}")
      string(TOLOWER "${_name}" _name)
      list(APPEND _libtorch_missing ${_name})
    endif()
  endforeach()
  if(NOT EXISTS "${LibTorch_ROOT}/lib/libtorch_cuda.so")
    list(APPEND _libtorch_missing libtorch_cuda)
  endif()
  if(_libtorch_missing)
    list(JOIN _libtorch_missing ", " _libtorch_missing)
    string(CONCAT _libtorch_reason "For GPUs these are missing beside the LibTorch in ${LibTorch_ROOT}: ${_libtorch_missing}. "
      "./tests/gpu/run installs all of them under .deps/.")
  else()
    set(LibTorch_cuda_FOUND TRUE)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_ROOT
  VERSION_VAR LibTorch_VERSION
  HANDLE_COMPONENTS
  REASON_FAILURE_MESSAGE "${_libtorch_reason}")

if(LibTorch_FOUND AND NOT TARGET dovetail::libtorch)
  foreach(_library IN ITEMS c10 torch_cpu)
    add_library(dovetail::${_library} SHARED IMPORTED)
    set_target_properties(dovetail::${_library} PROPERTIES IMPORTED_LOCATION "${LibTorch_ROOT}/lib/lib${_library}.so")
  endforeach()
  add_library(dovetail::libtorch INTERFACE IMPORTED)
  target_include_directories(dovetail::libtorch SYSTEM INTERFACE
    "${LibTorch_ROOT}/include" "${LibTorch_ROOT}/include/torch/csrc/api/include")
  target_compile_definitions(dovetail::libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  target_link_libraries(dovetail::libtorch INTERFACE dovetail::torch_cpu dovetail::c10)
  # A wheel's libtorch_cpu needs CUDA's runtime at load time. Its own rpath finds it; the linker has to be told.
  file(GLOB _libtorch_wheels LIST_DIRECTORIES true "${LibTorch_ROOT}/../nvidia/*/lib")
  foreach(_folder IN LISTS _libtorch_wheels)
    get_filename_component(_folder "${_folder}" REALPATH)
    target_link_options(dovetail::libtorch INTERFACE "LINKER:-rpath-link,${_folder}")
  endforeach()
endif()

if(LibTorch_cuda_FOUND AND NOT TARGET dovetail::libtorch_cuda)
  foreach(_library IN ITEMS c10_cuda torch_cuda)
    add_library(dovetail::${_library} SHARED IMPORTED)
    set_target_properties(dovetail::${_library} PROPERTIES IMPORTED_LOCATION "${LibTorch_ROOT}/lib/lib${_library}.so")
  endforeach()
  add_library(dovetail::libtorch_cuda INTERFACE IMPORTED)
  target_include_directories(dovetail::libtorch_cuda SYSTEM INTERFACE ${_libtorch_cuda_includes})
  target_compile_definitions(dovetail::libtorch_cuda INTERFACE USE_CUDA USE_C10D_NCCL)
  target_link_libraries(dovetail::libtorch_cuda INTERFACE
    dovetail::torch_cuda dovetail::c10_cuda dovetail::libtorch "${LibTorch_CUDART}" "${LibTorch_NCCL}")
endif()
