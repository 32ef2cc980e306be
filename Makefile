# Everything a newcomer needs: `make run`, then `make test`. Each target sets itself up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install run test test-fast lint bench docs clean browser

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nbafl needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

# A browser at hand is taken; where there is none, root with apt-get gets one, and anybody else is told what to install.
browser: install
	@$(BIN)/python tests/e2e/find_browser.py 2>/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium; } || \
	  $(BIN)/python tests/e2e/find_browser.py

run: install
	$(BIN)/nbafl run

test: install browser
	$(BIN)/pytest --numprocesses 2 --dist loadfile

test-fast: install
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m 'not e2e'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	for workload in W1 W2 W3 W4; do $(BIN)/nbafl bench $$workload || exit 1; done

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
