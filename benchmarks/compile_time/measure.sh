#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What including and instantiating Dovetail costs: user time of the compiler, the sides in turn, and for the include its
# peak memory, which repeats exactly. $1 is a build folder that was configured; its compile flags are used.
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

# One Task, trained by one trainer; by five, which bring in two more strategies and two more precisions; by nine, all
# pairs of these three strategies and three precisions.
pairs=(SingleDevice,FP32 DDP,FP32 FSDP,FP32 SingleDevice,BF16Mixed 'SingleDevice,MasterWeights<dt::BF16>'
  DDP,BF16Mixed FSDP,BF16Mixed 'DDP,MasterWeights<dt::BF16>' 'FSDP,MasterWeights<dt::BF16>')
for n in 1 5 9; do
  {
    echo '#include <dovetail/dovetail.hpp>'
    echo 'namespace dt = dovetail;'
    echo 'struct Task { auto configure_model() const { return torch::nn::Linear(1, 1); }'
    echo '  auto configure_optimizers(const dt::Parameters& p) const { return dt::SGD(p, {.lr = 0.1}); }'
    echo '  torch::Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& b, dt::StepContext&) const { return net.forward(b.data).mean(); } };'
    echo 'void train(const dt::TensorDataset& data) {'
    for pair in "${pairs[@]:0:n}"; do echo "  dt::Trainer<dt::${pair%%,*}, dt::${pair#*,}>().fit(Task{}, data);"; done
    echo '}'
  } >"$scratch/trainers_$n.cpp"
done

for name in torch dovetail hana core; do : >"$scratch/$name.times"; done
for ((round = 0; round < rounds; ++round)); do
  for name in torch dovetail hana core; do user_time "$scratch/$name.cpp" >>"$scratch/$name.times"; done
  for n in 1 5 9; do { local_time=$( { TIMEFORMAT=%U; time "$compiler" "@$flags" -O0 -c -o /dev/null "$scratch/trainers_$n.cpp"; } 2>&1 | tail -n 1); echo "$local_time"; } >>"$scratch/trainers_$n.times"; done
done
torch=$(median <"$scratch/torch.times") ours=$(median <"$scratch/dovetail.times")
awk -v t="$torch" -v d="$ours" 'BEGIN { printf "dovetail.hpp / torch/torch.h: %.2f s / %.2f s = %.3f (reach 1.15)\n", d, t, d / t }'
python3 "$(dirname "$0")/../../tests/headers/memory.py" "$compiler" "$flags"
one=$(median <"$scratch/trainers_1.times") five=$(median <"$scratch/trainers_5.times")
nine=$(median <"$scratch/trainers_9.times")
awk -v a="$five" -v b="$nine" 'BEGIN { printf "each further Trainer type, of policies in use: %.0f ms (reach 80)\n", (b - a) / 4 * 1000 }'
awk -v a="$one" -v b="$five" 'BEGIN { printf "each further policy, fitted with the same Task: %.0f ms\n", (b - a) / 4 * 1000 }'
awk -v h="$(median <"$scratch/hana.times")" -v c="$(median <"$scratch/core.times")" \
  'BEGIN { printf "core/ without torch: %.2f s, bare Boost.Hana %.2f s (reach 0.6)\n", c, h }'
