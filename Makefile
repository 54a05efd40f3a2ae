# Two commands do all set-up from a fresh clone: `make train` and `make test`.

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,\
  $(shell $(p) -c 'import sys; print("$(p)" if (3,11) <= sys.version_info < (3,14) else "")' 2>/dev/null)))
VENV ?= .venv
BIN := $(VENV)/bin
# Compiling every module of TensorFlow takes longer than compiling those that are imported.
# Python must be allowed to store these, or every process of the tests compiles them again.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --editable
ENV := CartPole-v1
SEED := 0
RUN := runs/$(ENV)/$(shell date +%Y-%m-%d_%H-%M-%S)
STRESS := env_outputs saving kills bit_flips hostile_files memory replicated_learners worker_faults worker_kills

.PHONY: train test check format docs docs-search slow mutants stress bench bench-setup browser dist clean

train: $(VENV)/installed
	$(BIN)/tf-reinforce train $(ENV) --seed $(SEED) --run-dir $(RUN)
	$(BIN)/tf-reinforce export $(RUN) --out $(RUN)/policy

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy tf_reinforce
	$(BIN)/python -m pytest -n 2 --dist worksteal

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Warnings are errors, among them links to missing pages, files and headings.
docs: $(VENV)/installed-docs
	$(BIN)/python -m sphinx -W --keep-going -n -q docs docs/_build/html
	@echo "open docs/_build/html/index.html"

docs-search: docs
	$(BIN)/python docs/check_search.py docs/_build/html

slow: $(VENV)/installed-dev
	$(INSTALL) ".[dev,docs,mujoco,envpool,examples]"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

mutants: $(VENV)/installed-dev
	$(BIN)/python tests/mutants/run.py

# Each program writes its counts to stress/results/NAME.json, and fails if a count is bad.
stress: $(VENV)/installed-dev
	$(INSTALL) ".[dev,mujoco]"
	@mkdir -p stress/results; failed=; \
	for name in $(STRESS); do \
	  echo "== $$name"; \
	  $(BIN)/python stress/$$name.py --out stress/results/$$name.json || failed="$$failed $$name"; \
	done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

bench: $(VENV)/installed-dev
	$(INSTALL) ".[dev,mujoco,plot]"
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/race.py all

# Makes the four virtual environments of the race; TF-Agents needs Python 3.11.
bench-setup:
	for name in jax ours tfagents torch; do \
	  python3.11 -m venv .venv-race/$$name && .venv-race/$$name/bin/python -m pip install \
	    --quiet --requirement benchmarks/race/requirements/$$name.txt || exit 1; \
	done

# Installs ONNX Runtime Web from npm, and tests the page of examples/browser in Chromium.
browser: $(VENV)/installed-dev
	cd examples/browser && npm install --no-audit --no-fund --no-package-lock
	$(BIN)/python -m pip install --quiet playwright
	$(BIN)/python -m pytest -m slow tests/examples/test_browser.py

# The list in an old egg-info would add files that the repository no longer has.
dist: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet "build>=1.2" "twine>=6.1"
	rm -rf dist *.egg-info
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info

# The pip that comes with Python 3.11 needs twice the time to choose files.
$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { \
	  echo "tf_reinforce needs Python 3.11, 3.12 or 3.13, and found none of them."; \
	  echo "Install one (Debian: apt-get install python3.11 python3.11-venv), or say"; \
	  echo "where it is: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@echo "making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "No virtual environment could be made (Debian: apt-get install"; \
	  echo "python3-venv, or the one of your Python)."; exit 1; }
	@$@ -m pip install --quiet --upgrade pip

$(VENV)/installed: $(VENV)/bin/python setup.cfg pyproject.toml
	@echo "installing tf_reinforce and TensorFlow (0.5 GB to download)"
	@$(INSTALL) .
	@touch $@

$(VENV)/installed-dev: $(VENV)/bin/python setup.cfg pyproject.toml
	$(INSTALL) ".[dev]"
	touch $(VENV)/installed $@

$(VENV)/installed-docs: $(VENV)/bin/python setup.cfg pyproject.toml
	$(INSTALL) ".[docs]"
	touch $(VENV)/installed $@
