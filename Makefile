# Every target explains itself: `make` prints the words behind the double hashes.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
ASSETS := static/vendor/VERSIONS.txt
# One test, or any other choice that pytest understands: make test T=tests/wire
T ?=
# What `make demo` hands on to `hindcast demo`.
ARGS ?=
# How long `make soak` lasts.
SECONDS ?= 600
# Where the recordings are that `make golden` packs.
SOURCE ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1mmake %-11s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.ready: requirements.lock pyproject.toml scripts/setup.sh scripts/common.sh
	@bash scripts/setup.sh

$(ASSETS): .venv/.ready package.json package-lock.json .npmrc scripts/assets.py scripts/assets.sh scripts/node.lock
	@bash scripts/assets.sh

.PHONY: setup
setup: .venv/.ready $(ASSETS) ## Make .venv and fetch the browser assets; instant when nothing changed
	@:

.PHONY: demo
demo: setup ## Start a console, a pipeline at work, and a replayed incident (ARGS="--port 8700")
	@exec $(BIN)/hindcast demo $(ARGS)

.PHONY: flink
flink: setup ## Make the environment of the Flink Agents example, once (82 MB, kept in the user's cache)
	@$(BIN)/python -m scripts.flink_env --link .cache/flink

.PHONY: test
test: setup ## Run the tests; T=tests/wire/test_framing.py or T="-k name" runs some of them
	@bash scripts/test.sh $(T)

.PHONY: check
check: setup ## Lint, format, types, imports between rooms, drift of generated and lock files
	@bash scripts/check.sh

.PHONY: fmt
fmt: setup ## Format the code and mend what the linter can mend
	@$(BIN)/ruff check --fix-only --quiet . ; $(BIN)/ruff format .

.PHONY: bench
bench: setup ## Measure what benchmarks/README.md reports, beside the peer where HINDCAST_PEER_PATH names it
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: soak
soak: setup ## Traffic, exports, replays and random kills for SECONDS=600, then a count of everything
	@$(BIN)/python -m benchmarks.soak --seconds $(SECONDS) $(ARGS)

.PHONY: screenshots
screenshots: setup ## Take the pictures of docs/ anew, from a demo of their own (ARGS="--only run")
	@$(BIN)/python -m scripts.screenshots $(ARGS)

.PHONY: kafka
kafka: setup ## Start a real Apache Kafka on the loopback address, for tests (ARGS="--port 0")
	@exec $(BIN)/python -m scripts.kafka $(ARGS)

.PHONY: lock
lock: ## Resolve pyproject.toml into requirements.lock (ARGS=--upgrade moves every pin)
	@[ -x $(BIN)/uv ] || bash scripts/setup.sh
	@bash scripts/lock.sh $(ARGS)

.PHONY: proto
proto: setup ## Generate the protobuf modules from proto/
	@$(BIN)/python scripts/proto.py

.PHONY: golden
golden: setup ## Pack the golden recordings anew from SOURCE=folder
	@$(BIN)/python tests/golden/pack.py $(SOURCE)

.PHONY: wheel
wheel: setup ## Build the wheel into dist/
	@$(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir dist && ls -1 dist/*.whl

.PHONY: clean
clean: ## Remove everything that is made here, but no console's data
	@rm -rf .venv .cache static/vendor build dist .ruff_cache .hypothesis
	@find app scripts tests -type d -name __pycache__ -prune -exec rm -rf {} +
