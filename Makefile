# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test lint native clean bench-fit bench-orders bench-serenity bench-arenas bench-ios bench-pico

demo: $(VENV)/demo.stamp  ## set up, then fit two real models and print both screens
	$(BIN)/python -m experiments.fit.demo

test: $(VENV)/dev.stamp  ## set up, then run all tests
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

lint: $(VENV)/dev.stamp  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

native: $(VENV)/bin/pip  ## rebuild the native module after a change in native/
	flock /tmp/downset-build.lock $(BIN)/pip install -q --no-build-isolation --no-deps -e .

bench-fit: $(VENV)/dev.stamp  ## fit every real model, write experiments/results/fit_wheels.json
	$(BIN)/python -m experiments.fit.wheels

bench-orders: $(VENV)/dev.stamp  ## how fast the optimum is found
	$(BIN)/python -m experiments.speed.order

bench-serenity: $(VENV)/dev.stamp  ## the figures and tables of SERENITY's evaluation: paper | ours | ratio
	for name in swiftnet figure3 figure10 figure11 figure12 table2 rewriting row_strips; do $(BIN)/python -m experiments.serenity.$$name || exit 1; done

bench-ios: $(VENV)/dev.stamp  ## the tables and figures of the stages paper, measured on this CPU or simulated
	for name in table1 table2 search fig6 fig10 fig10_measured fig16 cpu peers table3_simulated table3 gpu; do $(BIN)/python -m experiments.ios.$$name || exit 1; done

bench-pico: $(VENV)/dev.stamp  ## the pipelines paper's tables and figures, and what exact planning is worth: analytic
	$(BIN)/python -m experiments.pico.table4
	$(BIN)/python -m experiments.pico.figure2
	$(BIN)/python -m experiments.pico.figure5
	$(BIN)/python -m experiments.pico.cuts
	$(BIN)/python -m experiments.pico.numbers
	$(BIN)/python -m experiments.pico.table5
	$(BIN)/python -m experiments.pico.tables6_7
	$(BIN)/python -m experiments.pico.figures12_16

bench-arenas: $(VENV)/dev.stamp  ## the memory paper's tables, exact objects and offsets, and how planning time grows
	$(BIN)/python -m experiments.tflite_memory.tables
	$(BIN)/python -m experiments.tflite_memory.shares
	$(BIN)/python -m experiments.arenas.objects
	$(BIN)/python -m experiments.arenas.minimalloc
	$(BIN)/python -m experiments.speed.arena
	$(BIN)/python -m experiments.arenas.executorch_peer

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -U pip

# A CPU build of torch is enough; constraints.txt keeps pip from fetching CUDA.
$(VENV)/demo.stamp: pyproject.toml constraints.txt $(shell find src native -type f -name '*.[pch]*') | $(VENV)/bin/pip
	$(BIN)/pip install -q -c constraints.txt '.[demo]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*) | $(VENV)/bin/pip
	$(BIN)/pip install -q -c constraints.txt nanobind scikit-build-core ninja
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build
