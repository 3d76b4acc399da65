#!/usr/bin/env bash
# install_torch.sh PYTHON [cpu|cuda]: installs torch into that interpreter's environment; by default the CUDA build if
# nvidia-smi answers, else the CPU build.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${2:-$(nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)}
pip() { "$1" -m pip --disable-pip-version-check "${@:2}"; }

if [ "$device" = cuda ]; then
  pip "$1" install -q -r requirements-cuda.txt
else
  # From the indexes that pip is configured with, if they have the CPU build (a mirror, a folder of wheels), else from
  # PyTorch's own.
  pip "$1" install -q --no-deps -r requirements-cpu.txt 2>/dev/null ||
    pip "$1" install -q --no-deps -r requirements-cpu.txt --index-url https://download.pytorch.org/whl/cpu
fi
