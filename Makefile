# Everything a newcomer needs: `make run`, then `make test`. Each target sets itself up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CHROMIUM := $(shell command -v chromium 2>/dev/null)

.PHONY: install run test test-fast lint bench clean browser

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nbafl needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[flower,studio,dev]'
	touch $(STAMP)

browser:
ifeq ($(CHROMIUM),)
	apt-get update -qq
	apt-get install -y -qq chromium
endif

run: install
	$(BIN)/nbafl run

test: install browser
	$(BIN)/pytest

test-fast: install
	$(BIN)/pytest -m 'not e2e'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	for workload in W1 W2 W3 W4; do $(BIN)/nbafl bench $$workload || exit 1; done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
