# One command each; every one of them first sets up .venv, which needs only Python 3.11+ (with venv) and make.
#   PYTHON=/path/to/python3.12   which Python the environment is made with
#   ARGS="..."                   passed on to the command

# 3.11 first: the tests' Redis comes as a wheel for it, and for no newer Python.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/.ready
SLOW := slow
PEERS_WITHOUT_WHEEL := multi-freq-ldpy pyclustering

.DELETE_ON_ERROR:
.PHONY: help demo demo-production serve audit test test-slow browser lint format openapi openapi-check openapi-breaking openapi-lint sdks sdk-typescript docs bench speed load peers-lock faults lock clean

help: ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## 200,000 devices' blurred positions become clusters, through the real service
	@$(BIN)/sfumato demo $(ARGS)

demo-production: $(READY) ## The same on PostgreSQL and Redis, with one of two gateways and one of two workers killed
	@$(BIN)/sfumato demo --production $(ARGS)

serve: $(READY) ## The whole service on this machine: gateway, worker, SQLite under .sfumato
	@$(BIN)/sfumato serve $(ARGS)

audit: $(READY) ## Every claim of privacy looked at; ARGS="--quick", "--planted"
	@$(BIN)/sfumato audit $(ARGS)

# Twice as many as there are cores: many a test waits, for a lease to lapse or a server to start.
PROCESSES := $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))

test: $(READY) ## The fast tests, on SQLite and on PostgreSQL + Redis
	$(BIN)/pytest -n $(PROCESSES) $(ARGS)

test-slow: $(READY) ## The heavy tests: statistics and faults
	$(BIN)/pytest -n $(PROCESSES) -m "$(SLOW)" $(ARGS)

browser: $(READY) ## The console in Chromium: the one on the path, or SFUMATO_TEST_CHROMIUM
	$(BIN)/pytest tests/browser -m slow $(ARGS)

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

openapi-breaking: $(READY) ## What of openapi.json breaks clients of the last release
	@$(BIN)/python tools/breaking.py

openapi-lint: ## Spectral's rules over openapi.json; needs npx
	@command -v npx >/dev/null || { echo "npx is needed: it comes with Node.js"; exit 1; }
	npx --yes --package @stoplight/spectral-cli spectral lint openapi/openapi.json --ruleset openapi/.spectral.yaml

sdk-typescript: ## The TypeScript package, with types made from the description, tested and packed into build/sdks (needs node 20)
	npm ci --prefix sdk/typescript
	npm test --prefix sdk/typescript
	@mkdir -p build/sdks
	cd sdk/typescript && npm pack --ignore-scripts --pack-destination ../../build/sdks

sdks: build/sdks/.ready ## The Kotlin and Swift clients, generated and checked, and the Kotlin device held to the vectors (needs Java 11 and node 20)
	npm ci --prefix openapi/generators/kotlin
	build/sdks/.venv/bin/python tools/sdks.py $(ARGS)

build/sdks/.ready: openapi/generators/requirements.lock $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/sdks/.venv
	$(BIN)/uv pip install --quiet --python build/sdks/.venv/bin/python --require-hashes --only-binary :all: \
		-r openapi/generators/requirements.lock
	@touch $@

docs: build/docs/.ready ## The documentation as a site in build/site, strictly: nothing leads nowhere or asks anybody else
	@$(BIN)/python -m tools.site

build/docs/.ready: tools/site/requirements.lock $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/docs/.venv
	$(BIN)/uv pip install --quiet --python build/docs/.venv/bin/python --require-hashes --only-binary :all: \
		-r tools/site/requirements.lock
	@touch $@

bench: $(READY) ## Quality of clustering, beside other methods; ARGS="--quick", "--data DIR --out DIR"
	@$(BIN)/python -m benchmarks.quality local --out build/benchmarks $(ARGS)

speed: $(READY) build/peers/.ready ## Speed, beside peers and what the machine can do; ARGS="--quick", GROUPS="ingest cold", OUT=DIR
	@$(BIN)/python -m benchmarks.speed $(or $(GROUPS),all) --out $(or $(OUT),build/speed) $(ARGS)

# Wheels alone, but for the two peers that have none: see peers.in.
build/peers/.ready: benchmarks/speed/peers.lock $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/peers/.venv
	sed -n '/^setuptools==/,/# via/p' benchmarks/speed/peers.lock > build/peers/build.lock
	$(BIN)/uv pip install --quiet --python build/peers/.venv/bin/python --require-hashes --only-binary :all: \
		-r build/peers/build.lock
	$(BIN)/uv pip install --quiet --python build/peers/.venv/bin/python --require-hashes --only-binary :all: \
		$(foreach peer,$(PEERS_WITHOUT_WHEEL),--no-binary $(peer)) --no-build-isolation -r benchmarks/speed/peers.lock
	@touch $@

peers-lock: $(READY) ## Pin benchmarks/speed/peers.lock again; ARGS=--upgrade takes the newest versions
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --only-binary :all: \
		$(foreach peer,$(PEERS_WITHOUT_WHEEL),--no-binary $(peer)) --build-constraint benchmarks/speed/peers.in \
		--generate-hashes --no-emit-index-url --custom-compile-command "make peers-lock" \
		--output-file benchmarks/speed/peers.lock $(ARGS) benchmarks/speed/peers.in

load: $(READY) ## Many clients against several gateways and workers; ARGS="--clients 100 --seconds 60"
	@$(BIN)/python -m benchmarks.load $(ARGS)

faults: $(READY) ## Faults against a service of its own; ARGS="--faults 500 --backend postgresql"
	@$(BIN)/python -m tests.faults $(ARGS)

lock: $(READY) ## Pin requirements.lock again; ARGS=--upgrade takes the newest versions
	$(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --only-binary :all: \
		--generate-hashes --no-emit-index-url --no-emit-package sfumato --custom-compile-command "make lock" \
		--extra demo --extra dev --extra otel --extra scale --output-file requirements.lock $(ARGS) pyproject.toml

clean: ## Remove the environment and everything that was built
	rm -rf .venv build dist demo-out *.egg-info sdk/python/*.egg-info sdk/python/build
	rm -rf sdk/typescript/dist sdk/typescript/node_modules sdk/typescript/src/generated openapi/generators/*/node_modules
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml sdk/python/pyproject.toml tools/venv.sh
	@sh tools/venv.sh "$(PYTHON)"
