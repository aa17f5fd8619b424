# SPDX-License-Identifier: Apache-2.0
"""What dovetail.hpp costs a compiler: its peak memory, over that for torch/torch.h alone. Memory repeats where time
does not.

python3 memory.py COMPILER FLAGS_FILE [BUDGET]     fails where the ratio is above the budget
"""

import os
import subprocess
import sys


def peak(compiler, flags, header):
    """MB of the compiler's largest process."""
    command = [compiler, f"@{flags}", "-w", "-fsyntax-only", "-x", "c++", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    process.stdin.write(f"#include <{header}>\n".encode())
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)  # of the driver and all that it waited for
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{header} does not compile")
    return usage.ru_maxrss / 1024


def main():
    compiler, flags, *budget = sys.argv[1:]
    torch, ours = (peak(compiler, flags, header) for header in ("torch/torch.h", "dovetail/dovetail.hpp"))
    limit = f"budget {budget[0]}" if budget else "reach 1.15"
    print(f"peak memory, dovetail.hpp / torch/torch.h: {ours:.0f} MB / {torch:.0f} MB = {ours / torch:.3f} ({limit})")
    return 1 if budget and ours > float(budget[0]) * torch else 0


if __name__ == "__main__":
    sys.exit(main())
