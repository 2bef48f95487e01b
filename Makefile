# One command each; every one of them first sets up .venv, which needs only Python 3.11+ (with venv) and make.
#   PYTHON=/path/to/python3.12   which Python the environment is made with
#   ARGS="..."                   passed on to the command

# 3.11 first: the tests' Redis comes as a wheel for it, and for no newer Python.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready
SLOW := slow

.DELETE_ON_ERROR:
.PHONY: help demo serve audit test test-slow lint format openapi openapi-check bench lock clean

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## 200,000 devices' blurred positions become clusters, through the real service
	@$(BIN)/sfumato demo $(ARGS)

serve: $(READY) ## The whole service on this machine: gateway, worker, SQLite under .sfumato
	@$(BIN)/sfumato serve $(ARGS)

audit: $(READY) ## Every claim of privacy looked at; ARGS="--quick", "--planted"
	@$(BIN)/sfumato audit $(ARGS)

test: $(READY) ## The fast tests, on SQLite and on PostgreSQL + Redis
	$(BIN)/pytest -n auto $(ARGS)

test-slow: $(READY) ## The heavy tests: statistics and faults
	$(BIN)/pytest -n auto -m "$(SLOW)" $(ARGS)

lint: $(READY) ## Style, types, import contracts, dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry models migrations clustering service workers audit demo
	$(BIN)/deptry --config sdk/python/pyproject.toml sdk/python/sfumato

format: $(READY) ## Let ruff order imports and lay out the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

openapi: $(READY) ## Write openapi/openapi.json anew from the code
	@mkdir -p openapi
	$(BIN)/python -m service.openapi > .venv/openapi.json
	mv .venv/openapi.json openapi/openapi.json

openapi-check: $(READY) ## Fail if openapi/openapi.json is not what the code says
	$(BIN)/python -m service.openapi | diff -u openapi/openapi.json - \
		|| { echo "openapi/openapi.json is out of date: run 'make openapi' and commit it"; exit 1; }

bench: $(READY) ## Quality of clustering, beside other methods; ARGS="--quick", "--data DIR --out DIR"
	@$(BIN)/python -m benchmarks.quality local --out build/benchmarks $(ARGS)

lock: $(READY) ## Pin requirements.lock again; ARGS=--upgrade takes the newest versions
	$(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --only-binary :all: \
		--generate-hashes --no-emit-index-url --no-emit-package sfumato --custom-compile-command "make lock" \
		--extra demo --extra dev --output-file requirements.lock $(ARGS) pyproject.toml

clean: ## Remove the environment and everything that was built
	rm -rf .venv build dist demo-out *.egg-info sdk/python/*.egg-info sdk/python/build
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml sdk/python/pyproject.toml tools/venv.sh
	@sh tools/venv.sh "$(PYTHON)"
