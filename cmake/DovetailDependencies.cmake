# SPDX-License-Identifier: Apache-2.0
#
# What Dovetail's two targets need besides LibTorch. Used by the build and by the installed package alike.

set(_dovetail_module_dir "${CMAKE_CURRENT_LIST_DIR}")

# Boost::headers, 1.76 or newer (Hana 1.7); packages without CMake files are found by their headers.
macro(dovetail_find_boost)
  if(NOT TARGET Boost::headers)
    find_package(Boost 1.76 CONFIG QUIET)
  endif()
  if(NOT TARGET Boost::headers)
    find_path(DOVETAIL_BOOST_INCLUDE_DIR boost/hana.hpp)
    set(_dovetail_boost 0)
    if(DOVETAIL_BOOST_INCLUDE_DIR)
      file(STRINGS "${DOVETAIL_BOOST_INCLUDE_DIR}/boost/version.hpp" _dovetail_boost REGEX "define BOOST_VERSION [0-9]+")
      string(REGEX MATCH "[0-9]+" _dovetail_boost "${_dovetail_boost}")
    endif()
    if(_dovetail_boost LESS 107600)
      message(FATAL_ERROR "Dovetail needs the headers of Boost 1.76 or newer: apt-get install libboost1.81-dev "
        "(Debian 12), libboost1.83-dev (Ubuntu 24.04, Debian 13).")
    endif()
    add_library(Boost::headers INTERFACE IMPORTED)
    target_include_directories(Boost::headers INTERFACE "${DOVETAIL_BOOST_INCLUDE_DIR}")
  endif()
endmacro()

# What dovetail::dovetail links besides core: LibTorch, zlib, threads, and the headers of Gloo.
macro(dovetail_find_libraries)
  list(PREPEND CMAKE_MODULE_PATH "${_dovetail_module_dir}")
  find_package(LibTorch REQUIRED)
  find_package(ZLIB REQUIRED)
  find_package(Threads REQUIRED)
  find_path(DOVETAIL_GLOO_INCLUDE_DIR gloo/transport/device.h HINTS "${LibTorch_ROOT}/include")
  if(NOT DOVETAIL_GLOO_INCLUDE_DIR)
    message(FATAL_ERROR "Dovetail needs the headers of Gloo, which LibTorch does not carry: apt-get install libgloo-dev.")
  endif()
endmacro()

# dovetail::cuda: dovetail::dovetail for runs on NVIDIA's GPUs. A program links one or the other.
macro(dovetail_find_cuda)
  find_package(LibTorch REQUIRED COMPONENTS cuda)
  if(NOT TARGET dovetail::cuda)
    add_library(dovetail::cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(dovetail::cuda INTERFACE dovetail::dovetail dovetail::libtorch_cuda)
  endif()
endmacro()
