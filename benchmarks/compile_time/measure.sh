#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What including and instantiating Dovetail costs, as user time of the compiler, the sides in turn. $1 is a build folder
# that was configured; its compile flags are used.
set -euo pipefail
flags=$1/tests/torch.rsp
[[ -e $flags ]] || flags=$(dirname "$1")/dev/tests/torch.rsp
[[ -e $flags ]] || { echo "run ./tests/run once: it writes the compile flags" >&2; exit 2; }
compiler=${CXX:-g++}
rounds=${ROUNDS:-3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

user_time() { # file [flags] -> seconds
  local TIMEFORMAT=%U
  { time "$compiler" "@$flags" "${@:2}" -fsyntax-only "$1" >/dev/null 2>&1; } 2>&1
}
median() { sort -n | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

echo '#include <torch/torch.h>' >"$scratch/torch.cpp"
echo '#include <dovetail/dovetail.hpp>' >"$scratch/dovetail.cpp"
echo '#include <boost/hana.hpp>' >"$scratch/hana.cpp"
{
  for header in concepts describe hook_report report rules setup_graph start_rules traits verdict; do echo "#include <dovetail/core/$header.hpp>"; done
} >"$scratch/core.cpp"

# One Task, trained by one trainer or by all trainers of fp32, bf16-mixed and master-bf16.
for n in 1 9; do
  {
    echo '#include <dovetail/dovetail.hpp>'
    echo 'namespace dt = dovetail;'
    echo 'struct Task { auto configure_model() const { return torch::nn::Linear(1, 1); }'
    echo '  auto configure_optimizers(const dt::Parameters& p) const { return dt::SGD(p, {.lr = 0.1}); }'
    echo '  torch::Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& b, dt::StepContext&) const { return net.forward(b.data).mean(); } };'
    echo 'void train(const dt::TensorDataset& data) {'
    i=0
    for strategy in SingleDevice DDP FSDP; do for precision in FP32 BF16Mixed 'MasterWeights<dt::BF16>'; do
      i=$((i + 1)); ((i <= n)) && echo "  dt::Trainer<dt::$strategy, dt::$precision>().fit(Task{}, data);"
    done; done
    echo '}'
  } >"$scratch/trainers_$n.cpp"
done

for name in torch dovetail hana core; do : >"$scratch/$name.times"; done
for ((round = 0; round < rounds; ++round)); do
  for name in torch dovetail hana core; do user_time "$scratch/$name.cpp" >>"$scratch/$name.times"; done
  for n in 1 9; do { local_time=$( { TIMEFORMAT=%U; time "$compiler" "@$flags" -O0 -c -o /dev/null "$scratch/trainers_$n.cpp"; } 2>&1 | tail -n 1); echo "$local_time"; } >>"$scratch/trainers_$n.times"; done
done
torch=$(median <"$scratch/torch.times") ours=$(median <"$scratch/dovetail.times")
awk -v t="$torch" -v d="$ours" 'BEGIN { printf "dovetail.hpp / torch/torch.h: %.2f s / %.2f s = %.3f (reach 1.15)\n", d, t, d / t }'
awk -v a="$(median <"$scratch/trainers_1.times")" -v b="$(median <"$scratch/trainers_9.times")" \
  'BEGIN { printf "each further Trainer type fitted with the same Task: %.0f ms (reach 80)\n", (b - a) / 8 * 1000 }'
awk -v h="$(median <"$scratch/hana.times")" -v c="$(median <"$scratch/core.times")" \
  'BEGIN { printf "core/ without torch: %.2f s, bare Boost.Hana %.2f s (reach 0.6)\n", c, h }'
