# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced by tests/run, examples/run and benchmarks/run. Puts on this machine what is missing and nothing else:
#
#   setup examples|tests|benchmarks [--cuda]
#
# system packages (Debian's and Ubuntu's names, with sudo when not root), and LibTorch in .deps/venv unless LIBTORCH,
# Torch_DIR or CMAKE_PREFIX_PATH names one; with --cuda also the headers and libraries of CUDA and NCCL, as wheels that
# need neither a toolkit nor a GPU. A second call only looks at files. Every failure is one sentence that says what is
# wrong and what to type, and exit code 2. Sets `libtorch` to LibTorch's folder.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
deps=$root/.deps
venv=$deps/venv
setup_log=$deps/setup.log
libtorch=

readonly torch_version=2.15.0 torch_oldest=11 torch_newest=15 # 2.11 to 2.15
readonly torch_megabytes=2500 cuda_megabytes=7000             # the download, and what is unpacked from it
readonly python_oldest=10                                     # 3.10, the oldest that torch 2.15.0 is made for
readonly gcc_oldest=12 clang_oldest=14

say() { printf 'dovetail: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 2
}

# The command that the user typed, for messages.
again=${0/#"$PWD"\//./}

# ---- What is there --------------------------------------------------------------------------------------------------

have_command() { command -v "$1" >/dev/null 2>&1; }

have_header() {
  local folder folders
  IFS=: read -r -a folders <<<"${CPATH:-}:/usr/local/include:/usr/include"
  for folder in "${folders[@]}"; do
    [[ -n $folder && -e $folder/$1 ]] && return 0
  done
  return 1
}

# Boost.Hana 1.7 is in Boost 1.76 and newer; Debian 12's default is 1.74.
have_boost() {
  local folder folders version
  IFS=: read -r -a folders <<<"${CPATH:-}:/usr/local/include:/usr/include"
  for folder in "${folders[@]}"; do
    [[ -n $folder && -e $folder/boost/hana.hpp ]] || continue
    version=$(sed -n 's/^#define BOOST_VERSION \([0-9]*\).*/\1/p' "$folder/boost/version.hpp")
    ((version >= 107600)) && return 0
  done
  return 1
}

have_compiler() {
  [[ -n ${CXX:-} ]] || have_command c++ || have_command g++ || have_command clang++
}

have_clang() {
  local name
  for name in clang++ clang++-{14..22}; do
    have_command "$name" && return 0
  done
  return 1
}

# Prints the system packages that `$1` (examples, tests, benchmarks) needs and this machine lacks, one a line. Where the
# name differs between releases: the names, best first, with commas.
missing_packages() {
  local purpose=$1
  have_compiler || echo g++
  have_command cmake || echo cmake
  have_command ninja || echo ninja-build
  have_command python3 || [[ -n ${PYTHON:-} ]] || echo python3
  have_header gloo/transport/device.h || echo libgloo-dev
  have_boost || echo libboost1.81-dev,libboost1.83-dev,libboost1.88-dev,libboost-dev
  have_header zlib.h || echo zlib1g-dev
  have_header CLI/CLI.hpp || echo libcli11-dev
  if [[ $purpose != benchmarks ]]; then
    [[ -e /usr/share/datasets/fashion-mnist ]] || echo dataset-fashion-mnist
  fi
  if [[ $purpose == tests ]]; then
    have_header catch2/catch.hpp || have_header catch2/catch_all.hpp || echo catch2
    have_header nlohmann/json.hpp || echo nlohmann-json3-dev
    have_clang || echo clang
  fi
  if [[ $purpose == benchmarks ]]; then
    have_header benchmark/benchmark.h || echo libbenchmark-dev
    have_command valgrind || echo valgrind
  fi
}

# ---- System packages ------------------------------------------------------------------------------------------------

# Runs a command with its output in the log.
logged() {
  printf '\n$ %s\n' "$*" >>"$setup_log"
  "$@" >>"$setup_log" 2>&1 </dev/null
}

# Dies with what the last command's part of the log shows, else with `$1`.
die_from_log() {
  local tail
  tail=$(sed -n 'H; /^\$ /h; ${x;p}' "$setup_log") # from the last command on
  if grep -qiE 'no space left|enough free space|disk quota' <<<"$tail"; then
    die "there is no space left on the disk: make room (LibTorch and a build take about 4 GB) and type $again again."
  elif grep -qiE 'could not resolve|temporary failure in name|failed to establish|connection (failed|refused|timed out)|network is unreachable|read timed out|max retries|could not connect|proxyerror|unable to connect' <<<"$tail"; then
    die "$1, because the network cannot be reached: connect this machine and type $again again (log: $setup_log)."
  fi
  die "$1: see the end of $setup_log, mend it and type $again again."
}

# The first of the comma-separated names that this system's archive has.
pick_package() {
  local name names candidate
  IFS=, read -r -a names <<<"$1"
  for name in "${names[@]}"; do
    candidate=$(LC_ALL=C apt-cache policy "$name" 2>/dev/null | sed -n 's/^ *Candidate: *//p')
    if [[ -n $candidate && $candidate != "(none)" ]]; then
      echo "$name"
      return 0
    fi
  done
  return 1
}

install_packages() {
  local wanted=("$@") name packages=() as_root=()
  have_command apt-get ||
    die "missing here are ${wanted[*]%%,*} (Debian's names): install them with this system's package manager and type $again again."
  if [[ $(id -u) != 0 ]]; then
    have_command sudo ||
      die "missing here are ${wanted[*]%%,*}, and there is no sudo: as root type 'apt-get install -y ${wanted[*]%%,*}', then $again again."
    as_root=(sudo)
    [[ -t 0 ]] || as_root=(sudo -n)
    "${as_root[@]}" true ||
      die "missing here are ${wanted[*]%%,*}, and sudo is refused: as root type 'apt-get install -y ${wanted[*]%%,*}', then $again again."
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  logged "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update || true # the install says what is wrong
  for name in "${wanted[@]}"; do
    if name=$(pick_package "$name"); then packages+=("$name"); fi
  done
  # Used when present, not needed: a compiler cache and a quick linker.
  for name in ccache mold; do
    if ! have_command "$name" && name=$(pick_package "$name"); then packages+=("$name"); fi
  done
  ((${#packages[@]})) || die_from_log "none of ${wanted[*]%%,*} is in this system's package lists"
  say "installing ${packages[*]}"
  logged "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}" ||
    die_from_log "apt-get could not install ${packages[*]}"
}

setup_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$1")
  if ((${#missing[@]})); then
    install_packages "${missing[@]}"
    mapfile -t missing < <(missing_packages "$1")
    if ((${#missing[@]})); then
      die "still missing after the installation: ${missing[*]%%,*} (this system's versions may be too old): install them and type $again again."
    fi
  fi
}

check_compiler() {
  local compiler=${CXX:-} name version oldest
  if [[ -z $compiler ]]; then
    for name in c++ g++ clang++; do
      if have_command "$name"; then
        compiler=$name
        break
      fi
    done
  fi
  have_command "${compiler%% *}" ||
    die "there is no C++ compiler '$compiler' here (CXX): type 'unset CXX', or set it to g++ $gcc_oldest or clang++ $clang_oldest or newer."
  # shellcheck disable=SC2086 # CXX may carry flags
  version=$($compiler -dumpversion 2>/dev/null) || version=0
  # shellcheck disable=SC2086
  if [[ $($compiler --version 2>/dev/null) == *clang* ]]; then oldest=$clang_oldest; else oldest=$gcc_oldest; fi
  ((${version%%.*} >= oldest)) ||
    die "the C++ compiler '$compiler' is version $version; Dovetail needs g++ $gcc_oldest or clang++ $clang_oldest, or newer: type CXX=g++-$gcc_oldest $again."
}

# ---- LibTorch -------------------------------------------------------------------------------------------------------

# Prints the LibTorch folder that `$1` is or belongs to.
libtorch_of() {
  local folder
  for folder in "$1" "$1/../.." "$1/../../.."; do
    if [[ -e $folder/lib/libtorch_cpu.so && -d $folder/include/ATen ]]; then
      (cd -- "$folder" && pwd -P)
      return 0
    fi
  done
  return 1
}

# Sets `libtorch` where the user's environment names one.
find_users_libtorch() {
  local name folder folders
  for name in LIBTORCH Torch_DIR; do
    [[ -n ${!name:-} ]] || continue
    libtorch=$(libtorch_of "${!name}") ||
      die "$name is '${!name}', but there is no LibTorch in it (lib/libtorch_cpu.so and include/): correct it, or type 'unset $name'."
    return 0
  done
  IFS=':;' read -r -a folders <<<"${CMAKE_PREFIX_PATH:-}"
  for folder in "${folders[@]}"; do
    if [[ -n $folder ]] && libtorch=$(libtorch_of "$folder"); then return 0; fi
  done
  return 1
}

check_libtorch_version() {
  local header major minor
  for header in torch/headeronly/version.h torch/csrc/api/include/torch/version.h; do
    header=$libtorch/include/$header
    [[ -e $header ]] || continue
    major=$(sed -n 's/^#define TORCH_VERSION_MAJOR *\([0-9]*\).*/\1/p' "$header")
    minor=$(sed -n 's/^#define TORCH_VERSION_MINOR *\([0-9]*\).*/\1/p' "$header")
    [[ -n $major ]] && break
  done
  ((${major:-0} == 2 && ${minor:-0} >= torch_oldest && ${minor:-0} <= torch_newest)) ||
    die "the LibTorch in $libtorch is version ${major:-unknown}${minor:+.$minor}; Dovetail needs 2.$torch_oldest to 2.$torch_newest: $1."
}

# Sets `libtorch` where .deps/venv holds a whole one. pip writes INSTALLER after a package's last file.
find_installed_libtorch() {
  local site
  [[ ! -e $deps/venv.unfinished ]] || return 1
  for site in "$venv"/lib/python3*/site-packages; do
    compgen -G "$site/torch-*.dist-info/INSTALLER" >/dev/null || continue
    [[ -e $site/torch/lib/libtorch_cpu.so ]] || continue
    if [[ -e $site/torch/lib/libtorch_cuda.so ]]; then # this build's libtorch_cpu loads CUDA's runtime
      compgen -G "$site/nvidia/*/lib/libcudart.so.*" >/dev/null || continue
      compgen -G "$site/nvidia/*/lib/libcupti.so.*" >/dev/null || continue
    fi
    libtorch=$site/torch
    return 0
  done
  return 1
}

# Prints the first Python that can make the environment.
find_python() {
  local python candidates=("${PYTHON:-}")
  [[ -n ${PYTHON:-} ]] || candidates=(python3 /usr/bin/python3 python3.{14..10})
  for python in "${candidates[@]}"; do
    if "$python" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, $python_oldest))" 2>/dev/null; then
      echo "$python"
      return 0
    fi
  done
  return 1
}

# check_space WHAT MEGABYTES
check_space() {
  local free
  free=$(df -Pm -- "$deps" | awk 'NR == 2 { print $4 }')
  ((free >= $2)) ||
    die "$1 needs $2 MB on the disk of $deps, where $free MB are free: make room and type $again again."
}

pip_install() {
  mkdir -p "$deps/tmp"
  TMPDIR=$deps/tmp logged "$venv/bin/python" -m pip install --no-input --disable-pip-version-check --progress-bar off \
    "$@" || die_from_log "pip could not install torch $torch_version"
  rm -rf -- "$deps/tmp"
}

install_libtorch() {
  local python version
  check_space LibTorch "$torch_megabytes"
  if ! python=$(find_python); then
    # Debian's own Python may only lack the package that makes environments.
    if [[ -z ${PYTHON:-} ]] && have_command apt-get &&
      { [[ ! -e /usr/bin/python3 ]] || /usr/bin/python3 -c "import sys; sys.exit(sys.version_info < (3, $python_oldest))"; }; then
      install_packages python3 python3-venv
    fi
    if ! python=$(find_python); then
      version=$("${PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=none
      die "LibTorch $torch_version needs Python 3.$python_oldest or newer with its venv module, and ${PYTHON:-python3} is $version: type PYTHON=/path/to/python3.$python_oldest $again."
    fi
  fi
  [[ ! -e $venv ]] || say "removing the unfinished $venv"
  touch "$deps/venv.unfinished"
  rm -rf -- "$venv"
  say "installing LibTorch $torch_version into .deps/venv (a download of 560 MB)"
  logged "$python" -m venv "$venv" || die_from_log "$python could not make the virtual environment $venv"
  pip_install --no-deps "torch==$torch_version" 'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-cupti>=13,<14'
  rm -- "$deps/venv.unfinished"
  find_installed_libtorch || die "the installation of LibTorch in $venv is not whole: type 'rm -r $venv', then $again again."
}

# ---- CUDA and NCCL --------------------------------------------------------------------------------------------------

# Is what the LibTorch needs for GPUs there: in .deps/venv all wheels, else headers beside it, of a toolkit or the system's?
find_cuda() {
  local toolkit=${CUDA_HOME:-/usr/local/cuda} wheels=$libtorch/../nvidia
  [[ -e $libtorch/lib/libtorch_cuda.so && ! -e $deps/cuda.unfinished ]] || return 1
  if [[ $libtorch == "$venv"/* ]]; then
    compgen -G "$wheels/*/include/nccl.h" >/dev/null && compgen -G "$wheels/*/include/cublas_v2.h" >/dev/null
  else
    { [[ -e $toolkit/include/cublas_v2.h ]] || compgen -G "$wheels/*/include/cublas_v2.h" >/dev/null; } &&
      { [[ -e $toolkit/include/nccl.h ]] || compgen -G "$wheels/*/include/nccl.h" >/dev/null || have_header nccl.h; }
  fi
}

# The wheels that torch names as its own needs.
install_cuda() {
  [[ $libtorch == "$venv"/* ]] ||
    die "the LibTorch in $libtorch has no libtorch_cuda, or no headers of CUDA and NCCL are beside it: unset what names it (LIBTORCH, Torch_DIR, CMAKE_PREFIX_PATH) and type $again again."
  check_space CUDA "$cuda_megabytes"
  say "installing CUDA and NCCL into .deps/venv (a download of 3 GB)"
  touch "$deps/cuda.unfinished"
  pip_install "torch==$torch_version"
  rm -- "$deps/cuda.unfinished"
  find_cuda || die "the installation of CUDA in $venv is not whole: type 'rm -r $venv', then $again again."
}

# ---- All of it ------------------------------------------------------------------------------------------------------

setup() {
  local lock
  mkdir -p "$deps" 2>/dev/null || die "$deps cannot be made: type 'chmod u+w $root' or work in a folder of your own."
  exec {lock}>"$deps/lock"
  if have_command flock && ! flock -n "$lock"; then
    say "waiting for another set-up in $deps"
    flock "$lock"
  fi
  if find_users_libtorch; then
    check_libtorch_version "set LIBTORCH, Torch_DIR or CMAKE_PREFIX_PATH to one of these, or unset it and type $again"
  fi
  setup_packages "$1"
  check_compiler
  if [[ -z $libtorch ]]; then
    find_installed_libtorch || install_libtorch
    check_libtorch_version "type 'rm -r $venv', then $again again"
  fi
  [[ ${2:-} != --cuda ]] || find_cuda || install_cuda
  exec {lock}>&-
}
