# `make run` trains, `make test` tests. Each first installs what it needs into `.venv`.
PYTHON ?= python3
BIN := .venv/bin
# Without byte-compiling every module, installing takes half the time; Python compiles what a run imports.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
.PHONY: setup run test test-long lint docs figures bench bench-check faults churn clean

setup: .venv/ready-to-develop

.venv/ready-to-run: pyproject.toml setup.py constraints.txt src/dnasa/engine/kernels.c src/dnasa/engine/kernels.h
	$(PYTHON) -m venv .venv
	rm -f src/dnasa/*.so
	$(PIP) -e ".[torch,data,plot]"
	@$(BIN)/python -c "import dnasa.compiled" 2>/dev/null || echo "WARNING: the C extension was not built: everything works, more slowly." \
		"To see why: $(BIN)/pip install --verbose --no-deps -e ."
	touch $@

.venv/ready-to-develop: .venv/ready-to-run
	$(PIP) "dnasa[dev,docs]"
	touch $@

run: .venv/ready-to-run
	$(BIN)/dnasa train --nodes 8 --topology ring --out runs/first --force

test: setup
	$(BIN)/pytest -n 2

test-long: setup
	$(BIN)/pytest -n 2 -m long

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/pytest -n 2 -m "docs and not long"

figures: setup
	for figure in fig1 fig2 fig3 fig4 fig5 fig6 heterogeneity faults theory; do $(BIN)/dnasa reproduce $$figure --out figures || exit 1; done

bench: setup
	$(BIN)/python -m benchmarks.suite
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.foundation
	$(BIN)/python -m benchmarks.networks
	$(BIN)/python -m benchmarks.choices
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python -m benchmarks.rules
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 2 -m benchmarks.overlap
	OMP_NUM_THREADS=1 $(BIN)/mpirun --allow-run-as-root --oversubscribe -n 8 $(BIN)/python -m benchmarks.exchange --step

bench-check: setup
	$(BIN)/python -m benchmarks.suite --check

faults: setup
	$(BIN)/python tests/faults.py 240

churn: setup
	$(BIN)/python tests/churn.py --minutes $(or $(MINUTES),31) --faults $(or $(FAULTS),120)

clean:
	rm -rf .venv runs figures site studies
