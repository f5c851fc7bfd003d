# Three commands do everything on a fresh machine: `make play`, `make train` and `make test`.
# Each sets up .venv when pyproject.toml or requirements.lock changed, and only then.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help play train test check docs bench clean

help:
	@echo "make play    set up, then show a trained agent: play/pointnav.gif and play/pointnav.html (seconds)"
	@echo "make train   set up, then train an agent to navigate, with a live display and a report (seven minutes)"
	@echo "make test    set up, then run all tests"
	@echo "make check   formatting, lint, types and the tables of the documentation, in seconds"
	@echo "make docs    build the documentation as a site, in site/"
	@echo "make bench   measure the pools against their peers (BENCH=name for another benchmark)"

$(READY): pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit("Paceline needs Python 3.11 or newer; make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint requirements.lock torch
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[dev]'
	@touch $@

play: $(READY)
	$(BIN)/paceline play pointnav

train: $(READY)
	$(BIN)/paceline train pointnav-small --ranks 2 --report

# Three processes for two cores (tests/conftest.py), each with one thread of PyTorch. Hundreds of tests start Python:
# the modules are compiled once, also where the environment has PYTHONDONTWRITEBYTECODE.
test: $(READY)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

check: $(READY)
	$(BIN)/ruff format --check paceline tests benchmarks examples *.py
	$(BIN)/ruff check paceline tests benchmarks examples *.py
	$(BIN)/mypy
	$(BIN)/python -m benchmarks.tables --check

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

BENCH ?= pool
bench: $(READY)
	$(BIN)/paceline bench $(BENCH)

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache
