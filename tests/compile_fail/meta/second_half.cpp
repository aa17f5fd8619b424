// SPDX-License-Identifier: Apache-2.0
// driver: the broken half compiles, which should say 'dovetail-E002'
// expect: dovetail-E001
// expect: dovetail-E002
#if DOVETAIL_BROKEN == 1
static_assert(false, "dovetail-E001: expected");
#endif
