// SPDX-License-Identifier: Apache-2.0
// The program of README.md with the pair that it says does not compile; the README shows what is printed here.
// expect: dovetail-E001
// forbid: no member named
// forbid: no matching function
// max-lines: 14
#ifdef DOVETAIL_BROKEN
#define PRECISION dt::Apex<dt::O2>
#else
#define PRECISION dt::BF16Mixed
#endif
#include "../../../examples/readme_program.cpp"
