# Every verb sets up what it needs in .venv; nothing has to be installed by hand.
PYTHON ?= python3
BIN := .venv/bin
# Spinning threads slow a shared machine down by up to 20x.
export OMP_WAIT_POLICY ?= PASSIVE
# Without its bytecode, every process that a test starts would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: setup demo test test-long test-all soak check bench gpu study docs clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(f"Python 3.11 or newer is needed, and this is {sys.version.split()[0]}: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The main job: train on the installed Python's code, beat BM25, search. QUICK=1 takes a few steps only.
demo: setup
	$(BIN)/tempera train --output runs/demo --overwrite $(if $(QUICK),train.max_steps=20 evaluation.queries=300)
	$(BIN)/tempera search runs/demo "parse a date from a string"

# Every part of the code, in less than five minutes on two cores.
test: setup
	$(PYTEST)

# The site, the notebooks, the recipes, the names in scripts, the wheel, and further runs that are killed, resumed or made by several processes.
test-long: setup
	$(PYTEST) -m "long and not slow"

test-all: setup
	$(PYTEST) -m ""

# The long campaigns: every reader with 100,000 inputs by chance and as many that coverage guides, kills at any moment, a server under more load than it can take. Figures go to bench/results/soak.json.
soak: setup
	$(BIN)/python tests/fuzz/soak.py
	$(BIN)/pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python tests/fuzz/guided.py
	$(BIN)/pytest -m slow tests/run/test_resume.py tests/experiments tests/server tests/corpora

check: setup
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Each benchmark prints its table and fails naming the aims it misses.
bench: $(patsubst bench/%.py,bench-%,$(filter-out bench/_%,$(wildcard bench/*.py)))

bench-%: setup
	$(BIN)/python bench/$*.py

# What a GPU has to show: verify, the tests marked gpu, the loss stage and a step at 65,536 pairs, two cards against one. Ends in one line without a GPU.
gpu: bench-gpu

# Which temperature: docs/study.md from scratch, overnight on two cores and resumable; QUICK=1 makes a small one among the runs.
study: setup
	$(BIN)/python study/study.py $(if $(QUICK),--quick)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site
