# Two commands do everything on a fresh machine: `make run` and `make test`. Both install what they need into .venv.

PYTHON ?= python3
# The instruction sets that native code is compiled for: "native" is this machine's, "all" are those of a wheel.
LEVELS ?= native
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet install --no-compile --constraint constraints.txt
INSTALLED := $(VENV)/.installed-$(LEVELS)
FRAMEWORKS := $(VENV)-frameworks
DEVELOPING := $(VENV)/.installed-dev-$(LEVELS)

.PHONY: run test lint frameworks bench readme docs clean

run: $(INSTALLED)
	$(BIN)/secateur compress lenet-300-100 --data mnist --preset quick --ratio 60 --resume
	$(BIN)/secateur evaluate

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(DEVELOPING)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Lightning and Transformers in an environment of their own, on top of $(VENV): the callbacks, their page and examples.
frameworks: $(FRAMEWORKS)/.installed
	$(FRAMEWORKS)/bin/python -m pytest tests/integrations tests/test_examples.py
	$(FRAMEWORKS)/bin/python -m pytest tests/test_docs.py -k "frameworks or transformers"

$(FRAMEWORKS)/.installed: $(DEVELOPING)
	@echo "Installing Lightning and Transformers into $(FRAMEWORKS) …"
	@$(BIN)/python -m venv $(FRAMEWORKS)
	@$(BIN)/python -c "import site, sysconfig; print(f'import site; site.addsitedir({sysconfig.get_paths()[\"purelib\"]!r})')" \
	  > $$(echo $(FRAMEWORKS)/lib/python3*/site-packages)/development.pth
	@$(FRAMEWORKS)/bin/python -m pip --quiet --quiet install --no-compile --constraint constraints.txt "secateur[lightning,transformers]"
	@touch $@

bench: $(DEVELOPING)
	for benchmark in benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

# The README's tables, docs/results.md and the package's reference errors, from results/; and links to lines of code.
readme: $(DEVELOPING)
	$(BIN)/python -m secateur.report.tables.readme README.md
	$(BIN)/python docs/lines.py

# The documentation, in build/docs; a warning is an error.
docs: $(DEVELOPING)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

# torch first and alone: the constraint names the version, so that nothing else pulls in a larger one.
$(INSTALLED): export SKBUILD_CMAKE_DEFINE := SECATEUR_LEVELS=$(LEVELS)
$(INSTALLED): export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || echo 2)
$(INSTALLED): pyproject.toml constraints.txt $(wildcard native/*)
	@echo "Creating a virtual environment in $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing PyTorch into $(VENV) (200 MB to download, if pip has not cached it) …"
	@$(PIP) torch
	@echo "Compiling native code ($(LEVELS)) and installing secateur …"
	@$(PIP) --editable ".[train,report]"
	@libraries=$$(cd $(VENV)/lib/python3*/site-packages/secateur 2>/dev/null && echo _native_*.so); \
	case "$$libraries" in \
	  *[*]*|"") echo "No native code (it takes a C++ compiler): slower Python code runs instead." ;; \
	  *) echo "Native code: $$libraries" ;; \
	esac
	@touch $@

# secateur is installed: this adds what its extra "dev" names, and compiles nothing.
$(DEVELOPING): $(INSTALLED)
	@echo "Installing tools for tests, benchmarks and documentation into $(VENV) …"
	@$(PIP) "secateur[dev]"
	@touch $@

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build
