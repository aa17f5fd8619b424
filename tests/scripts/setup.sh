#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The set-up's failures: one sentence, exit code 2. And its repeats: nothing is installed twice, what was interrupted is
# made again. The set-up runs in a copy of the repository's root, with only those commands that a case puts on PATH.
# shellcheck disable=SC2016 # the bodies of the fakes are for other shells
set -euo pipefail

repository=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
work=$PWD/case
checked=0

# A fresh root and a PATH with the tools that the script itself uses.
fresh() {
  rm -rf -- "$work"
  mkdir -p "$work/bin" "$work/root/cmake"
  cp "$repository/cmake/setup.sh" "$work/root/cmake/"
  local tool
  for tool in bash env dirname sed grep awk df mkdir touch rm cp cat id flock; do
    ln -s "$(command -v "$tool")" "$work/bin/$tool"
  done
  for tool in cmake ninja python3 clang++; do fake "$tool" 'exit 0'; done
  fake g++ 'case $1 in -dumpversion) echo 12 ;; --version) echo "g++ 12" ;; esac'
}

# fake NAME BODY: a command of this name on the case's PATH.
fake() {
  rm -f -- "$work/bin/$1"
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# A LibTorch of this version in a folder.
fake_libtorch() {
  mkdir -p "$1/lib" "$1/include/ATen/core" "$1/include/torch/headeronly" "$1/share/cmake/Torch"
  touch "$1/lib/libtorch_cpu.so" "$1/include/ATen/core/Tensor.h"
  printf '#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n' "${2%.*}" "${2#*.}" \
    >"$1/include/torch/headeronly/version.h"
}

# A Python whose environments have a pip that does what the body says; `$site` is where it would install.
fake_python() {
  fake python3 '[[ $1 == -c ]] || { mkdir -p "$3/bin" "$3/lib/python3.11/site-packages" && cp '"'$work/bin/pip'"' "$3/bin/python"; }'
  fake pip 'site=$(dirname "$0")/../lib/python3.11/site-packages
'"$1"
}
whole_install='echo called >>"$site/../../../../pip.calls"
mkdir -p "$site/torch-2.15.0.dist-info" "$site/torch/lib" "$site/torch/include/ATen" "$site/torch/include/torch/headeronly"
touch "$site/torch-2.15.0.dist-info/INSTALLER" "$site/torch/lib/libtorch_cpu.so"
printf "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 15\n" >"$site/torch/include/torch/headeronly/version.h"'

# Runs the set-up with NAME=VALUE arguments in its environment, and with `cuda`, which may be --cuda; sets `code` and
# `printed`.
cuda=
run_setup() {
  code=0
  printed=$(cd "$work/root" && env -i PATH="$work/bin" HOME="$HOME" "$@" bash -c \
    'set -euo pipefail; source cmake/setup.sh; setup tests '"$cuda"'; echo "libtorch: $libtorch"' ./tests/run 2>&1 </dev/null) || code=$?
}

# fails_with WORDS [NAME=VALUE...]: exit code 2, and one line of explanation that holds WORDS and what to type.
fails_with() {
  local words=$1 last
  shift
  run_setup "$@"
  last=${printed##*$'\n'}
  if [[ $code != 2 || $last != "dovetail: "*"$words"* || $last != *type* ]]; then
    printf 'expected exit code 2 and one line with: %s\ngot exit code %s and: %s\n' "$words" "$code" "$printed"
    exit 1
  fi
  checked=$((checked + 1))
}

# works_with LIBTORCH [NAME=VALUE...]: the set-up ends with this LibTorch.
works_with() {
  local expected=$1
  shift
  run_setup "$@"
  if [[ $code != 0 || ${printed##*$'\n'} != "libtorch: $expected" ]]; then
    printf 'expected: libtorch: %s\ngot exit code %s and: %s\n' "$expected" "$code" "$printed"
    exit 1
  fi
  checked=$((checked + 1))
}

# ---- compilers and packages
fresh
rm "$work/bin/g++" "$work/bin/clang++"
fails_with "missing here are g++ clang (Debian's names)"
fake apt-get 'exit 0'
fake id 'echo 1000'
fails_with "missing here are g++ clang, and there is no sudo: as root type 'apt-get install -y g++ clang'"
fake sudo 'exit 1'
fails_with "and sudo is refused"
fake id 'echo 0'
fake apt-cache 'echo "  Candidate: 1.0"'
fake apt-get 'case $* in *install*) echo "E: Failed to fetch: Temporary failure in name resolution"; exit 100 ;; esac'
fails_with "because the network cannot be reached"
fake apt-get 'case $* in *install*) echo "E: You do not have enough free space in /var/cache"; exit 100 ;; esac'
fails_with "there is no space left on the disk"
fake apt-get 'case $* in *install*) echo "E: dpkg was interrupted"; exit 100 ;; esac'
fails_with "see the end of $work/root/.deps/setup.log"
fake apt-cache 'echo "  Candidate: (none)"'
fake apt-get 'echo "W: Could not resolve the archive"'
fails_with "is in this system's package lists, because the network cannot be reached"

fresh
fake g++ 'case $1 in -dumpversion) echo 10 ;; esac'
fails_with "the C++ compiler 'g++' is version 10; Dovetail needs g++ 12 or clang++ 14"
fails_with "there is no C++ compiler 'g++-99' here (CXX)" CXX=g++-99
fake clang++ 'case $1 in -dumpversion) echo 13.0.1 ;; --version) echo "clang version 13.0.1" ;; esac'
fails_with "the C++ compiler 'clang++' is version 13.0.1" CXX=clang++

# ---- Python, space, network
fresh
fake old_python 'case $2 in *ensurepip*) exit 1 ;; *) echo 3.8 ;; esac'
fails_with "needs Python 3.10 or newer with its venv module, and old_python is 3.8" PYTHON=old_python
fake df 'printf "Filesystem 1M-blocks Used Available\n/dev/disk 9000 8100 900 90%% /\n"'
fails_with "LibTorch needs 2500 MB on the disk of $work/root/.deps, where 900 MB are free"
rm "$work/bin/df"
ln -s "$(command -v df)" "$work/bin/df"
fake_python 'echo "Failed to establish a new connection: Name or service not known"; exit 1'
fails_with "pip could not install torch 2.15.0, because the network cannot be reached"
fake_python 'echo "ERROR: Could not install packages due to an OSError: No space left on device"; exit 1'
fails_with "there is no space left on the disk"

# ---- the interrupted set-up is made again, the finished one is left alone
fake_python "$whole_install"
works_with "$work/root/.deps/venv/lib/python3.11/site-packages/torch"
[[ $printed == *"removing the unfinished"* ]]
fake python3 'exit 9'
fake apt-get 'exit 9'
works_with "$work/root/.deps/venv/lib/python3.11/site-packages/torch"
[[ $(wc -l <"$work/root/.deps/pip.calls") == 1 && $printed == "libtorch: "* ]]
# pip stopped before the end of a package; and a build with CUDA without CUDA's runtime.
fake_python "$whole_install"
rm "$work"/root/.deps/venv/lib/python3.11/site-packages/torch-2.15.0.dist-info/INSTALLER
works_with "$work/root/.deps/venv/lib/python3.11/site-packages/torch"
touch "$work/root/.deps/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so"
works_with "$work/root/.deps/venv/lib/python3.11/site-packages/torch"
[[ $(wc -l <"$work/root/.deps/pip.calls") == 3 ]]

# ---- with CUDA: the wheels that torch names as its needs, on top; what was interrupted is made again
fresh
cuda=--cuda
fake_python 'if [[ $* == *--no-deps* ]]; then
  '"$whole_install"'
  touch "$site/torch/lib/libtorch_cuda.so"
  mkdir -p "$site/nvidia/cu13/lib" && touch "$site/nvidia/cu13/lib/libcu"{dart,pti}.so.13
elif mkdir "$site/interrupted" 2>/dev/null; then
  echo "Read timed out"
  exit 1
else
  mkdir -p "$site/nvidia/nccl/include" "$site/nvidia/cu13/include"
  touch "$site/nvidia/nccl/include/nccl.h" "$site/nvidia/cu13/include/cublas_v2.h"
fi'
fails_with "pip could not install torch 2.15.0, because the network cannot be reached"
for _ in again finished; do works_with "$work/root/.deps/venv/lib/python3.11/site-packages/torch"; done
[[ $(wc -l <"$work/root/.deps/pip.calls") == 1 ]]
fresh
fake_libtorch "$work/torch-2.12" 2.12
fails_with "the LibTorch in $work/torch-2.12 has no libtorch_cuda" LIBTORCH="$work/torch-2.12"
cuda=

# ---- a LibTorch of the user's own
fresh
fake python3 'exit 9'
fake_libtorch "$work/torch-2.12" 2.12
works_with "$work/torch-2.12" LIBTORCH="$work/torch-2.12"
works_with "$work/torch-2.12" Torch_DIR="$work/torch-2.12/share/cmake/Torch"
works_with "$work/torch-2.12" CMAKE_PREFIX_PATH="/nowhere:$work/torch-2.12/share/cmake"
[[ ! -e $work/root/.deps/venv ]]
fake_libtorch "$work/torch-2.10" 2.10
fails_with "is version 2.10; Dovetail needs 2.11 to 2.15" LIBTORCH="$work/torch-2.10"
fake_libtorch "$work/torch-2.16" 2.16
fails_with "is version 2.16; Dovetail needs 2.11 to 2.15" CMAKE_PREFIX_PATH="$work/torch-2.16"
fails_with "LIBTORCH is '/nowhere', but there is no LibTorch in it" LIBTORCH=/nowhere

# ---- the other two commands, before any set-up
for command in examples/run benchmarks/run; do
  code=0
  printed=$("$repository/$command" nothing-of-this-name 2>&1) || code=$?
  [[ $code == 2 && $printed == "dovetail: "*nothing-of-this-name*type* ]]
  checked=$((checked + 1))
done

rm -rf -- "$work"
echo "$checked set-ups behaved"
