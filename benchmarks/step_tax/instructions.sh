#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Instructions per step, kernels included, of the trainer and of the loop written by hand: valgrind counts two lengths of
# each, and the difference is what the steps between cost.
set -euo pipefail
program=$1/benchmarks/step_tax/step
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

count() { # side layers steps
  OMP_NUM_THREADS=1 valgrind --tool=callgrind --callgrind-out-file="$scratch/out" "$program" "$@" 2>&1 |
    sed -n 's/.*refs: *\([0-9,]*\).*/\1/p' | tr -d ,
}

for layers in 4 16; do
  hand=$(($(count hand $layers 220) - $(count hand $layers 20)))
  trainer=$(($(count trainer $layers 220) - $(count trainer $layers 20)))
  awk -v l=$layers -v h=$hand -v t=$trainer \
    'BEGIN { printf "%2d layers 8x8: instructions per step: trainer %.0f, hand-written %.0f, ratio %.3f (reach 1.02)\n", l, t / 200, h / 200, t / h }'
done
