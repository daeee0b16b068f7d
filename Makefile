# Every target sets up .venv by itself. On a machine whose python3 is older than 3.11: make PYTHON=python3.12 …
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup serve test check fmt docs clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(STAMP)  ## make .venv and install everything into it; again only when pyproject.toml or constraints.txt changed

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Quire needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

serve: $(STAMP)  ## serve the demo models on port 8000; make serve ARGS='--port 9000 my=./folder'
	$(BIN)/platform serve $(ARGS)

test: $(STAMP)  ## run the tests; make test ARGS=tests/test_registry.py
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(ARGS)

check: $(STAMP)  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: $(STAMP)  ## format, and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## rewrite the generated parts of docs/
	$(BIN)/python docs/generate.py

clean:  ## remove caches and .venv
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
