# Each target installs what it needs, the project itself in editable form, in .venv; in .venv-make, if there is a .venv of your own.
PYTHON ?= python3
VENV := $(if $(wildcard .venv),$(if $(wildcard .venv/.made-by-make),.venv,.venv-make),.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-dev
DEMO := $(VENV)/.installed-demo# without torch
LOWEST := .venv-lowest
FLOOR := 90# percent of the lines, some below what the quick tests reach
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo serve test test-all coverage lowest lint types programs wheel bench docs paper paper-quick attack-env attack-test attack-parts clean

help:
	@echo "make demo      compare all methods on real movie reviews; writes out/demo/report/index.html"
	@echo "make serve     serve models of movie reviews, with a page to try them; prints the address"
	@echo "make test      linters, type checks and the quick tests; installs Chromium, openssl and spamc if it may (PROGRAMS=no: not)"
	@echo "make test-all  make test with the exhaustive and statistical tests"
	@echo "make coverage  the quick tests, which lines they do not reach, and a floor (about a third slower than make test)"
	@echo "make lowest    the quick tests with the lowest versions of the dependencies, in .venv-lowest"
	@echo "make wheel     build the wheel and install it in a fresh environment (needs the package index)"
	@echo "make bench     measure speed; writes figures and JSON to out/; DATA=folder adds sampling and training"
	@echo "make docs      build the documentation site in out/site"
	@echo "make attack-env  an environment for the recipes of TextAttack, .venv-attack; attack-test tests them there"
	@echo "make attack-parts DATA=folder  parts of these recipes without a model hub, in out/attack-parts (some minutes)"
	@echo "make paper     the paper's protocol, RoBERTa and data from the hub (a GPU, weeks); says first what it will take"
	@echo "               DATA=folder MODEL=folder or linear: local files; make paper-quick DATA=folder takes minutes"

$(VENV)/.made-by-make:
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(STAMP): $(VENV)/.made-by-make pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@

$(DEMO): $(VENV)/.made-by-make pyproject.toml constraints.txt
	$(PIP) -e '.[demo,serve]'
	@touch $@

demo: $(DEMO)
	$(BIN)/adaptdel demo --out out/demo

serve: $(DEMO)
	$(BIN)/adaptdel serve --demo $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Programs that are no Python packages: Chromium for the tests of pages, openssl, SpamAssassin's client spamc.
programs:
	@PROGRAMS=$(PROGRAMS) sh tests/programs.sh

test: lint types programs
	$(BIN)/pytest -n 2 -q

test-all: lint types programs
	$(BIN)/pytest -n 2 --dist worksteal -q -m 'slow or not slow'

coverage: $(STAMP) programs
	$(BIN)/pytest -n 2 -q --cov=adaptdel --cov-report=term:skip-covered --cov-fail-under=$(FLOOR)

# constraints.txt does not hold here: uv takes the lowest version that pyproject.toml allows of all it names.
lowest: $(STAMP) programs
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[dev]'
	$(LOWEST)/bin/pytest -n 2 -q -W ignore::DeprecationWarning

wheel: $(STAMP)
	$(BIN)/pytest -q -m 'slow or not slow' tests/test_package.py

bench: $(STAMP)
	@mkdir -p out
	$(BIN)/python -m benchmarks.certificate --out out
	$(BIN)/python -m benchmarks.commands $(if $(DATA),--data $(DATA)) --out out
ifdef DATA
	$(PIP) -e '.[bench]'
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.sampling --data $(DATA) --out out
	$(BIN)/python -m benchmarks.exact --data $(DATA) --out out
endif

docs: $(STAMP)
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open out/site/index.html"

# Without DATA the data sets and the model come from the hub; with DATA=folder nothing is downloaded unless HF_HUB_OFFLINE=0.
HUB := $(if $(DATA),HF_HUB_OFFLINE=$(or $(HF_HUB_OFFLINE),1))
paper: $(STAMP)
	$(PIP) -e '.[transformers,datasets,report]'
	$(HUB) $(BIN)/python -m experiments.paper $(if $(DATA),--data $(DATA)) --model $(or $(MODEL),roberta-base) --out $(or $(OUT),out/paper) $(ARGS)

paper-quick: $(STAMP)
	@test -n "$(DATA)" || { echo "name the folder of the data sets: make $@ DATA=folder" >&2; exit 2; }
	$(HUB) $(BIN)/python -m experiments.paper --data $(DATA) --model linear --sets spamassassin --limit 400 --out out/$@ $(ARGS)

# TextAttack needs other versions than constraints.txt pins, so it has an environment of its own.
ATTACK := .venv-attack
ATTACK_PIP := $(ATTACK)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-attack.txt

$(ATTACK)/.installed: pyproject.toml constraints-attack.txt
	test -x $(ATTACK)/bin/python || $(PYTHON) -m venv $(ATTACK)
	$(ATTACK_PIP) -e '.[attack,report]'
	@touch $@

attack-env: $(ATTACK)/.installed
	@echo "run $(ATTACK)/bin/adaptdel attack MODEL --data FILE --recipe deepwordbug --out RUN"

# The recipes on tiny parts that the tests make; `make test-all` skips these tests and says so.
attack-test: $(ATTACK)/.installed
	$(ATTACK_PIP) pytest hypothesis -e '.[attack,report]'
	HF_HUB_OFFLINE=1 $(ATTACK)/bin/python -m pytest -q -m 'slow or not slow' tests/attacks/test_textattack.py

attack-parts: $(ATTACK)/.installed
	@test -n "$(DATA)" || { echo "name the folder of the data sets: make $@ DATA=folder" >&2; exit 2; }
	$(ATTACK_PIP) -e '.[attack-parts]'
	HF_HUB_OFFLINE=1 $(ATTACK)/bin/python -m experiments.attack_parts --data $(DATA)/*.train.jsonl.gz --out out/attack-parts $(ARGS)

clean:
	rm -rf $(VENV) $(ATTACK) $(LOWEST) out build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
