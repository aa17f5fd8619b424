// SPDX-License-Identifier: Apache-2.0
// driver: the first error does not say 'dovetail-E999'
// expect: dovetail-E999
#ifdef DOVETAIL_BROKEN
static_assert(false, "dovetail-E001: another one");
#endif
