# make lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ZOO_VENV := .venv-doctor
ZOO_STAMP := $(ZOO_VENV)/.installed
ZOO := PYTHONPATH=src OMP_NUM_THREADS=1 $(ZOO_VENV)/bin/python
SWEEP := attention.scale=sqrt,none model.d_k=64,512

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-readme test-slow test-slurm test-doctor doctor-types torture gpu-check check format bench ui clean clean-runs

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,slurm]'
	touch $@

setup: $(STAMP) ## Make .venv and install the project with the tested set of packages

demo: $(STAMP) ## Set up, then train four models side by side and compare them
	$(BIN)/python -m src.train -m $(SWEEP)
	$(BIN)/python -m src.curves
	@echo "Next: make ui, then open the first address that it prints."

test: $(STAMP) ## Set up, then run the fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow' -n 2 --dist worksteal

test-readme: $(STAMP) ## Run the README's commands as they stand there
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/apps/test_readme.py -k 'a_command or table'

test-slow: $(STAMP) ## Run the tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow --timeout 1500

test-slurm: $(STAMP) ## Start a real Slurm on this machine (Debian, root), run its tests, stop it
	bash tests/slurm/slurm-up.sh
	$(BIN)/python -m pytest tests/slurm; code=$$?; bash tests/slurm/slurm-down.sh; exit $$code

$(ZOO_STAMP): tests/doctor_zoo/requirements.txt
	$(PYTHON) -m venv $(ZOO_VENV)
	$(ZOO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

test-doctor: $(ZOO_STAMP) ## Try the doctor on models of six libraries, in an environment of its own
	$(ZOO) -m pytest tests/doctor_zoo

doctor-types: $(ZOO_STAMP) ## Write docs/doctor.md's table of the model types of transformers (minutes)
	$(ZOO) -m benchmarks.doctor_types

torture: $(STAMP) ## Kill sweeps at random moments, go on, compare (many minutes)
	$(BIN)/python -m tests.torture.torture

gpu-check: $(STAMP) ## Check what needs a GPU, in under 4 minutes; says why where there is none
	$(BIN)/python -m benchmarks.gpu_check

check: $(STAMP) ## Format, lint, types, imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## Time a step against a textbook script and plain Lightning (a quiet machine, minutes)
	$(BIN)/python -m benchmarks.step_time
	$(BIN)/python -m benchmarks.translation_step
	$(BIN)/python -m benchmarks.health_cost
	$(BIN)/python -m benchmarks.modes
	$(BIN)/python -m benchmarks.start_time
	$(BIN)/python -m benchmarks.backends

ui: $(STAMP) ## Print the addresses of the newest sweeps, then start MLflow's UI
	$(BIN)/python -m attnscale.cli.ui

clean: ## Remove the environment and caches, keep runs
	rm -rf $(VENV) $(ZOO_VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-runs: ## Remove all runs: mlruns/, multirun/, outputs/
	rm -rf mlruns multirun outputs
