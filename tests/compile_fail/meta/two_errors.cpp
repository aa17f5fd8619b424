// SPDX-License-Identifier: Apache-2.0
// driver: 2 errors instead of one
// expect: dovetail-E001
#ifdef DOVETAIL_BROKEN
static_assert(false, "dovetail-E001: expected");
static_assert(false, "a follow-up");
#endif
