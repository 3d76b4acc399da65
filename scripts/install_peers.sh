#!/usr/bin/env bash
# Makes .venv-peers, an environment of its own for the trainers that bench/ compares with: they pin other versions than
# ours. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

[ -x .venv-peers/bin/pip ] || "$python" -m venv --clear .venv-peers
scripts/install_torch.sh .venv-peers/bin/python
.venv-peers/bin/python -m pip --disable-pip-version-check install -q -r requirements/peers.txt
touch .venv-peers/.installed
