# make run      the product on 127.0.0.1:8000, with a PostgreSQL and a Valkey of its own
# make demo     its story in twenty lines, told against a running stack
# make test     linters, types, layers and every test
# make mutants  each guard removed in a copy; a named test has to fail
# make chaos    the whole product under faults: SECONDS=300 SEED=1, WITHOUT=fence|lease|downstream-key
# make specification  every interleaving of the protocol, and of eighteen with a guard missing
# make kill-points    SIGKILL before and after every statement and call of every path
# make bench    what the protection costs
# make lint     the linters, types and layers alone
# make install  .venv, from constraints.txt
# make lock     constraints.txt, resolved anew
# make messages     the translators' catalogues, extracted anew and compiled (needs gettext)
# make screenshots  the pictures of the admin and the lab, taken anew (needs Chromium)
# make clean    remove .venv, .data and every cache

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# What a process imports is compiled once and not at each of the hundreds of starts, whatever the
# environment says, and outside of the tree.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode

.DEFAULT_GOAL := help
.PHONY: help install run demo test newest mutants chaos specification kill-points bench lint lock messages screenshots clean

help:
	@sed -n 's/^# make/make/p' Makefile

# Compares hashes, not times: quick when nothing changed, right after a checkout or a move.
install:
	@sh config/install.sh "$(PYTHON)" "$(VENV)"

# The time to Ready counts the installation.
run: export STACK_BEGAN := $(shell date +%s)
run: install
	@exec $(BIN)/python -m config.stack

demo: install
	@exec $(BIN)/python -m config.demo

# Mypy reads the Django settings, and without DEBUG these ask for secrets.
lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	DEBUG=1 $(BIN)/mypy
	$(BIN)/lint-imports

# Types are checked by one process, and packages installed by one: both at once.
test: install
	@$(MAKE) --no-print-directory --jobs=2 lint newest
	$(BIN)/python -m tests.matrix

newest: install
	@$(BIN)/python -m tests.matrix --install

mutants: install
	$(BIN)/python -m tests.mutations

SECONDS ?= 300
SEED ?= 1
chaos: install
	@exec $(BIN)/python -m tests.chaos --seconds $(SECONDS) --seed $(SEED) \
	    $(if $(WITHOUT),--without $(WITHOUT))

specification: install
	$(BIN)/python -m tests.specification

kill-points: install
	$(BIN)/python -m tests.kill_points

bench: install
	$(BIN)/python -m tests.benchmarks

lock:
	@sh config/lock.sh "$(PYTHON)"

messages: install
	cd idempotency && ../$(BIN)/django-admin makemessages --locale en --locale de \
	    --add-location file --no-obsolete
	cd idempotency && ../$(BIN)/django-admin compilemessages --locale de

screenshots: install
	SCREENSHOTS=tests/acceptance/screenshots REQUIRE_BROWSER=1 \
	    $(BIN)/python -m pytest tests/acceptance/test_admin_browser.py \
	    tests/acceptance/test_doubts_browser.py tests/acceptance/test_lab_browser.py \
	    tests/acceptance/test_operations_browser.py

clean:
	rm -rf $(VENV) .venv-newest .data dist build staticfiles .pytest_cache .mypy_cache .ruff_cache .hypothesis
