# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS ?= 10
FAULTS ?= F5 F6b

.DEFAULT_GOAL := help
.PHONY: help demo test lint format drill drill-cluster drill-kubernetes drill-numa drill-slurm bench clean

help: ## show what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | sort | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("rankpatrol needs Python 3.11 or later: make PYTHON=python3.11 …" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

# A training environment: rankpatrol itself and torch.
$(VENV)/.train: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable . --group train
	@touch $@

# What the tests and the linters need besides.
$(VENV)/.dev: pyproject.toml $(VENV)/.train
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

demo: $(VENV)/.train ## a real 4-rank training hangs, is diagnosed, sealed, ended, resumed, finished
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev ## set up and run all tests
	$(BIN)/python -m pytest -m 'not ranks' -n 3
	$(BIN)/python -m pytest -m ranks -n 2

lint: $(VENV)/.dev ## style, types, and who may import whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## put the style right
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

drill: $(VENV)/.train ## faults on real ranks, with a scorecard: make drill FAULTS="F5 F6b" RUNS=10
	$(BIN)/python -m rankpatrol drill $(FAULTS) --runs $(RUNS)

drill-cluster: $(VENV)/.dev ## 32 real ranks on four hosts of this one machine, and a bad block on one of them (root); SCENES="F12 F15 F16 N10"
	PYTHONPATH=src:tests $(BIN)/python tests/nodes/drill_cluster.py $(SCENES)

drill-numa: $(VENV)/.dev ## ranks really bound, in an emulated machine with three NUMA nodes
	$(BIN)/python tests/affinity/numa_machine.py

drill-slurm: $(VENV)/.dev ## minutes of trouble on real Slurm clusters of this one machine (root; slurmctld, slurmd and munge installed)
	PYTHONPATH=tests:tests/schedulers $(BIN)/python tests/schedulers/drill_slurm.py $(SCENES)

drill-kubernetes: $(VENV)/.dev ## jobs of a real Kubernetes API server (RANKPATROL_KUBERNETES_BIN; tests/schedulers/build_kubernetes.sh makes one)
	$(BIN)/python -m pytest tests/schedulers -k 'real_api or real-kubernetes' -n 0

bench: $(VENV)/.dev ## speed, as ratios side by side
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean: ## remove the environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
