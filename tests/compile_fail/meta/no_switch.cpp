// SPDX-License-Identifier: Apache-2.0
// driver: the case never looks at DOVETAIL_BROKEN
// expect: dovetail-E001
static_assert(true, "dovetail-E001: the same in both halves");
