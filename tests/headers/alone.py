# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone, twice in a row, without a warning.

python3 alone.py INCLUDE_FOLDER COMPILER FLAGS_FILE JOBS free|torch

`free`: the headers that reach no LibTorch, compiled with flags that cannot find it. `torch`: the others.
"""

import concurrent.futures
import subprocess
import sys

from includes import Headers


def main():
    include_folder, compiler, flags, jobs, which = sys.argv[1:]
    headers = Headers(include_folder)
    chosen = [header for header in headers.inside if (headers.way_to_libtorch(header) is None) == (which == "free")]

    def compile_alone(header):
        line = f"#include <dovetail/{header}>\n"
        command = [compiler, f"@{flags}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", "-"]
        return subprocess.run(command, input=line * 2, capture_output=True, text=True, check=False)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(jobs)) as pool:
        for header, result in zip(chosen, pool.map(compile_alone, chosen)):
            if result.returncode != 0:
                failed += 1
                print(f"{header} does not compile alone:\n{result.stderr}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} headers compile alone ({which})")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
