#!/usr/bin/env bash
# The first hour on an NVIDIA card: the shortest real run of each thing that needs one, and runs/first_gpu_hour/report.md
# to send back. --dry-run walks through the same steps on a CPU. PY is the interpreter of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PY:-.venv/bin/python}" -m bench.first_gpu_hour "$@"
