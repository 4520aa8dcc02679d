# Two commands matter: `make run` and `make test`. Each builds .venv when needed and is quick when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := gguf,joint,corpus,train,hf,mlx,studio

.PHONY: setup run test lint bench docs clean
.DEFAULT_GOAL := run

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "tiebeam needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --group dev -e '.[$(EXTRAS)]'
	@touch $@

setup: $(STAMP)

run: $(STAMP)
	@$(BIN)/tiebeam compare --out comparison

# No cache: where an import comes from depends on files ruff does not watch.
lint: $(STAMP)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2 --dist loadgroup

bench: $(STAMP)
	$(BIN)/python bench/all.py

docs: $(STAMP)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
