# `make` alone lists the targets. Everything runs in .venv, which tools/env creates and keeps up to date.
.DEFAULT_GOAL := help
.PHONY: help run test check lint types pytest format bench bench-compare soak docs generate screenshots vendor lock clean env-run env-dev

# Tests start hundreds of processes, each of which would compile the code anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
CODE := src tests tools $(wildcard bench)
BOTH := tests/unit/codec tests/unit/storage/test_stamp.py tests/unit/storage/test_tail.py

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: env-run ## start the server on 127.0.0.1:4000 with ./topics-data
	@$(BIN)/topics serve

# Tests wait for disks and other processes a good part of their time, which types take: beside them, told where they are wrong. So the last line is the tests' own.
test: lint ## lint, then every test, formats without the kernel too, and types beside them; what CI runs
	@told=$$(mktemp); status=0; \
	$(MAKE) --no-print-directory types >"$$told" 2>&1 & beside=$$!; \
	$(MAKE) --no-print-directory pytest || status=$$?; \
	wait $$beside || { status=$$?; cat "$$told"; }; \
	rm -f "$$told"; exit $$status

check: lint types ## lint, formatting, types, direction of imports; the same of the kernel

lint: env-dev
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/lint-imports --no-logo

types: env-dev
	@$(BIN)/mypy --strict
	@tools/kernel check

pytest: env-dev
	@if tools/kernel installed; then TOPICS_KERNEL=pure $(BIN)/pytest -n 2 -q $(BOTH); fi
	@$(BIN)/pytest -n 3 --dist worksteal

format: env-dev ## fix what ruff can fix and format the code
	@$(BIN)/ruff check --fix-only --quiet $(CODE)
	@$(BIN)/ruff format $(CODE)

bench: env-dev ## run every benchmark
	@$(BIN)/python -m bench

bench-compare: env-dev ## compare with another commit: make bench-compare REF=v0.1.0
	@test -n "$(REF)" || { echo "usage: make bench-compare REF=<commit>" >&2; exit 2; }
	@$(BIN)/python -m bench compare "$(REF)"

soak: env-dev ## everything at once against a server for MINUTES (30); fails on growth: make soak MINUTES=5
	@$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),30)

docs: env-dev ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

generate: env-dev ## rewrite the files generated from code (reference pages, pinned API)
	@$(BIN)/python -m tools.generate

screenshots: env-dev ## pictures of every page of the console into docs/images/console
	@$(BIN)/python -m tools.screenshots

vendor: env-dev ## fetch the console's foreign files anew, in the versions of its list
	@$(BIN)/python -m tools.vendor

lock: env-run ## choose dependency versions anew and pin them
	@tools/lock

clean: ## remove everything that can be made again
	@rm -rf .venv tests/console/node_modules site build dist native/target .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .grimp_cache
	@find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +

env-run:
	@tools/env run

env-dev:
	@tools/env dev
