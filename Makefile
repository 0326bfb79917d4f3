# Each target creates .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

DEMO := $(VENV)/.demo

.PHONY: help demo test test-all lint types wheel bench docs paper paper-quick clean

help:
	@echo "make demo      compare all methods on real film reviews; writes out/demo/report/index.html"
	@echo "make test      linters, type checks and the quick tests"
	@echo "make test-all  make test with the exhaustive and statistical tests"
	@echo "make wheel     build the wheel and install it in a fresh environment (needs the package index)"
	@echo "make bench     measure speed; writes figures and JSON to out/; DATA=folder adds sampling and training"
	@echo "make docs      build the documentation site in out/site"
	@echo "make paper DATA=folder        the paper's experiments (hours); paper-quick takes minutes"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The demo does not need torch: it installs only the extra "demo".
$(DEMO): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	@touch $@

demo: $(DEMO)
	$(BIN)/adaptdel demo --out out/demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -n 2 -q

test-all: lint types
	$(BIN)/pytest -n 2 --dist worksteal -q -m 'slow or not slow'

wheel: $(STAMP)
	$(BIN)/pytest -q -m 'slow or not slow' tests/test_package.py

bench: $(STAMP)
	@mkdir -p out
	$(BIN)/python -m benchmarks.certificate --out out
ifdef DATA
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.sampling --data $(DATA) --out out
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.sampling --data $(DATA) --out out --sets spamassassin --side-by-side 24
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.training --data $(DATA) --out out
	$(BIN)/python -m benchmarks.optimiser --data $(DATA) --out out
endif

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open out/site/index.html"

paper paper-quick: $(STAMP)
	@test -n "$(DATA)" || { echo "name the folder of the data sets: make $@ DATA=folder" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.paper --data $(DATA) --out out/$@ $(if $(filter paper-quick,$@),--quick --results out/$@/results,) $(ARGS)

clean:
	rm -rf $(VENV) out build .mypy_cache .ruff_cache .pytest_cache .hypothesis
