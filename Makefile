# Every target explains itself: `make` prints the lines behind the double hashes.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
T ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-8s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.ready: requirements.lock pyproject.toml scripts/setup.sh scripts/common.sh
	@bash scripts/setup.sh

.PHONY: setup
setup: .venv/.ready ## Make .venv and fetch the browser assets
