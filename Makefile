# A fresh machine needs python3 (3.11 or 3.12, with venv) and make. Everything else goes into .venv.

VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# pip would do it with one core. A package's templates may be no Python; as pip, we do not mind.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
STAMP := $(VENV)/.installed-from-pyproject
DEV_STAMP := $(VENV)/.installed-for-development

# What is installed before the rest, as pip's arguments: this decides whether torch is a build for the CPU or for CUDA.
# Empty: whatever build of torch pip chooses by itself.
TORCH ?= torch==2.13.0

# The first Python that will do; a name that is only a version manager's stub fails its check.
PYTHON ?= $(shell for python in python3 python3.12 python3.11; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null \
	&& echo $$python && break; done)

FIRST_PROMPT ?= What is the capital of France?

.PHONY: run test test-long lint format bench clean install

# launch.py takes the shell's place: Ctrl-C is for it alone to answer, and make has nothing to complain about.
run: $(STAMP)
	@$(if $(findstring --model,$(ARGS)),:,$(BIN)/python -m checkpoint >/dev/null)
	@exec $(BIN)/python launch.py $(if $(findstring --prompt,$(ARGS)),,--first-prompt "$(FIRST_PROMPT)") $(ARGS)

# Processes that run tests at the same time.
TEST_PROCESSES ?= 2

# The hundreds of processes that tests start read each other's bytecode, whatever the environment says of it.
test test-long: export PYTHONDONTWRITEBYTECODE =

test: lint
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "not long and not gpu" $(ARGS)

test-long: lint
	$(BIN)/python -m pytest --hypothesis-profile=long $(ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m bench scheduler $(ARGS)

install: $(DEV_STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || test -n "$(PYTHON)" || \
		{ echo "no python3 of version 3.11 or 3.12 with the venv module was found; name one with PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV): some minutes, 1.5 GB; more if pip chooses a CUDA build of torch (README, "Which torch")' >&2
	$(if $(strip $(TORCH)),@$(PIP_INSTALL) $(TORCH))
	@$(PIP_INSTALL) --config-settings editable_mode=compat -e '.[draw]'
	@$(COMPILE)
	@touch $@

# What tests need and users do not.
$(DEV_STAMP): $(STAMP)
	@echo 'installing what the tests need, 1 GB: a minute or two' >&2
	@$(PIP_INSTALL) --config-settings editable_mode=compat -e '.[dev]'
	@$(COMPILE)
	@touch $@

# Caches and build leftovers. The environment stays; to make it anew, delete .venv.
clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
