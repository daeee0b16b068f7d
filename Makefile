# Every target sets up .venv by itself. On a machine whose python3 is older than 3.11: make PYTHON=python3.12 …
# A build of torch without CUDA, 4.5 GB smaller: make serve TORCH_INDEX=<address of a package index with CPU builds of torch>
PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SERVE_STAMP := $(VENV)/.installed-to-serve
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
ARGS ?=
# Dozens of processes import the sources; where Python is told to keep no bytecode, each would compile them again.
PYTEST := HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# A process of tests for each core. A file's tests run in one process, because they share what a fixture made.
# Files begin in the order of tests/conftest.py, not those of many tests first.
PARALLEL := --numprocesses $(shell nproc) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Tests without a server. Those that take long, or start processes all the same, are marked.
UNIT := tests/engine/scheduler tests/engine/adapters tests/engine/sampling tests/engine/structured tests/structured \
	tests/text tests/settings tests/hooks

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-failed test-unit check fmt docs wheel clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP)  ## make .venv and install everything into it; again only when pyproject.toml or constraints.txt changed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Quire needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# The distribution was called quire before it was called quire-serve: of both, plugins would be found twice.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) uninstall -qq --yes quire
	$(INSTALL) --quiet -e '.[dev]'
	@touch $@ $(SERVE_STAMP)

$(SERVE_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Quire into $(VENV): some minutes. With torch's usual CUDA build it takes about 6 GB of disk."
	@$(PIP) uninstall -qq --yes quire
	$(INSTALL) -e '.[client]'
	@touch $@

serve: $(SERVE_STAMP)  ## serve the demo models on port 8000; make serve ARGS='--port 9000 my=./folder'
	$(BIN)/platform serve $(ARGS)

test: $(STAMP)  ## run the tests; make test ARGS=tests/hooks/test_registry.py
	$(PYTEST) $(PARALLEL) $(if $(CI),--durations=25) $(ARGS)

test-failed: $(STAMP)  ## run again, in one process, the tests that failed last time
	$(PYTEST) --last-failed --last-failed-no-failures none $(ARGS)

test-unit: $(STAMP)  ## run the tests that need no process and no server, in under three minutes
	$(PYTEST) $(PARALLEL) -m 'not slow and not process' $(UNIT) $(ARGS)

check: $(STAMP)  ## formatting, lint, types, and the structure of the repository
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/repository/structure.py

fmt: $(STAMP)  ## format, and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## rewrite the generated parts of docs/, and build the web site build/site from it
	$(BIN)/python docs/generating/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --clean -f docs/site/mkdocs.yml

wheel: $(STAMP)  ## a wheel in dist/ with the CPU ops compiled for every instruction set of x86-64; some minutes
	QUIRE_COMPILE_OPS=$(or $(OPS),all) $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:  ## remove caches and .venv
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
