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

# Jupyter's colours of a traceback can hardly be read on its pink ground.
PLAIN_TRACES := c.InteractiveShell.colors = "nocolor"

.DEFAULT_GOAL := help
.PHONY: help env lab reset test browser-test notebooks book wheel soak mutants coverage lint format doctor constraints clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

env: $(STAMP)  ## Create or update .venv (PYTHON=python3.12 picks the Python)

$(STAMP): pyproject.toml constraints.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	    found=$$($(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null || echo 'not found'); \
	    echo "rosecourse needs Python 3.11 to 3.13, but $(PYTHON) is $$found." \
	        "Install one and name it: make env PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[lab,dev,serve]'
	@mkdir -p $(VENV)/etc/ipython && printf '%s\n' '$(PLAIN_TRACES)' > $(VENV)/etc/ipython/ipython_kernel_config.py
	@touch $@

# Jupyter's root is the repository, so that sources and tests are at hand; it opens the learner's copy of the first page.
# Of a notebook that is not trusted it shows no SVG picture until the cell is run.
NOTEBOOKS = $(wildcard notebooks/*.ipynb notebooks/*/*.ipynb)
COPIES = $(patsubst notebooks/%,my/%,$(NOTEBOOKS))
lab: env  ## Open my/, your copy of the notebooks, in Jupyter Lab (ARGS='--no-browser --port 8899')
	$(BIN)/python -m rosecourse desk
	@$(IN_VENV) jupyter trust $(COPIES) >/dev/null
	$(IN_VENV) jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/my/000_start_here.ipynb $(ALLOW_ROOT) $(ARGS)

reset: env  ## Bring back a notebook of my/ as the course has it, and keep yours beside it (LESSON=038 or hunts/038)
	$(BIN)/python -m rosecourse desk --reset '$(LESSON)'

LINT := $(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/mypy && $(BIN)/lint-imports --no-logo
# Files in the order of `testpaths`: sorted by the number of their tests, the slow ones that have few would come last,
# and keep one process busy while the others have nothing to do.
# A thread for each process: two processes whose operations want both cores wait for each other.
PYTEST := $(IN_VENV) OMP_NUM_THREADS=1 python -m pytest --nbval --ignore=tests/browser --numprocesses logical --maxprocesses 4 \
    --dist loadfile --no-loadscope-reorder

test: env  ## Lint, run every test and check every notebook, whatever fails (ARGS='-k scheduler')
	@lint=passed; tests=passed; \
	$(LINT) || lint=failed; \
	$(PYTEST) $(ARGS) || tests=failed; \
	$(BIN)/python tools/weigh --step --rose; \
	echo "lint: $$lint, tests: $$tests"; \
	test "$$lint $$tests" = 'passed passed'

browser-test: env  ## Drive Jupyter Lab in Chromium, which has to be installed (ARGS='-k dark')
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[browser]'
	$(IN_VENV) python -m pytest tests/browser $(ARGS)

wheel: env  ## Build the wheel, install it into an empty environment, and generate from another folder
	$(BIN)/python -m tests.repo.wheel

soak: env  ## A million random steps; faults; interrupts at every line (ARGS='faults --worlds 9')
	$(BIN)/python -m tests.support.soak $(ARGS)
	$(PYTEST) --hypothesis-profile default tests

mutants: env  ## Change the engine in 400 small ways: a test must fail (half an hour; ARGS='--seed 1 --count 50')
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[mutants]'
	$(BIN)/python -m tests.support.mutants $(ARGS)

coverage: env  ## Run the tests and say how many branches of each folder they take
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[mutants]'
	$(BIN)/python -m tests.support.coverage_by_folder

notebooks: env  ## Execute all notebooks and write their outputs
	$(IN_VENV) jupyter nbconvert --to notebook --execute --inplace $(NOTEBOOKS)

# With warnings as errors: a link to a heading that is gone, a docstring that cannot be read.
book: env  ## Make pages of the notebooks as they are, and of the docstrings: build/book/index.html
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[book]'
	rm -rf build/book docs/book/api docs/book/notebooks
	cp -r notebooks docs/book/
	@echo 'Making the pages: that takes a minute or two.'
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --doctree-dir build/doctrees docs/book build/book
	@echo 'Open build/book/index.html in a browser.'

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
	$(SCRATCH)/bin/python -m pip install -c $(SCRATCH)/kept.txt -e '.[lab,dev,serve,ray,mutants,browser,book,train]'
	$(SCRATCH)/bin/python -m pip freeze --all --exclude-editable --exclude pip > $(SCRATCH)/freeze.txt
	{ grep '^#' constraints.txt; sed 's/+.*//' $(SCRATCH)/freeze.txt | grep -vE '^(nvidia|cuda)-'; } > $(SCRATCH)/new.txt
	mv $(SCRATCH)/new.txt constraints.txt
	rm -rf $(SCRATCH)

clean:  ## Remove .venv, caches and build outputs
	rm -rf $(VENV) $(SCRATCH) build dist mutants docs/book/api docs/book/notebooks *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
