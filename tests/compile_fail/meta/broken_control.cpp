// SPDX-License-Identifier: Apache-2.0
// driver: the control half does not compile
// expect: dovetail-E001
#ifdef DOVETAIL_BROKEN
static_assert(false, "dovetail-E001: expected");
#else
int unused_variable_is_a_warning() {
  int value = 1;
  return 0;
}
#endif
