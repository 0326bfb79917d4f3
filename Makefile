# Each target creates .venv and installs what it needs by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-all lint types bench clean

help:
	@echo "make demo      what a certificate gives: the planner, with a picture in out/"
	@echo "make test      linters, types and all quick tests"
	@echo "make test-all  the same with the exhaustive and statistical suites"
	@echo "make bench     measure speed; figures and JSON in out/; with DATA=folder also that of sampling"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@mkdir -p out
	$(BIN)/adaptdel plan --length 400 --rate adaptdel:p_min=0.9,k=23 --votes 3960/4000 --plot out/plan.png

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -n 2 -q

test-all: lint types
	$(BIN)/pytest -n 2 -q -m 'slow or not slow'

bench: $(STAMP)
	@mkdir -p out
	$(BIN)/python benchmarks/certificate.py --out out
ifdef DATA
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/sampling.py --data $(DATA) --out out
endif

clean:
	rm -rf $(VENV) out build .mypy_cache .ruff_cache .pytest_cache .hypothesis
