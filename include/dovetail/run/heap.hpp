// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <malloc.h>

#include <cstdlib>
#include <initializer_list>

namespace dovetail {

/// Lets the C library keep what a step frees, as the next step takes the same again: by default glibc gives the end of
/// its heap back to the kernel at every step, which then fills each page with zeros anew. Up to 2 GiB at the end of the
/// heap stay; blocks above 32 MiB are given back as ever. Whoever has chosen by MALLOC_... or GLIBC_TUNABLES keeps
/// their choice, and other allocators do not notice.
inline void keep_freed_memory() {
  for (const char* chosen : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"})
    if (std::getenv(chosen)) return;
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // what glibc itself goes up to
  ::mallopt(M_TRIM_THRESHOLD, 0x7fffffff);
#endif
}

}  // namespace dovetail
