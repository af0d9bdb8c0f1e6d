# Needs Python 3.11 to 3.13, pip and make. Everything is installed into .venv.
#
# pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, pip.conf) are respected. Where they offer
# PyTorch's CPU build, pip prefers it: constraints.txt pins the version and leaves the build open.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed.stamp
# So that notebook cells such as `!python -m ...` and Jupyter's terminals find this environment's Python.
IN_VENV := PATH="$(CURDIR)/$(BIN):$$PATH"
# Jupyter refuses to run as root (containers, rented GPU machines) unless told to.
ALLOW_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# A kernel of this environment says what to do when a cell in the middle is the first to run.
RESTART_HINT := c.InteractiveShellApp.extensions = ["rosecourse.pages.restarted"]

.DEFAULT_GOAL := help
.PHONY: help env lab test notebooks wheel soak mutants adversary lint format doctor constraints clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

env: $(STAMP)  ## Create or update .venv (PYTHON=python3.12 picks the Python)

$(STAMP): pyproject.toml constraints.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	    found=$$($(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null || echo 'not found'); \
	    echo "rosecourse needs Python 3.11 to 3.13, but $(PYTHON) is $$found." \
	        "Install one and name it: make env PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[lab,dev]'
	@mkdir -p $(VENV)/etc/ipython && echo '$(RESTART_HINT)' > $(VENV)/etc/ipython/ipython_kernel_config.py
	@touch $@

lab: env  ## Open the notebooks in Jupyter Lab (ARGS='--no-browser --port 8899')
	$(IN_VENV) jupyter lab notebooks/ $(ALLOW_ROOT) $(ARGS)

LINT := $(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy
PYTEST := $(IN_VENV) python -m pytest --nbval --numprocesses logical --maxprocesses 4 --dist loadfile

test: env  ## Lint, run every test and check every notebook, whatever fails (ARGS='-k scheduler')
	@lint=passed; tests=passed; \
	$(LINT) || lint=failed; \
	$(PYTEST) $(ARGS) || tests=failed; \
	echo "lint: $$lint, tests: $$tests"; \
	test "$$lint $$tests" = 'passed passed'

wheel: env  ## Build the wheel, install it into an empty environment, and generate from another folder
	$(BIN)/python -m tests.repo.wheel

soak: env  ## A million random steps, each slot checked; interrupts, faults (ARGS='--worlds 9' FAULTS='--worlds 9' INTERRUPTS='--interrupts 9')
	$(BIN)/python -m tests.support.soak $(ARGS)
	$(BIN)/python -m tests.support.interrupt_soak $(INTERRUPTS)
	$(BIN)/python -m tests.support.fault_soak $(FAULTS)

mutants: env  ## Change the code in small ways: a test must fail (half an hour; ARGS='rosecourse.engine.scheduler*')
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[mutants]'
	$(BIN)/python -m tests.support.mutants $(ARGS)

adversary: env  ## Check all wrong parts, those too that were written without a look at the checker: it takes long (ARGS='038_ring 061')
	$(BIN)/python -m tests.support.adversary $(ARGS)
	ALL_WRONG_PARTS=1 $(BIN)/python -m pytest -q tests/lab/test_lab_check_wrong.py

notebooks: env  ## Execute all notebooks and write their outputs
	$(IN_VENV) jupyter nbconvert --to notebook --execute --inplace notebooks/*.ipynb

lint: env  ## Check style, formatting and types
	$(LINT)

format: env  ## Fix style and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

doctor: env  ## Say what was found on this machine, and what is missing
	$(BIN)/rosecourse doctor

# Kept as they are: torch and triton, which are chosen together, and soupsieve, whose later versions refuse the early
# releases of Python 3.11. The rest is what pip resolves around them, less what only torch's CUDA build needs. Use the
# oldest supported Python, so that every pin exists for all of them.
KEPT := ^(torch|triton|soupsieve)==
SCRATCH := $(VENV)-constraints
constraints:  ## Resolve constraints.txt anew (PYTHON=python3.11)
	$(PYTHON) -m venv --clear $(SCRATCH)
	grep -E '$(KEPT)' constraints.txt > $(SCRATCH)/kept.txt
	$(SCRATCH)/bin/python -m pip install -c $(SCRATCH)/kept.txt -e '.[lab,dev,mutants,train]'
	$(SCRATCH)/bin/python -m pip freeze --all --exclude-editable --exclude pip > $(SCRATCH)/freeze.txt
	{ grep '^#' constraints.txt; sed 's/+.*//' $(SCRATCH)/freeze.txt | grep -vE '^(nvidia|cuda)-'; } > $(SCRATCH)/new.txt
	mv $(SCRATCH)/new.txt constraints.txt
	rm -rf $(SCRATCH)

clean:  ## Remove .venv, caches and build outputs
	rm -rf $(VENV) $(SCRATCH) build dist mutants *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
