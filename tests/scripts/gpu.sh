#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the long mode: what is for a GPU is installed, compiled and linked, and what of it needs no GPU runs. There a run
# that asks for one ends with one sentence and exit code 2.
set -euo pipefail
exec "$(dirname -- "${BASH_SOURCE[0]}")/../gpu/run" --without-gpu
