# Every task of this repository. The work is done elsewhere: scripts/, steelyard/, pytest.
PYTHON ?= python3
BIN := .venv/bin
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
PEERS_ARGS ?= run
MINUTES ?= 60

.PHONY: help setup setup-run run down serve test check fuzz fuzz-gguf bench bench-peers lock docs clients clean

help: ## Show the tasks
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## Make the environment in .venv (fast when nothing changed)
	@$(PYTHON) scripts/setup_environment.py

setup-run: ## The same with only what make run, down and serve import
	@$(PYTHON) scripts/setup_environment.py --run

run: setup-run ## Start a local AWS cloud, deploy the dev environment into it, ask its endpoints
	@$(BIN)/steelyard up --local

down: setup-run ## Destroy what make run deployed, and stop the local cloud
	@$(BIN)/steelyard down --local

serve: setup-run ## Without a cloud: fetch the embedded model, serve it, ask an example decision and a chat
	@$(BIN)/steelyard demo

test: setup check ## Set up, check, and run the test suite
	$(BIN)/python -m pytest -m "not slow" -n 2 --no-loadscope-reorder $(PYTEST_ARGS)

check: setup ## Lint, formatting, types, imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy scripts/*.py
	$(BIN)/lint-imports --no-cache

fuzz: setup ## Search for faults: the full number of requests, other examples each time (make test repeats a share)
	STEELYARD_FUZZ=full $(BIN)/python -m pytest -k fuzz $(PYTEST_ARGS)
	STEELYARD_FUZZ=full $(BIN)/python -m pytest -m "hypothesis and not slow" $(PYTEST_ARGS)

fuzz-gguf: setup ## Start servers with damaged model files, for an hour (MINUTES=60); finds go into tests/engine/gguf_finds.txt
	$(BIN)/python tests/support/gguf_mutations.py --minutes $(MINUTES)

bench: setup ## Measure the server's overhead over llama.cpp
	$(BIN)/python benchmarks/overhead.py

bench-peers: setup ## Measure decisions beside llama-server and others (hours; see docs/explanation/benchmarks.md)
	$(BIN)/python -m benchmarks.peers $(PEERS_ARGS)

lock: setup ## Resolve the dependencies again and write the lock files
	$(BIN)/python scripts/lock.py

docs: setup ## Write the generated pages of docs/reference
	$(BIN)/python scripts/generate_reference.py

clients: setup ## Run other people's clients against a server, and write docs/reference/clients.md
	$(BIN)/python -m pytest tests/clients --write-table $(PYTEST_ARGS)

clean: ## Remove the environment and caches; downloaded models stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
