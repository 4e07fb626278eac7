# Everything on a machine that has Python (3.11 or newer) and make: the targets below build .venv themselves.
# Settings: PYTHON (an interpreter), WORKERS (test processes), OUT (folder of the demo), MATRIX (what `make matrix` is asked),
# PRIVFL_DATA (local datasets);
# pip's own, such as PIP_INDEX_URL or PIP_EXTRA_INDEX_URL (for instance a CPU-only build of torch), pass through.

PYTHON ?=
WORKERS ?= 3
OUT ?= demo
MATRIX ?=
BIN := .venv/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Datasets that lie beside the repository are used where PRIVFL_DATA does not name another folder.
WITH_DATA = if [ -z "$${PRIVFL_DATA:-}" ] && [ -d ../shared/data ]; then \
		PRIVFL_DATA=$$(cd ../shared/data && pwd); export PRIVFL_DATA; fi;

.PHONY: help demo test check docs format bench mutants matrix clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/  make \1@\2/p' Makefile | awk -F@ '{ printf "%-14s %s\n", $$1, $$2 }'

demo: .venv/.installed  ## install privfl and run the main job: a private training and its statement, into ./demo
	$(BIN)/privfl demo --out "$(OUT)"

test: check  ## install with the development tools; lint, types, and the whole test suite (the site is built in it)
	@$(WITH_DATA) PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: .venv/.installed-dev  ## lint, format and types only
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

docs: .venv/.installed-dev  ## these pages and the reference as a site, in build/docs; warnings are errors
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --builder html --fail-on-warning --quiet --jobs $(WORKERS) docs build/docs
	@echo "Open build/docs/index.html"

format: .venv/.installed-dev  ## mend what ruff can mend
	$(BIN)/python -m ruff check --fix
	$(BIN)/python -m ruff format

bench: .venv/.installed-dev  ## speed and memory
	@$(WITH_DATA) $(BIN)/python benchmarks/run.py

mutants: .venv/.installed-dev  ## break the privacy code in every listed way, in copies, and see whether a test fails
	@OMP_NUM_THREADS=1 PYTHONPATH=. $(BIN)/python -m tests.mutants

matrix: $(BIN)/python  ## install with the lowest and the newest versions, on every Python at hand, and test a selection
	@$(WITH_DATA) $(BIN)/python -m tests.matrix $(MATRIX)

clean:  ## remove the environment, caches and builds; runs and the demo stay
	rm -rf .venv build dist docs/reference/api .mypy_cache .ruff_cache .pytest_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing privfl into .venv (the first time, this takes some minutes)."
	$(INSTALL) --editable .
	@touch $@

.venv/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing privfl and the development tools into .venv (the first time, this takes some minutes)."
	$(INSTALL) --editable '.[dev]'
	@touch $@ .venv/.installed

# The first interpreter that is new enough and can make environments.
$(BIN)/python:
	@for python in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3 python); do \
		if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			"$$python" -m venv .venv && exit 0; \
			rm -rf .venv; exit 1; \
		fi; \
	done; \
	echo "privfl needs Python 3.11 or newer with the venv module, which $(if $(PYTHON),'$(PYTHON)' is not,was not found);" \
		"install it, or name one with: make PYTHON=/path/to/python" >&2; exit 1
