# make            list what there is
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help install hooks demo up test test-slow test-connect coverage lint format docs docs-serve bench bench-quick lock audit clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(READY)  ## the main job on a day of real requests: land, publish, damage, find, repair, prove (about three minutes)
	@$(BIN)/backfill demo

up: $(READY)  ## start warehouse, Spark, Dagster UI and daemon; Ctrl-C stops all of it
	@exec $(BIN)/backfill up

# CI runs .ci/run: make test TIER="not slow", about half an hour.
TIER ?= not slow and not whole
test: $(READY) lint  ## lint, types, import rules and the fast tests (four to five minutes)
	@scripts/need-chromium
	@scripts/need-kafka
	@scripts/need-postgres
	@scripts/need-s3a
	$(BIN)/python -m pytest -m "$(TIER)" -n 2 --dist loadfile --no-loadscope-reorder --durations=15

test-slow: $(READY)  ## the slow tests: kills, restarts, long ranges; then test-connect
	@scripts/need-chromium
	@scripts/need-kafka
	@scripts/need-postgres
	@scripts/need-s3a
	$(BIN)/python -m pytest -m slow
	$(MAKE) test-connect

test-connect: $(READY)  ## the tests of Spark and of repairs once more, on Spark Connect
	TEST_SPARK=connect $(BIN)/python -m pytest -m "not slow" backfill_platform_tests/adapters/spark backfill_platform_tests/repair

coverage: $(READY)  ## the fast tests with branch coverage: a table here, and artefacts/coverage.xml
	@scripts/need-chromium
	@scripts/need-kafka
	@scripts/need-postgres
	@scripts/need-s3a
	@mkdir -p artefacts
	$(BIN)/python -m pytest -m "$(TIER)" -n 2 --dist loadfile --cov --cov-report=term --cov-report=xml

lint: $(READY)  ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)  ## build the documentation site into ./site, strictly: a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(READY)  ## show the documentation while it is written
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: $(READY)  ## repair a day of 24 million events in all the ways, and write benchmarks/results.md (about 25 minutes)
	$(BIN)/python -m benchmarks.side_by_side

bench-quick: $(READY)  ## a small part of the same in about two minutes; only prints
	$(BIN)/python -m benchmarks.side_by_side --quick

install: $(READY)  ## the virtual environment with the locked dependencies, and Java where it is missing

hooks: $(READY)  ## run ruff, mypy and import-linter before each commit
	$(BIN)/pre-commit install

$(READY): requirements.lock pyproject.toml
	@scripts/need-java
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "error: Python 3.11 is needed, $(PYTHON) is another one; install it or run make PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies into $(VENV) (a minute or two)"
	@# the lock names everything with its hash: nothing is looked up besides, and nothing else is taken
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --disable-pip-version-check -e .
	@touch $(READY)

lock: $(READY)  ## pin today's versions of everything pyproject.toml asks for, with the hashes of their files
	$(BIN)/uv pip compile pyproject.toml --group dev --python-version 3.11 --upgrade --generate-hashes --no-header --no-annotate -q -o requirements.lock

audit: $(READY)  ## look for known holes in the locked dependencies; asks the advisory database of PyPI, and fails without it
	$(BIN)/pip-audit --strict --requirement requirements.lock --require-hashes --disable-pip --progress-spinner off

clean:  ## forget the environment and all embedded state
	rm -rf $(VENV) site .backfill .kafka .s3a .bench .pytest_cache .mypy_cache .ruff_cache .import_linter_cache artefacts
