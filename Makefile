# One virtual environment, .venv, made and filled on demand from the lock files. Nothing else on the machine is changed.
# PYTHON=/path/to/python3 chooses the interpreter that makes it.

.DEFAULT_GOAL := help
.PHONY: help run test test-young check bench format format-check lint types lock clean
.SUFFIXES:

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s%s\n", $$1, $$2 }' Makefile

run: $(RUN_READY) ## serve the demo, or your chains: make run CONFIG=config.yaml
	@exec $(VENV)/bin/copath serve $(if $(CONFIG),--config "$(CONFIG)") $(ARGS)

test: $(DEV_READY) ## the whole suite, in parallel; ARGS="-k name" passes options to pytest
	@$(PY) -m pytest -n auto --dist loadgroup $(ARGS)

test-young: $(DEV_READY) ## the whole suite, as in a container on a machine that started a minute ago
	@$(PY) -m tests.young_machine $(YOUNG) $(PY) -m pytest -n auto --dist loadgroup $(ARGS)

check: format-check lint types test ## format, lint, types, house rules and tests: what must hold before a change lands

bench: $(DEV_READY) ## benchmarks, as ratios
	@$(PY) -m bench $(ARGS)

format: $(DEV_READY) ## format the code and mend what the linter can mend
	@$(VENV)/bin/ruff check --quiet --fix-only .
	@$(VENV)/bin/ruff format .

format-check: $(DEV_READY) ## say what `make format` would change
	@$(VENV)/bin/ruff format --check --diff --quiet .

lint: $(DEV_READY) ## lint
	@$(VENV)/bin/ruff check .

types: $(DEV_READY) ## check types
	@$(VENV)/bin/mypy

# Annotations say why a package is there; hosts and options of the machine that made the files stay out of them.
LOCK = $(VENV)/bin/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links $(ARGS)

lock: $(DEV_READY) ## pin dependencies anew: ARGS=--upgrade for their newest versions
	@$(LOCK) --group build -o requirements.lock
	@$(LOCK) --group dev -c requirements.lock -o requirements-dev.lock

clean: ## remove what make made
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/node/node_modules
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN_READY): requirements.lock pyproject.toml | $(PY)
	@echo "Installing what the server needs into $(VENV) ..."
	@$(PIP) --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV_READY): requirements-dev.lock pyproject.toml | $(PY)
	@echo "Installing what the tests and checks need into $(VENV) ..."
	@$(PIP) --require-hashes -r requirements-dev.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# Versions for which every dependency is to be had ready built come first.
PYTHONS = $(or $(PYTHON),python3.12 python3.13 python3.11 python3 python)

$(PY):
	@for python in $(PYTHONS); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "Python 3.11 or newer is needed, and none of these is one: $(PYTHONS). make PYTHON=/path/to/python3 says where it is." \
	    >&2; exit 1; \
	fi; \
	"$$found" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$$found could not make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
