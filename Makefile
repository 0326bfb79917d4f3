# Each target creates .venv and installs what it needs by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

DEMO := $(VENV)/.demo

.PHONY: help demo test test-all lint types bench docs paper paper-quick clean

help:
	@echo "make demo      every method of the paper on real film reviews; the report is out/demo/report/index.html"
	@echo "make test      linters, types and all quick tests"
	@echo "make test-all  the same with the exhaustive and statistical suites"
	@echo "make bench     measure speed; figures and JSON in out/; with DATA=folder also that of sampling and training"
	@echo "make docs      the documentation as a site in out/site"
	@echo "make paper DATA=folder        the paper's experiments (hours); paper-quick takes minutes"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The demo needs no torch: it installs little, so that it starts soon.
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

bench: $(STAMP)
	@mkdir -p out
	$(BIN)/python -m benchmarks.certificate --out out
ifdef DATA
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.sampling --data $(DATA) --out out
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.training --data $(DATA) --out out
	$(BIN)/python -m benchmarks.optimiser --data $(DATA) --out out
endif

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open out/site/index.html"

paper paper-quick: $(STAMP)
	@test -n "$(DATA)" || { echo "give the folder of the data sets: make $@ DATA=folder" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.paper --data $(DATA) --out out/$@ $(if $(filter paper-quick,$@),--quick --results out/$@/results,) $(ARGS)

clean:
	rm -rf $(VENV) out build .mypy_cache .ruff_cache .pytest_cache .hypothesis
