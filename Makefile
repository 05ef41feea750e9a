# Six verbs; `make` alone lists them. Each prepares what it needs and repeats nothing it has done.

SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

# Two processes share the tests; tests/conftest.py says how.
ABREAST := --numprocesses 2 --no-loadscope-reorder

# One quiet line for each step; its output appears when it fails.
define step
@printf '%-22s' '$(1)'; \
if output=$$($(2) 2>&1); then echo ok; else echo FAILED; printf '%s\n' "$$output"; exit 1; fi
endef

.NOTPARALLEL:
.PHONY: help demo test check bench docs lock environment engine static

help:  ## list the verbs
	@echo 'usage: make VERB'
	@sed -n 's/^\([a-z]*\):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: environment  ## run a real engine with and without the cache, and write demo-out/report.html
	@$(BIN)/kvwise demo

test: environment static engine  ## everything that must hold before a change lands, real engine included
	@KVWISE_REQUIRE_ENGINE=1 $(BIN)/pytest $(ABREAST)

check: environment static  ## static checks and the quick tests, without an engine
	@$(BIN)/pytest $(ABREAST) -m 'not engine and not slow'

bench: environment  ## measure the install and the tiers, beside yardsticks of the same minute
	@$(BIN)/python bench/install.py
	@$(BIN)/kvwise bench tiers

docs: environment  ## build the documentation into site/
	$(call step,mkdocs,$(BIN)/mkdocs build --strict)

lock: environment  ## choose new pins for the development environment
	@$(PYTHON) scripts/environment.py --lock

environment:
	@$(PYTHON) scripts/environment.py

engine: environment
	@$(BIN)/python -m kvwise.bench.provision --engine --model --triton

static: environment
	$(call step,ruff check,$(BIN)/ruff check)
	$(call step,ruff format,$(BIN)/ruff format --check)
	$(call step,mypy,$(BIN)/mypy)
	$(call step,import-linter,$(BIN)/lint-imports)
	$(call step,mkdocs,$(BIN)/mkdocs build --strict)
