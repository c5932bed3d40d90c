# Two commands do everything: `make run` and `make test`. Both first make .venv, once.

SHELL := /bin/sh
STAMP := .venv/.complete
PYTHON_IN_VENV := .venv/bin/python
SETUP := requirements-cpu.txt requirements-dev.txt pyproject.toml \
         tools/find-python tools/set_up.py tools/standins.py

.PHONY: help .venv run test lint check lock clean
.DEFAULT_GOAL := help

help:
	@echo 'make run     stream an answer from the embedded model, n-gram speculation on'
	@echo 'make test    run all tests, the real engine included'
	@echo 'make lint    ruff and mypy'
	@echo 'make check   lint and test'
	@echo 'make lock    pin the requirements anew (see tools/lock.py)'
	@echo 'make clean   remove .venv and all caches in this folder'
	@echo
	@echo 'The first of these sets up .venv: a few minutes, once. PYTHON=... names the Python for it.'

$(STAMP): $(SETUP)
	@python=$$(tools/find-python) && "$$python" tools/set_up.py

.venv: $(STAMP)

# Speculation as a first look at it wants it. Variables of your own win, and with a method of
# your own none of these is set.
run: $(STAMP)
	@if [ -z "$${SPECULATIVE_MODEL+set}$${SPECULATIVE_METHOD+set}$${SPECULATIVE_CONFIG+set}" ]; then \
	    export SPECULATIVE_MODEL='[ngram]' \
	        NUM_SPECULATIVE_TOKENS="$${NUM_SPECULATIVE_TOKENS-3}" \
	        NGRAM_PROMPT_LOOKUP_MIN="$${NGRAM_PROMPT_LOOKUP_MIN-2}" \
	        NGRAM_PROMPT_LOOKUP_MAX="$${NGRAM_PROMPT_LOOKUP_MAX-4}"; \
	fi; \
	exec $(PYTHON_IN_VENV) handler.py

test: $(STAMP)
	@$(PYTHON_IN_VENV) -m pytest

lint: $(STAMP)
	@$(PYTHON_IN_VENV) -m ruff check .
	@$(PYTHON_IN_VENV) -m ruff format --check .
	@$(PYTHON_IN_VENV) -m mypy

check: lint test

lock: $(STAMP)
	@$(PYTHON_IN_VENV) tools/lock.py

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	@echo 'The embedded model stays in your cache folder (speculative-vllm-worker).'
