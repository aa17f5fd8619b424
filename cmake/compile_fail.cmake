# SPDX-License-Identifier: Apache-2.0
#
# The compile-fail driver: one case with one compiler.
#
#   cmake -DCASE=file.cpp -DCOMPILER=g++ -DFLAGS=flags.rsp [-DOUTPUT=report.txt] -P compile_fail.cmake
#
# CASE holds a control and one or more broken versions, switched by the macro DOVETAIL_BROKEN, and these comments:
#
#   // expect: dovetail-E001         needed: what the first error line has to hold; the n-th of several is for
#                                    DOVETAIL_BROKEN == n
#   // forbid: no member named       any number: what the compiler must not print
#   // max-lines: 14                 the most lines that the compiler may print (14)
#
# The control half must compile without a warning. A broken half must fail, with `expect` in the first line that has
# "error:", and with no other such line. FLAGS is a file of compiler arguments. OUTPUT receives what the compiler prints
# for the broken versions, one after the other, with paths relative to SOURCE_DIR where that is given.

cmake_minimum_required(VERSION 3.25)

# Sets `out` to the values of "// key: value" comments, one a line.
function(read_comments out key)
  string(REGEX MATCHALL "\n *// ${key}: [^\n]*" lines "\n${case_text}")
  list(TRANSFORM lines REPLACE "^\n *// ${key}: *" "")
  set(${out} "${lines}" PARENT_SCOPE)
endfunction()

function(fail reason)
  string(REPLACE "\n" "\n  " printed "${ARGN}")  # CMake leaves indented lines as they are
  message(FATAL_ERROR "${CASE} with ${COMPILER}: ${reason}\n  ${printed}")
endfunction()

# Compiles the case; sets `result` and `printed`.
function(compile)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env LC_ALL=C ${COMPILER} "@${FLAGS}" -fsyntax-only -fdiagnostics-color=never
      ${caret_flag} ${ARGN} "${CASE}"
    RESULT_VARIABLE result OUTPUT_VARIABLE printed ERROR_VARIABLE printed)
  set(result "${result}" PARENT_SCOPE)
  set(printed "${printed}" PARENT_SCOPE)
endfunction()

execute_process(COMMAND ${COMPILER} --version OUTPUT_VARIABLE version ERROR_QUIET)
if(version MATCHES "clang")
  set(caret_flag -fno-caret-diagnostics)
else()
  set(caret_flag -fno-diagnostics-show-caret)
endif()

# Brackets and semicolons mean something in CMake's lists, and nothing in what is compared here.
file(READ "${CASE}" case_text)
string(REGEX REPLACE "[][;]" " " case_text "${case_text}")
read_comments(expected "expect")
read_comments(forbidden "forbid")
read_comments(max_lines "max-lines")
if(NOT max_lines)
  set(max_lines 14)
endif()
if(NOT expected)
  fail("the case needs an '// expect:' comment")
endif()
if(NOT case_text MATCHES "#if[^\n]*DOVETAIL_BROKEN")
  fail("the case never looks at DOVETAIL_BROKEN")
endif()

compile(-Wall -Wextra -Werror)
if(NOT result EQUAL 0)
  fail("the control half does not compile" "${printed}")
endif()

set(half 0)
set(report "")
foreach(wanted IN LISTS expected)
  math(EXPR half "${half} + 1")
  compile(-Wall -Wextra -DDOVETAIL_BROKEN=${half})
  if(SOURCE_DIR)
    string(REPLACE "${SOURCE_DIR}/" "" printed "${printed}")
  endif()
  string(APPEND report "${printed}")
  if(OUTPUT)
    file(WRITE "${OUTPUT}" "${report}")
  endif()
  if(result EQUAL 0)
    fail("the broken half compiles, which should say '${wanted}'")
  endif()

  string(REGEX REPLACE "[][;]" " " text "${printed}")
  string(REGEX MATCHALL "[^\n]*error:[^\n]*" errors "${text}")
  string(REGEX MATCHALL "[^\n]*\n" lines "${text}")
  list(LENGTH errors error_count)
  list(LENGTH lines line_count)
  if(error_count EQUAL 0)
    fail("the compiler failed without an error line" "${printed}")
  endif()
  list(GET errors 0 first)
  string(FIND "${first}" "${wanted}" position)
  if(position EQUAL -1)
    fail("the first error does not say '${wanted}'" "${printed}")
  endif()
  if(error_count GREATER 1)
    fail("${error_count} errors instead of one" "${printed}")
  endif()
  foreach(words IN LISTS forbidden)
    string(FIND "${text}" "${words}" position)
    if(NOT position EQUAL -1)
      fail("the compiler prints '${words}'" "${printed}")
    endif()
  endforeach()
  if(line_count GREATER max_lines)
    fail("${line_count} lines, at most ${max_lines} are allowed" "${printed}")
  endif()
  message(STATUS "${wanted}: one error, ${line_count} lines")
endforeach()
