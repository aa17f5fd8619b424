// SPDX-License-Identifier: Apache-2.0
// driver: the compiler prints 'and what follows'
// expect: dovetail-E001
// forbid: and what follows
#ifdef DOVETAIL_BROKEN
static_assert(false, "dovetail-E001: expected, and what follows");
#endif
