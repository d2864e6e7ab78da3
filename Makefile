# Every target sets up what it needs: `make test` on a fresh machine with Python 3.11 and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DOCS := $(VENV)/.ready-docs

.DEFAULT_GOAL := help
.PHONY: help demo test lint types format bench slow docs pictures clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# torch goes first and pinned: asked for by a range, it would bring gigabytes of CUDA packages along.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "torchckn needs Python 3.11 or newer; say: make PYTHON=python3.11 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(READY) ## train LeNet-5 and its kernel counterpart side by side, with pictures: a minute or two
	$(BIN)/torchckn demo

test: $(READY) ## the test suite, without what takes minutes
	$(BIN)/python -m pytest

slow: $(READY) ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(READY) ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## static types
	$(BIN)/mypy

format: $(READY) ## mend style and formatting where a machine can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## speed, memory and gradient accuracy against the paper's plain method and a plain ConvNet
	$(BIN)/python -m benchmarks

# mkdocs-material warns of another project's plans on every build; that is no warning about these pages.
docs: $(READY_DOCS) ## the documentation, as a site in site/ (its search needs a server: python3 -m http.server -d site)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

$(READY_DOCS): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	@touch $@

pictures: $(READY) ## the pictures in the documentation, from real runs; needs chromium and chromedriver
	$(BIN)/python scripts/make_pictures.py

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
