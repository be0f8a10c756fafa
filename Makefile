# Two commands do everything on a fresh machine: `make run` and `make test`. Both install what they need into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: run test lint bench readme docs clean

run: $(INSTALLED)
	$(BIN)/secateur compress lenet-300-100 --data mnist --preset quick --resume
	$(BIN)/secateur evaluate

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)
	for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

# The README's table and the page of results, from results/; and links to lines of code.
readme: $(INSTALLED)
	$(BIN)/python -m secateur.report.readme README.md
	$(BIN)/python docs/lines.py

# The documentation, in build/docs; a warning is an error.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

# torch first and alone: the constraint names the version, so that nothing else pulls in a larger one.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) build
