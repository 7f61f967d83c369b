# make demo    set up what is needed and show what hookline does
# make test    set up everything and run the tests
# make retest  run up to ten failed tests once more
# make coverage  the same with the coverage of the source, which takes a third longer
# make fast    the part of the tests that takes a minute; make repeat runs it twenty times
# make check   lint, formatting, types; make lint-js checks the page's JavaScript alone
# make docs    build the documentation into build/site
# make pages   write the pages that are generated from the code
# make vendor  copy the page's JavaScript libraries from npm packages into the package
# make bench   side-by-side measurements
# make soak    ten minutes of abuse, and an audit of what is left
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
SYSTEM_PACKAGES := chromium chromium-headless-shell e2fsprogs mount
# The tests start hundreds of processes; where Python is told to keep nothing compiled, each would compile all modules.
unexport PYTHONDONTWRITEBYTECODE

FAST := tests/engine tests/callbacks tests/logging tests/record tests/store

.PHONY: demo test retest coverage fast repeat check lint-js format bench docs pages vendor soak system clean

demo: $(VENV)/.demo
	$(BIN)/hookline demo

test: $(VENV)/.dev system
	$(BIN)/pytest

# Runs up to ten failed tests once more, without others beside them. It fails if there are more, or one fails again.
retest: $(VENV)/.dev system
	$(BIN)/python -c 'import json, sys; sys.exit(len(json.load(open(".pytest_cache/v/cache/lastfailed"))) > 10)'
	$(BIN)/pytest -n 0 --last-failed --last-failed-no-failures none

coverage: $(VENV)/.dev system
	$(BIN)/pytest --cov --cov-report=term:skip-covered

fast: $(VENV)/.dev
	$(BIN)/pytest $(FAST)

repeat: $(VENV)/.dev
	for _ in $$(seq 20); do $(BIN)/pytest -q $(FAST) || exit; done

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(MAKE) --no-print-directory lint-js

# Without Node.js it is skipped, unless REQUIRE_ALL is set.
lint-js:
	@if command -v npm > /dev/null; then \
		$(MAKE) --no-print-directory node_modules/.installed && npm run --silent lint; \
	elif [ -n "$$REQUIRE_ALL" ]; then echo "lint-js needs Node.js and npm. Install them." >&2; exit 1; \
	else echo "Skipping lint-js: npm is not installed."; fi

node_modules/.installed: package.json package-lock.json
	npm ci --no-audit --no-fund --silent
	@touch $@

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

pages: $(VENV)/.dev
	for page in api cli configuration json moments wandb; do $(BIN)/python scripts/$${page}_reference.py || exit; done
	$(BIN)/python scripts/llms_txt.py

vendor: node_modules/.installed
	python3 scripts/vendor.py

bench: $(VENV)/.bench
	$(BIN)/pytest -n 0 -m benchmark tests/benchmarks
	$(BIN)/python benchmarks/dispatch.py
	$(BIN)/python benchmarks/recording.py
	$(BIN)/python benchmarks/media.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/trainer.py
	$(BIN)/python benchmarks/grpo.py
	$(BIN)/python benchmarks/episodes.py
	$(BIN)/python benchmarks/experiment.py
	$(BIN)/python benchmarks/integrations.py
	$(BIN)/python benchmarks/compat.py
	$(BIN)/python benchmarks/logging_plan.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/serve.py
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/samples.py
	$(BIN)/python benchmarks/control.py
	$(BIN)/python benchmarks/replay.py

# The long tests; then training with all sinks on while everything around it is broken, and an exact audit. As root it also fills a disk
# and cuts the power of another. Then a rollout worker is killed a hundred times, and a training on Ray twenty times.
soak: $(VENV)/.dev
	$(BIN)/pytest -m soak
	PYTHONPATH=tests:tests/contract $(BIN)/python -m soak --minutes 10
	directory=$$(mktemp -d) && $(BIN)/python tests/rl/kill_rollouts.py $$directory 100 && rm -r $$directory
	directory=$$(mktemp -d) && $(BIN)/python tests/rl/kill_training.py $$directory 20 && rm -r $$directory

# Programs of the system that tests use. Without root those tests are skipped and say so.
system:
ifneq ($(strip $(SYSTEM_PACKAGES)),)
	@if dpkg -s $(SYSTEM_PACKAGES) >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ]; then apt-get update -q && apt-get install -qy --no-install-recommends $(SYSTEM_PACKAGES); \
	else echo "not root: tests that need $(SYSTEM_PACKAGES) will be skipped"; fi
endif

# Dependency groups need a recent pip.
$(VENV)/.pip: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) pip
	touch $@

$(VENV)/.core: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

# torch comes first and pinned: a resolver left to itself brings several GB of CUDA packages.
$(VENV)/.demo: $(VENV)/.core
	$(PIP) torch==2.13.0
	$(PIP) -e '.[hf,experiment,ui]'
	touch $@

# Some frameworks are installed without all that they require, and DeepSpeed where only its tests find it: pyproject.toml
# says why.
$(VENV)/.dev: $(VENV)/.core
	$(PIP) torch==2.13.0
	$(PIP) -e '.[all]' --group dev --group hosts
	$(PIP) --no-deps --group host-cores
	DS_BUILD_OPS=0 $(PIP) --no-deps --no-build-isolation --upgrade --target $(VENV)/isolated --group deepspeed \
		|| echo "DeepSpeed cannot be built here: its tests will be skipped"
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --group bench
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
