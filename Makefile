PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: native
native:  ## rebuild the native module in place, one build at a time
	flock /tmp/downset-build.lock $(BIN)/pip install -q --no-build-isolation --no-deps -e .
