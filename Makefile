# `make demo` and `make test` need only python3 (3.10 or newer, with venv). The first run creates .venv
# and installs the packages that the command needs. `make test VENV=/path/to/venv` uses an existing
# environment.

PYTHON ?= python3
EXTRAS := accelerate,cli,elastic,stateful,examples,bench,docs,dev
DEMO_ARGS ?=
TEST_ARGS ?=
# Test files run in parallel: more than cores, because ranks often wait for each other.
TEST_WORKERS ?= 3
ARGS ?=
MERMAID := docs/assets/mermaid.min.js
MERMAID_VERSION := 11.17.2
MERMAID_SHA256 := 581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8

ifeq ($(origin VENV),undefined)
VENV := .venv
ENVIRONMENT := $(VENV)/.installed
# Environments with the extras `demo`, `examples`, and `examples` and `elastic` only.
DEMO_ENVIRONMENT := $(VENV)/.installed-demo
EXAMPLES_ENVIRONMENT := $(VENV)/.installed-examples
ELASTIC_ENVIRONMENT := $(VENV)/.installed-elastic
else
ENVIRONMENT := named-environment
DEMO_ENVIRONMENT := named-environment-demo
EXAMPLES_ENVIRONMENT := named-environment-examples
ELASTIC_ENVIRONMENT := named-environment-elastic
endif
BIN := $(VENV)/bin

# One thread per rank: ranks share the cores, and results must not depend on the number of cores.
export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUNBUFFERED := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help install demo demo-language demo-ocr demo-stragglers demo-elastic bench bench-short fuzz test test-foreign lint types format build docs docs-serve clean named-environment named-environment-demo named-environment-examples named-environment-elastic

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(ENVIRONMENT)  ## create the virtual environment and install the package with its extras

demo: $(DEMO_ENVIRONMENT)  ## train on synthesised speech, 4 ranks in 2 groups, and compare with DDP (DEMO_ARGS=--short)
	$(BIN)/python -m examples.acoustic.demo $(DEMO_ARGS)

demo-language: $(DEMO_ENVIRONMENT)  ## train a transformer on Python source code by BMUF-Adam, 4 ranks in 2 groups, and compare (DEMO_ARGS=--short)
	$(BIN)/python -m examples.language.demo $(DEMO_ARGS)

demo-ocr: $(EXAMPLES_ENVIRONMENT)  ## train on rendered lines of text by BMUF-Adam, 4 ranks, and compare (DEMO_ARGS=--short)
	$(BIN)/python -m examples.ocr.demo $(DEMO_ARGS)

demo-stragglers: $(EXAMPLES_ENVIRONMENT)  ## train on digits with one slow rank by PSP-SGD, 4 ranks, and compare (DEMO_ARGS=--short)
	$(BIN)/python -m examples.image.demo $(DEMO_ARGS)

demo-elastic: $(ELASTIC_ENVIRONMENT)  ## train on digits in 3 groups, kill one, and watch it come back (DEMO_ARGS=--short)
	$(BIN)/python -m examples.elastic.demo $(DEMO_ARGS)

test: $(ENVIRONMENT)  ## run the tests (TEST_ARGS='-k bmuf', TEST_ARGS='-m slow', TEST_WORKERS=0)
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(TEST_ARGS)

test-foreign: $(ENVIRONMENT)  ## train models of other packages, which pip installs in .venv-foreign (ARGS='lightly chemprop')
	$(BIN)/python -m tests.foreign $(ARGS)

bench: $(ENVIRONMENT)  ## measure all strategies and alternatives over rate-limited links (ARGS='--runs 5')
	$(BIN)/python -m benchmarks.performance $(ARGS)

bench-short: $(ENVIRONMENT)  ## compare a few ratios with the committed ones; fail if one has become worse
	$(BIN)/python -m benchmarks.performance --short $(ARGS)

fuzz: $(ENVIRONMENT)  ## train random combinations of settings and check their common properties (ARGS='--minutes 60 --seed 7', ARGS='--case 7')
	$(BIN)/python -m tests.fuzz $(ARGS)

lint: $(ENVIRONMENT)  ## check style and format
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(ENVIRONMENT)  ## check types, strict for the package
	$(BIN)/python -m mypy

format: $(ENVIRONMENT)  ## format the code and apply automatic fixes
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

build: $(ENVIRONMENT)  ## build the wheel and the source archive into dist/
	$(BIN)/python -m build

# Not --quiet, which would hide the warnings that --strict counts.
docs: $(ENVIRONMENT) $(MERMAID)  ## build the documentation into site/; any warning is an error
	$(BIN)/python -m mkdocs build --strict

docs-serve: $(ENVIRONMENT) $(MERMAID)  ## serve the documentation at http://127.0.0.1:8000, rebuilt after every change
	$(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8000

# The library that draws the diagrams. Without npm, the reader's browser loads it from a CDN.
$(MERMAID):
	@mkdir -p $(@D)
	-@npm_config_fetch_retries=0 npm_config_fetch_timeout=60000 npm pack --silent --pack-destination $(@D) mermaid@$(MERMAID_VERSION) >/dev/null \
		&& tar xzmf $(@D)/mermaid-$(MERMAID_VERSION).tgz -C $(@D) --strip-components=2 package/dist/mermaid.min.js \
		&& rm $(@D)/mermaid-$(MERMAID_VERSION).tgz \
		&& echo "$(MERMAID_SHA256)  $@" | sha256sum --check --quiet --strict \
		|| { rm -f $@; echo "mermaid could not be loaded by npm: browsers will load it from a CDN"; }

clean:  ## remove build outputs and caches (the environment and results stay)
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*/*' -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation is repeated. The full installation includes
# the extra `examples`, which includes the extra `demo`.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(call install_extras,$(EXTRAS))
	touch $@ $@-elastic $@-examples $@-demo

$(VENV)/.installed-elastic: pyproject.toml constraints.txt
	$(call install_extras,examples$(comma)elastic)
	touch $@ $(VENV)/.installed-examples $(VENV)/.installed-demo

$(VENV)/.installed-examples: pyproject.toml constraints.txt
	$(call install_extras,examples)
	touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-demo: pyproject.toml constraints.txt
	$(call install_extras,demo)
	touch $@

comma := ,

define install_extras
$(PYTHON) -m venv $(VENV)
$(BIN)/python -m pip install --no-input -c constraints.txt -e '.[$(1)]'
endef

# An existing environment that has all needed packages is not changed.
NEEDED_DEMO := espeakng-loader kaldi-decoder kaldifst lightning matplotlib pyzmq tensorboard torch torchaudio
NEEDED_EXAMPLES := $(NEEDED_DEMO) pillow scikit-learn tokenizers torchvision
NEEDED_ELASTIC := lightning matplotlib pyzmq scikit-learn torch torchft
NEEDED := $(NEEDED_EXAMPLES) accelerate mypy pytest pytest-xdist ruff
named-environment:
	@$(call has,$(NEEDED)) || $(MAKE) --no-print-directory $(VENV)/.installed
named-environment-examples:
	@$(call has,$(NEEDED_EXAMPLES)) || $(MAKE) --no-print-directory $(VENV)/.installed-examples
named-environment-elastic:
	@$(call has,$(NEEDED_ELASTIC)) || $(MAKE) --no-print-directory $(VENV)/.installed-elastic
named-environment-demo:
	@$(call has,$(NEEDED_DEMO)) || $(MAKE) --no-print-directory $(VENV)/.installed-demo

define has
$(BIN)/python -c 'import sys, importlib.metadata as m; [m.version(p) for p in sys.argv[1:]]' $(1) 2>/dev/null
endef
