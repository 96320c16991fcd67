# Everything runs in .venv, which is made here on first use and again when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check bench chaos clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(INSTALLED) ## turns on two workers, one of them killed on the way, in some seconds
	@$(VENV)/bin/bub-redis demo

test: $(INSTALLED) ## the tests, without the slow ones
	@$(VENV)/bin/pytest -q -n 2 -m "not slow"

test-all: $(INSTALLED) ## all tests, also the slow ones
	@$(VENV)/bin/pytest -q -n 2

check: $(INSTALLED) ## lint, format and types
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/mypy

bench: $(INSTALLED) ## measurements beside what one would use instead; ONLY=row, QUICK=1 for a first look
	@$(VENV)/bin/python -m benchmarks $(if $(QUICK),--quick) $(foreach row,$(ONLY),--only $(row))

chaos: $(INSTALLED) ## workers and servers killed at random for a minute; SEED=n repeats a run, CLUSTER=1 with tapes on a Redis Cluster
	@$(VENV)/bin/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(CLUSTER),--cluster)

clean: ## remove .venv, caches and build results; .bench, which is costly to build, stays
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache */.ruff_cache .hypothesis
	@find . -path ./.bench -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c '' 2>/dev/null || \
		{ echo "setup: there is no $(PYTHON); install Python 3.11 or newer (Debian: apt install python3 python3-venv)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setup: $(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "setup: $(PYTHON) cannot make virtual environments; install python3-venv (apt install python3-venv)"; exit 1; }
	@echo "setup: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "setup: installing the packages (half a minute the first time)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' >$(VENV)/pip.log 2>&1 || \
		{ cat $(VENV)/pip.log; echo "setup: pip failed, see above"; exit 1; }
	@echo "setup: done"
	@touch $@
