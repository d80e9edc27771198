# Each target first installs what it needs into `.venv`. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
# Without byte-compiling every module, installing takes half the time; Python compiles what a run imports and keeps it, which some
# containers forbid: then every process of the tests would compile torch again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
.PHONY: help setup run test test-quick test-long coverage lint docs figures bench bench-check faults churn views clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 14

setup: .venv/ready-to-develop ## install everything, at the versions of constraints.txt

.venv/ready-to-run: pyproject.toml setup.py constraints.txt $(wildcard src/dnasa/engine/*.[ch])
	$(PYTHON) -m venv .venv
	rm -f src/dnasa/*.so
	$(PIP) -e ".[torch,data,plot,sites]"
	@$(BIN)/python -c "import dnasa.compiled" 2>/dev/null || echo "WARNING: the C extension was not built: everything works, more slowly." \
		"To see why: $(BIN)/pip install --verbose --no-deps -e ."
	touch $@

.venv/ready-to-develop: .venv/ready-to-run
	$(PIP) "dnasa[dev,docs]"
	-$(BIN)/pytest --collect-only >/dev/null # compiles what the tests import, which each of their processes would do at once
	touch $@

run: .venv/ready-to-run ## train 8 nodes on a ring; results in runs/first
	$(BIN)/dnasa train --nodes 8 --topology ring --out runs/first --force
	@echo "To run dnasa yourself: . .venv/bin/activate"

test: setup ## run the tests, four minutes on two cores
	$(BIN)/pytest -n 4

test-quick: setup ## run the tests of rules, graphs and messages, below a minute
	$(BIN)/pytest -n 3 tests/rules tests/engine/test_simulate.py tests/topology/test_topology.py tests/channels/test_channels.py tests/test_imports.py tests/test_randomness.py

test-long: setup ## run the tests that take minutes
	$(BIN)/pytest -n 2 -m long

coverage: setup ## run the tests and print how much of each file of src they execute
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 3
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

lint: setup ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: setup ## build the site into site/, then execute its pages, notebooks and examples
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/pytest -n 2 -m "docs and not long"

figures: setup ## draw the paper's figures at full length
	for figure in fig1 fig2 fig3 fig4 fig5 fig6; do $(BIN)/dnasa reproduce $$figure --out figures || exit 1; done

bench: setup ## measure speed and memory
	$(BIN)/python -m benchmarks.suite
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.foundation
	$(BIN)/python -m benchmarks.networks
	$(BIN)/python -m benchmarks.rules
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 2 -m benchmarks.overlap
	OMP_NUM_THREADS=1 $(BIN)/mpirun --allow-run-as-root --oversubscribe -n 8 $(BIN)/python -m benchmarks.exchange --step

bench-check: setup ## compare the speed with the committed results
	$(BIN)/python -m benchmarks.suite --check

faults: setup ## trials of real faults
	PYTHONPATH=tests $(BIN)/python tests/jobs/faults.py

views: setup ## 10,000 random schedules of faults, and all short ones: no two groups of sites train at once
	DNASA_SCHEDULES=10000 $(BIN)/pytest -n 2 -q tests/sites/test_views.py -m "long or not long" -k "random or goodbye or once-started"

churn: setup ## processes that leave and join, for half an hour (MINUTES=2 FAULTS=8 is what CI runs)
	PYTHONPATH=.:tests/helpers:$$PYTHONPATH $(BIN)/python tests/jobs/churn.py --minutes $(or $(MINUTES),31) --faults $(or $(FAULTS),120)

clean: ## remove .venv, runs and everything built
	rm -rf .venv runs figures site studies
