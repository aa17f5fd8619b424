# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced by the run scripts after setup.sh:
#
#   build PRESET [TARGET...]     configures and builds in build/PRESET; says little unless something fails

# shellcheck source=setup.sh
[[ -n ${root:-} ]] || source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

# A unit with LibTorch's headers takes up to 2 GB.
build_jobs() {
  local cores memory
  cores=$(env -u OMP_NUM_THREADS nproc) # nproc would say what that says
  memory=$(awk '/^MemAvailable/ { print int($2 / 2097152) }' /proc/meminfo)
  ((memory < cores)) && cores=$memory
  echo "${DOVETAIL_JOBS:-$((cores > 0 ? cores : 1))}"
}

configure() {
  local folder=$root/build/$1 log=$root/build/$1.configure.log version
  version=$(cmake --version | sed -n 's/^cmake version //p')
  [[ $(printf '%s\n' 3.25 "$version" | sort -V | head -n 1) == 3.25 ]] ||
    die "cmake is version $version; Dovetail needs 3.25 or newer: install it (pip install cmake) and type $again again."
  mkdir -p "$folder"
  # A build folder that was copied or moved here names its old place.
  if [[ -e $folder/CMakeCache.txt ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
    rm -rf -- "$folder"
  fi
  (cd "$root" && cmake --preset "$1" "-DLibTorch_ROOT=$libtorch") >"$log" 2>&1 || {
    cat "$log" >&2
    die "the configuration of build/$1 failed, as shown above; if a compiler or library was changed, type 'rm -r build/$1' and $again again."
  }
}

build() {
  local preset=$1 lock
  shift
  mkdir -p "$root/build" 2>/dev/null || die "$root/build cannot be made: type 'chmod u+w $root' or work in a folder of your own."
  exec {lock}>"$root/build/$preset.lock"
  if have_command flock; then flock "$lock"; fi
  configure "$preset"
  local free
  free=$(df -Pm -- "$root/build" | awk 'NR == 2 { print $4 }')
  ((free >= 300)) || die "the disk of $root/build has $free MB left: make room (a build takes up to 2 GB) and type $again again."
  cmake --build "$root/build/$preset" --parallel "$(build_jobs)" ${1:+--target "$@"} >&2 ||
    die "the build in build/$preset failed, as shown above."
  exec {lock}>&-
}
