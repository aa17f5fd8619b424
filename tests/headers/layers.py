# SPDX-License-Identifier: Apache-2.0
"""Includes point down the list of layers only, and what decides does without LibTorch.

python3 layers.py INCLUDE_FOLDER
"""

import sys

from includes import Headers

# Lowest first. Folders of one row do not see each other, but launch, which sees core. The torch-free halves of the
# policies (strategy/x.hpp, precision/x.hpp: name, traits, options) come right after what decides about them.
LAYERS = [
    ["core", "launch"],
    ["torch-free halves"],
    ["comm"],
    ["optim"],
    ["shard"],
    ["run"],
    ["precision"],
    ["strategy"],
    ["data", "checkpoint"],
    ["loop"],
    ["callback", "logger"],
    ["default_observers.hpp"],
    ["policies.hpp", "registry.hpp"],
    ["trainer.hpp", "fabric.hpp"],
    ["dispatch.hpp"],
    ["dovetail.hpp"],
    ["testing"],
]
LEVEL = {part: level for level, row in enumerate(LAYERS) for part in row}
PEERS = {("launch", "core"), ("fabric.hpp", "trainer.hpp")}


def main():
    headers = Headers(sys.argv[1])
    halves = headers.policy_halves()

    def part(header):
        return "torch-free halves" if header in halves else header.split("/")[0]

    wrong, edges = [], 0
    for header, included in headers.inside.items():
        here = part(header)
        if here not in LEVEL:
            wrong.append(f"{header}: no layer is called {here}")
            continue
        for name in included:
            edges += 1
            there = part(name)
            if name not in headers.inside or there not in LEVEL:
                wrong.append(f"{header} includes {name}, which is not there or in no layer")
            elif not (here == there or LEVEL[there] < LEVEL[here] or (here, there) in PEERS):
                wrong.append(f"{header} includes {name}, which is not below it")
            elif header == "registry.hpp" and there not in ("core", "launch") and name not in halves:
                wrong.append(f"{header} includes {name}, which is not core, launch or a torch-free half")
    torch_free = headers.torch_free()
    for header in sorted(torch_free):
        way = headers.way_to_libtorch(header)
        if way:
            wrong.append(f"{header} has to be torch-free, but {way[0]} includes {way[1]}")
    for line in wrong:
        print(line)
    print(
        f"{len(headers.inside)} headers in {len({part(h) for h in headers.inside})} parts, {edges} includes point down; "
        f"{len(torch_free)} headers without LibTorch, {len(halves)} of them halves of policies"
    )
    return 1 if wrong or not edges or not torch_free else 0


if __name__ == "__main__":
    sys.exit(main())
