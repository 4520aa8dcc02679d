# Every target builds .venv when it is missing and takes a second when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs
EXTRAS := gguf,joint,corpus,train,hf,mlx,studio
MINUTES ?= 20
N ?= 1000
COVERED := tiebeam.checkpoint tiebeam.surgery tiebeam.doctor

# The tests start thousands of processes; without cached bytecode each of them compiles tiebeam again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test quick lint fuzz kill peers bench docs clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "tiebeam needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --group dev -e '.[$(EXTRAS)]'
	@touch $@

setup: $(STAMP)  ## Build .venv with every extra and the development tools

run: $(STAMP)  ## Compare tied and untied on the built-in text; writes comparison/report.html
	@$(BIN)/tiebeam compare --out comparison

# Without a cache: where an import comes from depends on files that ruff does not watch.
lint: $(STAMP)  ## ruff, mypy (strict for src), import-linter
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

quick: $(STAMP)  ## The fast tests, under a minute
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow and not real and not peer and not exhaustive"

test: lint $(DOCS)  ## Everything: lint, types, all tests, coverage
	$(BIN)/pytest -n 2 --dist loadgroup -m "not exhaustive" $(COVERED:%=--cov=%) --cov-branch --cov-report=
	@$(BIN)/python tests/helpers/coverage_by_package.py

fuzz: $(STAMP)  ## Damaged files against every reader and its reference, MINUTES=20 long (docs/reliability.md)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check atheris==3.0.0 \
	  || echo "atheris does not install here: the run is not guided by coverage"
	$(BIN)/python fuzz/run.py --minutes $(MINUTES)

kill: $(STAMP)  ## Kill every verb that writes, N=1000 times; the exit code is 1 if anything is lost or left
	$(BIN)/python fuzz/kill.py --kills $(N)

peers: $(STAMP)  ## What real loaders do with every architecture, against what the doctor predicts; writes docs/loaders.md
	$(BIN)/pytest -n 2 -m exhaustive
	$(BIN)/python -m pytest -n 0 -m peer tests/peers --full-matrix

bench: $(STAMP)  ## Run the benchmarks, under 40 minutes on an idle machine; writes docs/benchmarks.md
	$(BIN)/python bench/all.py

# The tools of the site, the notebooks and pre-commit: not part of `make setup`, which stays quick.
$(DOCS): $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --group docs
	@touch $@

docs: $(DOCS)  ## Write the generated pages (docs/cli.md, docs/findings, docs/api) and the site, in site/
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## Remove everything that was built
	rm -rf $(VENV) dist build site .coverage* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
