VENV ?= .venv
# Where the demo puts its records; `results/` itself holds those of the repository.
RESULTS ?= results/demo
# Extra words for the `pip install` of torch alone, such as the index of its CPU builds.
TORCH_FLAGS ?=
# Processes of `make test`; a file is one process's.
TEST_PROCESSES ?= auto

ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif

BIN := $(VENV)/bin
ATTNBENCH := $(BIN)/attnbench
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/pytest --ignore tests/benchmarks
PIP_INSTALL := $(BIN)/python -m pip install -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow bench screenshots lint format wheel-test clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED)  ## Make the virtual environment .venv and install everything into it

$(INSTALLED): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "attnbench needs Python 3.11 or newer: install it, or run make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(TORCH_FLAGS) torch
	$(PIP_INSTALL) -e ".[test]"
	@touch $@

demo: venv  ## Pathfinder with ERNIE-Sparse, then three mechanisms compared on recall
	$(ATTNBENCH) run --mechanism ernie_sparse --task pathfinder --results $(RESULTS)
	for m in dense local ernie_sparse; do $(ATTNBENCH) run --mechanism $$m --task recall --results $(RESULTS) || exit 1; done
	$(ATTNBENCH) report --results $(RESULTS)

test: venv  ## The tests, without those marked slow, gpu or slurm
	$(PYTEST) -n $(TEST_PROCESSES) --maxprocesses 8 --dist loadfile -m "not slow and not gpu and not slurm"

test-slow: venv  ## The tests marked slow, in one process: some measure memory, or start many processes themselves
	$(PYTEST) -m "slow and not gpu and not slurm" || [ $$? -eq 5 ]  # 5: there are none

bench: venv  ## Time what tests/benchmarks holds
	$(BIN)/pytest tests/benchmarks --benchmark-only -s  # -s: ratios are printed as they come

screenshots: venv  ## Pictures of the HTML report of results/ into docs/images, for the README; needs Chromium
	$(BIN)/python scripts/screenshots.py results docs/images

lint: venv  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy attnbench mechanisms tasks suites
	$(BIN)/lint-imports

format: venv  ## Let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel-test: venv  ## Build sdist and wheel, install the wheel into an empty environment, list there
	set -e; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	$(BIN)/python -m build --outdir "$$scratch/dist" . > "$$scratch/log" || { cat "$$scratch/log"; exit 1; }; \
	ATTNBENCH_DIST="$$scratch/dist" $(BIN)/pytest -q tests/test_packaging.py; \
	$(BIN)/python -m venv "$$scratch/venv"; \
	"$$scratch/venv/bin/pip" install -q -c constraints.txt typer rich pydantic; \
	"$$scratch/venv/bin/pip" install -q --no-deps "$$scratch"/dist/*.whl; \
	cd "$$scratch"; \
	venv/bin/attnbench --help; \
	venv/bin/attnbench list

clean:  ## Remove the virtual environment, builds and caches; results stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find attnbench mechanisms tasks tests -name __pycache__ -type d -prune -exec rm -rf {} +
