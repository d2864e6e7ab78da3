# Every target sets up what it needs: `make test` on a fresh machine with Python 3.11 and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DOCS := $(VENV)/.ready-docs
READY_RELEASE := $(VENV)/.ready-release
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test slow lint types format bench docs pictures sdist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# torch goes first and pinned: asked for by a range, it would bring gigabytes of CUDA packages along.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "expected Python 3.11 or newer, got $$($(PYTHON) --version); run: make PYTHON=python3.11 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(PIP_INSTALL) -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY) ## train LeNet-5 and its kernel counterpart side by side, with pictures: a minute or two
	$(BIN)/torchckn demo

# One process per core, with one thread each (tests/conftest.py); each process starts with its share of the files.
test: $(READY) ## the test suite, without the slow tests
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

# One process after the other: some of these tests measure time.
slow: $(READY) ## the tests that take minutes or measure time
	$(BIN)/python -m pytest -m slow -rP

lint: $(READY) ## style, formatting, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: $(READY) ## static types
	$(BIN)/mypy

format: $(READY) ## fix style and formatting where a machine can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## speed, memory and gradient accuracy against the paper's plain method and a plain ConvNet; ARGS="--device cuda": on a GPU
	$(BIN)/python -m benchmarks $(ARGS)

# mkdocs-material warns of another project's plans on every build; that is no warning about these pages.
docs: $(READY_DOCS) ## build and check the documentation in site/ (its search needs a server: python3 -m http.server -d site)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python -m pytest --quiet -m site tests/test_docs.py

$(READY_DOCS): $(READY)
	$(PIP_INSTALL) -c constraints.txt -e ".[dev,docs]"
	@touch $@

pictures: $(READY) ## the pictures in the documentation, from real runs; needs chromium and chromedriver
	$(BIN)/python scripts/make_pictures.py

sdist: $(READY_RELEASE) ## build the sdist and the wheel in dist/, and check their metadata
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

$(READY_RELEASE): $(READY)
	$(PIP_INSTALL) -c constraints.txt -e ".[dev,release]"
	@touch $@

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
