# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Empty: tests start hundreds of processes, and each would compile the package; pytest would rewrite every test again.
export PYTHONDONTWRITEBYTECODE =
CPP := $(shell find native tests/native -name '*.[ch]pp')
# In the builds of those who work on it a warning is an error.
STRICT := -C cmake.define.DOWNSET_STRICT=ON
# Tests of wording, of types and of the tests: part of `make lint`, and not of `make test`.
LINT_TESTS := tests/docs/test_prose.py tests/docs/test_glossary.py tests/test_needs.py tests/test_typed_uses.py

.PHONY: demo test docs wheel lowest fuzz lint lock native sanitize clean bench-fit bench-field bench-orders bench-serenity bench-arenas \
	bench-ios bench-pico bench-testbed bench-partial bench-inductor

demo: $(VENV)/demo.stamp  ## set up, then fit two real models, print both screens and write a page for each
	$(BIN)/python -m experiments.fit.demo

test: $(VENV)/dev.stamp  ## set up, then run all tests but those of lint; LONG=1: with ten times the random cases
	$(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder $(addprefix --ignore=,$(LINT_TESTS)) $(PYTEST_ARGS)

lint: $(VENV)/dev.stamp  ## formatting, lint, spelling, prose, the glossary, tables of pages and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell $$(git ls-files)
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/python -m docs_site.tables --check
	$(BIN)/python -m pytest -q $(LINT_TESTS)

native: $(VENV)/bin/pip  ## rebuild the native module, and the stub of its types, after a change in native/
	mkdir -p build && flock build/.lock $(BUILD) $(STRICT) -e .
	$(BIN)/python -m nanobind.stubgen -q -m downset._native -o src/downset/_native.pyi
	$(BIN)/ruff format -q src/downset/_native.pyi
	$(BIN)/ruff check -q --fix src/downset/_native.pyi
	$(BIN)/ruff format -q src/downset/_native.pyi

sanitize: $(VENV)/dev.stamp  ## the native tests with sanitizers for addresses and undefined behaviour; QUICK=1: some
	CXX=$(CXX) cmake -S . -B build/sanitize -G Ninja -DCMAKE_BUILD_TYPE=Debug \
		-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python \
		-Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) -DDOWNSET_STRICT=ON -DDOWNSET_SANITIZE=ON
	cmake --build build/sanitize
	build/sanitize/bits_laws
	env LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 DOWNSET_SANITIZED=build/sanitize QUICK=$(QUICK) \
		$(BIN)/python -m pytest -n 2 -p tests.native.sanitized -m native $(PYTEST_ARGS) \
		$$(grep -rl --include='test_*.py' 'mark\.native' tests)

docs: $(VENV)/dev.stamp  ## the site, into build/site; any warning ends the build
	env PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

wheel: $(VENV)/dev.stamp  ## a wheel and an sdist into dist/, each installed in a clean environment, where it fits a model
	.ci/wheel $(BIN)/python

lowest: $(VENV)/dev.stamp  ## each extra by the lowest versions that pyproject.toml allows, installed and used
	.ci/lowest $(BIN)/python

fuzz: $(VENV)/dev.stamp  ## damaged files of every format for MINUTES=10; prints the count and the share that parses
	$(BIN)/python -m tests.fuzz.campaign --minutes $(or $(MINUTES),10)

bench-fit: $(VENV)/dev.stamp  ## fit every real model, and hold ONNX Runtime's memory model to its measurements
	$(BIN)/python -m experiments.fit.wheels
	$(BIN)/python -m experiments.stream.windows
	$(BIN)/python -m experiments.stream.published
	$(BIN)/python -m experiments.stream.unrolled
	$(BIN)/python -m experiments.ort.memory
	$(BIN)/python -m experiments.ort.options
	$(BIN)/python -m experiments.fit.torch_workspaces

bench-field: $(VENV)/dev.stamp  ## read and fit the models of packages that nobody here had tuned to
	$(BIN)/python -m experiments.field --fetch
	$(BIN)/python -m experiments.field.independent --fetch

bench-orders: $(VENV)/dev.stamp  ## how fast the optimum is found
	$(BIN)/python -m experiments.speed.order
	$(BIN)/python -m experiments.speed.trees
	$(BIN)/python -m experiments.speed.fit_scale

bench-serenity: $(VENV)/dev.stamp  ## the figures and tables of SERENITY's evaluation: paper | ours | ratio
	for name in memories memories.strips memories.files memories.executorch; do $(BIN)/python -m experiments.$$name || exit 1; done
	for name in swiftnet figure3 figure8 figure10 figure11 figure12 table2 rewriting; do $(BIN)/python -m experiments.serenity.$$name || exit 1; done

bench-ios: $(VENV)/dev.stamp  ## the tables and figures of the stages paper, measured on this CPU or simulated
	for name in table1 table2 search fig6 fig10 fig10_measured fig16 cpu peers table3_simulated table3 figures merged gpu; do $(BIN)/python -m experiments.ios.$$name || exit 1; done

bench-pico: $(VENV)/dev.stamp  ## the pipelines paper's tables and figures, and what exact planning is worth: analytic
	for name in table4 figure2 figure5 cuts numbers compare speed hand_over table5 redundancy tables6_7 figures12_16; do $(BIN)/python -m experiments.pico.$$name || exit 1; done

bench-partial: $(VENV)/dev.stamp  ## segments in strips: the front, measured in TFLite Micro and ONNX Runtime
	$(BIN)/python -m experiments.partial
	$(BIN)/python -m experiments.partial.micro
	$(BIN)/python -m experiments.partial.tiles
	$(BIN)/python -m experiments.partial.peers
	$(BIN)/python -m experiments.partial.mcunet
	$(BIN)/python -m experiments.partial.accumulate
	$(BIN)/python -m experiments.partial.last_map
	$(BIN)/python -m experiments.partial.tokens

bench-inductor: $(VENV)/dev.stamp  ## training steps compiled by PyTorch, without and with our order
	$(BIN)/python -m experiments.inductor
	$(BIN)/python -m experiments.inductor --again
	$(BIN)/python -m experiments.inductor.recompute

bench-testbed: $(VENV)/dev.stamp  ## pipelines measured on Ray in network namespaces; needs root, about two hours
	$(BIN)/python -m experiments.testbed.shaping
	$(BIN)/python -m experiments.testbed.message_cost
	for medium in links shared; do for devices in 4 8; do $(BIN)/python -m experiments.testbed.measured --devices $$devices --medium $$medium || exit 1; done; done
	$(BIN)/python -m experiments.testbed.replans
	$(BIN)/python -m experiments.cluster.frame_cost
	$(BIN)/python -m experiments.cluster.service
	$(BIN)/python -m experiments.testbed.figures

bench-arenas: $(VENV)/dev.stamp  ## the memory paper's tables, exact objects and offsets, and how planning time grows
	for name in tflite_memory.tables tflite_memory.shares tflite_memory.litert arenas.objects arenas.minimalloc speed.arena arenas.executorch_peer; do $(BIN)/python -m experiments.$$name || exit 1; done

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

# Packages come from locks/, by hash, and ours is built with those tools.
INSTALL := $(BIN)/pip install -q --no-compile --no-deps --require-hashes -r
# pip compiles modules on one core, this on all; packages have sources that do not compile, which nothing imports. What
# is seldom imported is compiled when it is.
SELDOM := /tests?/|/(pandas|pip|pygments|mypyc?|networkx|playwright|setuptools|torchgen|ortools)/|/sympy/physics/
SELDOM := $(SELDOM)|/ray/(rllib|data|serve|tune|train|llm)/|/torch/(testing|onnx)/|/onnxruntime/(tools|transformers)/
COMPILE := $(BIN)/python -m compileall -q -j 0 -x '$(SELDOM)' $(VENV)/lib > $(VENV)/compile.log || true
BUILD := env PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pip install -q --no-build-isolation --no-deps

$(VENV)/demo.stamp: pyproject.toml locks/demo.txt $(shell find src native -type f -name '*.[pch]*') | $(VENV)/bin/pip
	$(INSTALL) locks/demo.txt
	$(COMPILE)
	$(BUILD) .
	touch $@

$(VENV)/dev.stamp: pyproject.toml locks/dev.txt locks/torch.txt CMakeLists.txt $(shell find native -type f) | $(VENV)/bin/pip
	$(INSTALL) locks/dev.txt
	$(BUILD) $(STRICT) -e . & ours=$$!; \
	{ $(INSTALL) locks/torch.txt || { echo "torch: no locked wheel for this platform; taking one by version"; \
		$(BIN)/pip install -q --no-deps --index-url https://download.pytorch.org/whl/cpu -c constraints.txt torch; }; }; \
	torch=$$?; wait $$ours && exit $$torch
	$(COMPILE)
	touch $@

lock: $(VENV)/bin/pip  ## renew what demo and test install; UV="--upgrade-package NAME": one package only
	$(BIN)/pip install -q uv
	for extra in demo dev; do \
		$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-package torch \
			--custom-compile-command "make lock" -c constraints.txt --override locks/without_torch.txt --extra $$extra \
			$(if $(UV),$(UV),--upgrade) pyproject.toml locks/build.in $$([ $$extra = dev ] && echo locks/torch.in) \
			-o locks/$$extra.txt || exit 1; done
	for wanted in locks/executorch-*.in locks/trainers.in; do \
		$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-deps \
			--custom-compile-command "make lock" $(if $(UV),$(UV),--upgrade) $$wanted -o $${wanted%.in}.txt || exit 1; done

clean:
	rm -rf $(VENV) build
