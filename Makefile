# make run    the product on 127.0.0.1:8000, with its own PostgreSQL and Valkey
# make demo   its story, told against a running stack
# make test   everything, in under ten minutes

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install run demo test bench lint lock clean

help:
	@sed -n 's/^# make/make/p' Makefile

# Compares hashes, not times: quick when nothing changed, right after a checkout or a move.
install:
	@sh config/install.sh "$(PYTHON)" "$(VENV)"

run: install
	@exec $(BIN)/python -m config.stack

demo: install
	@exec $(BIN)/python -m config.demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m tests.matrix

bench: install
	$(BIN)/python -m tests.benchmarks

lock:
	@sh config/lock.sh "$(PYTHON)"

clean:
	rm -rf $(VENV) .data dist build staticfiles .pytest_cache .mypy_cache .ruff_cache .hypothesis
