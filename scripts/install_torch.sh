#!/usr/bin/env bash
# install_torch.sh PYTHON [cpu|cuda [lock]]: installs torch into that interpreter's environment; by default the CUDA build
# if nvidia-smi answers, else the CPU build. With lock it is the file that requirements/cpu.lock or -cuda.lock names.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${2:-$(nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)}
from=(-r "requirements/$device.txt")
[ "${3:-}" != lock ] || from=(--no-deps --require-hashes -r "requirements/$device.lock")
pip() { "$1" -m pip --disable-pip-version-check "${@:2}"; }

if [ "$device" = cuda ]; then
  # An installed CPU build would count as the version that is asked for.
  if [[ "$(pip "$1" show torch 2>/dev/null)" == *+cpu* ]]; then pip "$1" uninstall -qy torch; fi
  pip "$1" install -q "${from[@]}"
else
  # From the indexes that pip is configured with, if they have the CPU build (a mirror, a folder of wheels), else from
  # PyTorch's own.
  pip "$1" install -q --no-deps "${from[@]}" 2>/dev/null ||
    pip "$1" install -q --no-deps "${from[@]}" --index-url https://download.pytorch.org/whl/cpu
fi
