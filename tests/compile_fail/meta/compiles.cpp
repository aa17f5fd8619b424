// SPDX-License-Identifier: Apache-2.0
// driver: the broken half compiles
// expect: dovetail-E001
#ifdef DOVETAIL_BROKEN
static_assert(true, "dovetail-E001: never said");
#endif
