# Every target makes the virtual environment that it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# A process a core, each with one thread: two threads of two processes would wait for each other.
TESTS  := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The demo installs little, and what the server needs that it ends with; the tests every optional package, so that none is skipped for want of one.
READY  := $(VENV)/.installed
STAMP  := $(VENV)/.installed-all
EXTRAS := bases,bm25,eval,harness,hf,html,milvus,pdf,s3,scale,scann,serve,tensorboard,wikipedia,dev

.PHONY: help demo browser test test-slow fuzz kills check format bench bench-every docs constraints clean

help:
	@echo "make demo         set up, then a manual → datastore → SmolLM2 RETROfitted → demo/report.html (about 5 minutes on 2 cores)"
	@echo "make test         set up, then the tests"
	@echo "make test-slow    the long tests as well"
	@echo "make fuzz         10,000 odd inputs to readers, finished folders and commands (docs/robustness.md)"
	@echo "make kills        100 kills at random moments of every stage"
	@echo "make check        format, lint, types, import rules"
	@echo "make bench        one table: what a user waits for, beside a rival and the machine's limit (20 minutes)"
	@echo "make bench-every  every benchmark with all that it prints (hours)"
	@echo "make docs         write docs/reference from the code (about two minutes)"

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt --editable '.[bases,eval,serve]'
	@touch $@

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@ $(READY)

# The server's page is tested in a browser, and its modules in node: Debian's packages, if root may install
# them. Elsewhere the tests say what is missing, and how to go without.
browser:
	@{ { command -v chromium || command -v google-chrome; } && command -v node; } >/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update && \
	    apt-get -qq install --yes --no-install-recommends chromium nodejs >/dev/null; } || true

demo: $(READY)
	$(BIN)/retro demo

test: $(STAMP) browser
	$(TESTS) -m "not slow"

test-slow: $(STAMP) browser
	$(BIN)/python -m pytest

fuzz: $(STAMP)
	RETRO_FUZZ=$${RETRO_FUZZ:-10000} $(BIN)/python -m pytest tests/fuzz

kills: $(STAMP)
	RETRO_KILLS=$${RETRO_KILLS:-100} $(BIN)/python -m pytest tests/kills -m slow

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

bench-every: $(STAMP)
	$(BIN)/python benchmarks/every.py

docs: $(STAMP)
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_bases.py

# Pin what a fresh environment resolves to.
constraints:
	rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[$(EXTRAS)]' torch==2.13.0
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
