# Everything a newcomer needs: `make demo` runs the example, `make test` the tests. Both first make .venv with
# exactly the versions in constraints.txt; a rerun starts at once. Another Python: make demo PYTHON=python3.12
#
# Paths are relative, so that a checkout below a directory with spaces works.

SHELL = /bin/sh
PYTHON =
RANKS = 3
BIN = .venv/bin
READY = .venv/ready

.DEFAULT_GOAL = help
.PHONY: help demo smoke test test-all test-kill test-slurm lint format docs bench lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## run jobs/demo.toml on RANKS=3 ranks and show its table
	$(BIN)/mpiexec -n $(RANKS) $(BIN)/fedande run jobs/demo.toml -o results/demo
	$(BIN)/fedande table results/demo

smoke: $(READY) ## run jobs/smoke.toml, the shape of the paper's experiment in small
	$(BIN)/mpiexec -n $(RANKS) $(BIN)/fedande run jobs/smoke.toml -o results/smoke
	$(BIN)/fedande table results/smoke

test: $(READY) ## run the tests, without the slow ones
	$(BIN)/python -m pytest -m "not slow"

test-all: $(READY) ## run all tests but those under SLURM
	$(BIN)/python -m pytest -m "not slurm"

test-kill: $(READY) ## kill random ranks 100 times and stop jobs 30 times; nothing may be lost (some minutes)
	FEDANDE_KILLS=100 FEDANDE_TERMS=30 $(BIN)/python -m pytest -m kill -s

test-slurm: $(READY) ## install and start SLURM on this machine (Debian, root) and run the batch scripts
	tests/slurm/start_slurm.sh --install
	$(BIN)/python -m pytest -m slurm tests/slurm

lint: $(READY) ## check style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## rewrite the code in the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## rewrite docs/configuration.md from the code
	$(BIN)/python -c "from fedande_mpi.config import config_reference as text; print(text(), end='')" > .docs.tmp
	mv .docs.tmp docs/configuration.md

bench: $(READY) ## measure everything into docs/performance.md; BENCH="--only kernel", see benchmarks/README.md
	mkdir -p results
	$(BIN)/python benchmarks/bench.py --json results/bench.json --markdown docs/performance.md $(BENCH)

lock: $(READY) ## rewrite constraints.txt from what .venv holds
	$(BIN)/python -m pip freeze --exclude-editable --local > .freeze.tmp
	{ sed -n '/^#/p' constraints.txt; grep -v '^#' .freeze.tmp; } > .lock.tmp
	mv .lock.tmp constraints.txt
	rm -f .freeze.tmp

clean: ## remove .venv and caches (results stay)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# An environment that an interruption left half made, that belongs to a Python that is gone, or that was made for
# another place (its scripts name it), is made anew.
ifneq ($(shell test -x $(BIN)/python && test "$$(cat $(READY) 2>/dev/null)" = "$$(pwd)" && echo yes),yes)
.PHONY: $(READY)
endif

$(READY): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    || test "$$(cat $(READY) 2>/dev/null || pwd)" != "$$(pwd)"; then \
	    found=; \
	    for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	        if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	            found="$$python"; break; \
	        fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "make: expected Python 3.11 or newer, came '$$($(or $(PYTHON),python3) --version 2>&1 | head -n 1)';" \
	            "install one and name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; \
	    fi; \
	    if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	        echo "make: expected a Python with venv and ensurepip, came $$found without them;" \
	            "install them (Debian, Ubuntu: apt install python3-venv) or name another: make PYTHON=..." >&2; \
	        exit 1; \
	    fi; \
	    echo "making .venv with $$("$$found" --version)"; \
	    "$$found" -m venv --clear .venv || exit 1; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mpich,dev]'
	@pwd > $(READY)
