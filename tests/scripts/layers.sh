#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The layer test notices what it is there for: headers that are wrong on purpose.
set -euo pipefail

layers=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../headers" && pwd)/layers.py
tree=$PWD/include/dovetail
checked=0

header() { # header NAME INCLUDED...
  mkdir -p "$(dirname -- "$tree/$1")"
  printf '#include <%s>\n' "${@:2}" >"$tree/$1"
}

right_tree() {
  rm -rf -- "$PWD/include"
  header core/traits.hpp string_view
  header launch/error.hpp string
  header strategy/ddp.hpp dovetail/core/traits.hpp
  header strategy/ddp_run.hpp dovetail/strategy/ddp.hpp dovetail/comm/communicator.hpp
  header comm/communicator.hpp torch/types.h dovetail/launch/error.hpp
  header registry.hpp dovetail/strategy/ddp.hpp
}

# refused WORDS: the tree as it is now is refused with these.
refused() {
  local printed
  if printed=$(python3 "$layers" "$PWD/include" 2>&1) || [[ $printed != *"$1"* ]]; then
    printf 'expected a refusal with: %s\ngot: %s\n' "$1" "$printed"
    exit 1
  fi
  checked=$((checked + 1))
}

right_tree
python3 "$layers" "$PWD/include"

header comm/communicator.hpp dovetail/strategy/ddp_run.hpp
refused "comm/communicator.hpp includes strategy/ddp_run.hpp, which is not below it"
right_tree
header core/traits.hpp dovetail/launch/error.hpp
refused "core/traits.hpp includes launch/error.hpp, which is not below it"
right_tree
header core/traits.hpp ATen/core/Tensor.h
refused "core/traits.hpp has to be torch-free, but core/traits.hpp includes ATen/core/Tensor.h"
right_tree
header strategy/ddp.hpp dovetail/comm/communicator.hpp
refused "strategy/ddp.hpp includes comm/communicator.hpp, which is not below it"
right_tree
header registry.hpp dovetail/comm/communicator.hpp
refused "registry.hpp has to be torch-free, but comm/communicator.hpp includes torch/types.h"
right_tree
header extra/thing.hpp string
refused "extra/thing.hpp: no layer is called extra"
right_tree
header comm/communicator.hpp dovetail/launch/nowhere.hpp
refused "comm/communicator.hpp includes launch/nowhere.hpp, which is not there"

rm -rf -- "$PWD/include"
echo "$checked wrong trees refused"
