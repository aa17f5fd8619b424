// SPDX-License-Identifier: Apache-2.0
// driver: lines, at most 1 are allowed
// expect: dovetail-E001
// max-lines: 1
#ifdef DOVETAIL_BROKEN
template <class T>
struct Report {
  static_assert(sizeof(T) == 0, "dovetail-E001: expected, with a line that names the instantiation");
};
Report<int> report;
#endif
