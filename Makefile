# Each target first brings .venv up to date. This requires only make and Python 3.11 or newer with its venv module.
#   PYTHON=/path/to/python3.12   Python for the environment
#   ARGS="..."                   arguments for the command

# Prefer Python 3.11: the tests use a Redis wheel that exists for no newer version.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready

.DELETE_ON_ERROR:
.PHONY: help demo demo-production demo-check serve audit test test-slow test-collect test-check check-release browser lint format openapi openapi-check openapi-breaking openapi-lint sbom sbom-check image sdks sdk-typescript docs bench speed load peers-lock faults lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## Find clusters in 200,000 perturbed device reports, through a real service
	@$(BIN)/sfumato demo $(ARGS)

demo-production: $(READY) ## Run the demo on PostgreSQL and Redis, and kill one of two gateways and one of two workers
	@$(BIN)/sfumato demo --production $(ARGS)

demo-check: $(READY) ## Run the demo of demo-production as a new user does, and check its summary
	@$(BIN)/sfumato demo --production --json > .venv/demo.txt || { cat .venv/demo.txt; exit 1; }
	@tail -n 1 .venv/demo.txt | $(BIN)/python tools/check_demo.py --production

serve: $(READY) ## Run the service on this machine: gateway, worker, SQLite under .sfumato
	@$(BIN)/sfumato serve $(ARGS)

audit: $(READY) ## Check every privacy claim; ARGS="--quick", "--planted"
	@$(BIN)/sfumato audit $(ARGS)

# Two test processes per core, because many tests wait for a lease to expire or a server to start.
PROCESSES := $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))

# Many environments switch bytecode off. Then each process compiles all modules again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(PROCESSES) --dist worksteal

test: $(READY) ## Run the fast tests, on SQLite and on PostgreSQL + Redis
	$(PYTEST) $(ARGS)

test-slow: $(READY) ## Run the slow tests: faults, browsers, servers, contract
	$(PYTEST) -m "slow and not release" $(ARGS)

# The slow tests of .ci/run: each page of the console, each kind of fault, SIGKILL of each process, and the contract.
CHECKED_SLOW := tests/browser/test_console_walk.py tests/contract tests/sdks/test_conformance.py \
	tests/sdks/test_typescript.py::TestOnNode::test_its_tests_pass tests/shuffler \
	tests/service/http/test_mount.py tests/service/http/test_nginx.py tests/service/test_side_channels_records.py tests/test_blocks.py tests/faults/test_central.py tests/faults/test_every_plan.py tests/faults/test_sigkill.py \
	tests/faults/test_uploads.py \
	"tests/faults/test_soak.py::TestFaults::test_each_kind_loses_duplicates_and_blocks_nothing[postgresql]"

# A new clone has no compiled test modules. One process compiles them in the time that each test process would need.
test-collect: $(READY) ## Import and compile all test modules without running a test
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest --collect-only -qq > .venv/collected.txt || { tail -n 60 .venv/collected.txt; exit 1; }

test-check: $(READY) ## Run the tests of .ci/run: the fast ones and a few slow ones
	$(PYTEST) -m "not release and not image" $(foreach test,$(CHECKED_SLOW),--slow-in $(test)) $(ARGS)

check-release: $(READY) ## Run what .ci/run leaves out: the whole audit, the image, all slow tests
	@sh tools/preflight.sh chromium git go java javac mvn nginx node npm pgbouncer promtool
	$(BIN)/sfumato audit --quick
	$(BIN)/sfumato audit --quick --planted
	$(MAKE) image
	$(PYTEST) -m "slow or release" $(ARGS)

browser: $(READY) ## Test the console in Chromium (from the path, or SFUMATO_TEST_CHROMIUM)
	@sh tools/preflight.sh chromium
	$(BIN)/pytest tests/browser -m "slow or release" $(ARGS)

lint: $(READY) ## Check style, prose, types, import contracts and dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/prose_check.py
	$(BIN)/mypy $(if $(CI),--cache-dir=/dev/null) # a cache helps the next run only
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/deptry --config sdk/python/pyproject.toml sdk/python/sfumato

format: $(READY) ## Sort imports and format the code with ruff
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

openapi: $(READY) ## Generate openapi/openapi.json from the code
	@mkdir -p openapi
	$(BIN)/python -m tools.openapi > .venv/openapi.json
	mv .venv/openapi.json openapi/openapi.json

openapi-check: $(READY) ## Fail if openapi/openapi.json differs from the code
	$(BIN)/python -m tools.openapi | diff -u openapi/openapi.json - \
		|| { echo "openapi/openapi.json is out of date: run 'make openapi' and commit it"; exit 1; }

openapi-breaking: $(READY) ## Report changes of openapi.json that break clients of the last release
	@$(BIN)/python tools/breaking.py

openapi-lint: ## Check openapi.json with Spectral and Redocly (needs node 20)
	@sh tools/preflight.sh node npm
	npm ci --ignore-scripts --prefix openapi/lint
	openapi/lint/node_modules/.bin/spectral lint openapi/openapi.json --ruleset openapi/lint/spectral.yaml
	openapi/lint/node_modules/.bin/redocly lint openapi/openapi.json --config openapi/lint/redocly.yaml

sbom: $(READY) ## Generate the bill of materials (CycloneDX) and the list of licences in sbom/
	$(BIN)/python -m tools.sbom

sbom-check: $(READY) ## Fail if sbom/ differs from requirements.lock
	$(BIN)/python -m tools.sbom --check

image: $(READY) ## Build the image with buildah and test it (needs root on Debian)
	nice $(BIN)/pytest tests/test_built_image.py -m image -s $(ARGS)

sdk-typescript: ## Build, test and pack the TypeScript SDK into build/sdks (needs node 20)
	@sh tools/preflight.sh node npm
	npm ci --prefix sdk/typescript
	npm test --prefix sdk/typescript
	@mkdir -p build/sdks
	cd sdk/typescript && npm pack --ignore-scripts --pack-destination ../../build/sdks

sdks: build/sdks/.ready ## Generate the Kotlin, Swift and Python clients, and check the Kotlin device (needs Java 17 and Maven); ARGS="--only java go" also compiles
	@sh tools/preflight.sh java mvn
	build/sdks/.venv/bin/python tools/sdks.py $(ARGS)

build/sdks/.ready: openapi/generators/requirements.lock $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/sdks/.venv
	$(BIN)/uv pip install --quiet --python build/sdks/.venv/bin/python --require-hashes --only-binary :all: \
		-r openapi/generators/requirements.lock
	@touch $@

docs: build/docs/.ready ## Build the documentation in build/site; fail on broken links and external resources
	@$(BIN)/python -m tools.site

build/docs/.ready: tools/site/requirements.lock $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/docs/.venv
	$(BIN)/uv pip install --quiet --python build/docs/.venv/bin/python --require-hashes --only-binary :all: \
		-r tools/site/requirements.lock
	@touch $@

bench: $(READY) ## Measure clustering quality against other methods; ARGS="--quick", "--data DIR --out DIR"
	@$(BIN)/python -m benchmarks.quality local --out build/benchmarks $(ARGS)

speed: $(READY) build/peers/.ready ## Measure speed against other tools and hardware limits; ARGS="--quick", GROUPS="ingest cold", OUT=DIR
	@$(BIN)/python -m benchmarks.speed $(or $(GROUPS),all) --out $(or $(OUT),build/speed) $(ARGS)

build/peers/.ready: benchmarks/speed/peers.lock $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/peers/.venv
	$(BIN)/uv pip install --quiet --python build/peers/.venv/bin/python --require-hashes --only-binary :all: \
		-r benchmarks/speed/peers.lock
	@touch $@

peers-lock: $(READY) ## Update benchmarks/speed/peers.lock; ARGS=--upgrade selects the newest versions
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --only-binary :all: \
		--generate-hashes --no-emit-index-url --custom-compile-command "make peers-lock" \
		--output-file benchmarks/speed/peers.lock $(ARGS) benchmarks/speed/peers.in

load: $(READY) ## Run a load test with many clients, gateways and workers; ARGS="--clients 100 --seconds 60"
	@$(BIN)/python -m benchmarks.load $(ARGS)

faults: $(READY) ## Inject faults into a private service; ARGS="--faults 500 --backend postgresql"
	@$(BIN)/python -m tests.faults $(ARGS)

lock: $(READY) ## Update requirements.lock; ARGS=--upgrade selects the newest versions
	$(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --only-binary :all: \
		--generate-hashes --no-emit-index-url --no-emit-package sfumato --custom-compile-command "make lock" \
		--extra demo --extra estimators --extra dev --extra otel --extra scale --output-file requirements.lock $(ARGS) pyproject.toml

clean: ## Remove the environment and all build output
	rm -rf .venv build dist demo-out *.egg-info sdk/python/*.egg-info sdk/python/build
	rm -rf $(addprefix sdk/typescript/,dist client node sealing shuffled node_modules src/generated) openapi/generators/*/node_modules
	rm -rf sdk/kotlin/device/target
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml sdk/python/pyproject.toml tools/venv.sh
	@sh tools/venv.sh "$(PYTHON)"
