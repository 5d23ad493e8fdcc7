# `make demo` and `make test` need a bare Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
RELEASE := .venv-release
PYTEST := $(BIN)/python -m pytest -n 2

# tests start many processes, which need not compile all modules again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check explore lint docs faults bench-setup bench sbom dist clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "silvan needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup: $(VENV)/.ready ## make .venv with everything for development

demo: setup ## the main job, on data that needs no download
	$(BIN)/silvan demo

test: setup lint ## format, lint, types and all tests
	$(PYTEST) -n 3  # one waits for real processes while two work

check: setup lint ## format, lint, types and the fast half of the tests: a minute when kernels are compiled
	$(PYTEST) -m 'not long'

explore: setup ## all tests with ten times the examples, drawn at random: what `make test` cannot find
	SILVAN_FAULTS=$${SILVAN_FAULTS:-2000} SILVAN_FAULT_FIRST=$${SILVAN_FAULT_FIRST:-$$(date +%s)} $(PYTEST) --hypothesis-profile=explore

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	! $(BIN)/vulture | grep "^src/"

docs: setup ## docs/architecture.md and the figures anew, and all pages into site/
	$(BIN)/python tools/write_architecture.py
	$(BIN)/python tools/write_study_reference.py
	$(BIN)/python tools/draw_figures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

faults: setup ## 10,000 studies in which everything goes wrong, see docs/faults.md
	SILVAN_FAULTS=10000 SILVAN_REAL_FAULTS=1 $(PYTEST) tests/test_faults.py tests/test_slow_link.py tests/test_kills.py

$(PEERS)/.ready: pyproject.toml constraints.txt benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . -r benchmarks/peers.txt
	touch $@

bench-setup: $(PEERS)/.ready ## a separate environment with the packages we compare with

bench: bench-setup ## run every benchmark and write docs/benchmarks.md
	$(PEERS)/bin/python -m benchmarks

$(RELEASE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RELEASE) && $(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt '.[flare,sql,mysql,dp,vertical,web]'
	$(RELEASE)/tools/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt cyclonedx-bom twine
	touch $@

sbom: $(RELEASE)/.ready ## dist/silvan.cdx.json: all components of an installation, as CycloneDX has it
	mkdir -p dist
	$(RELEASE)/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/silvan.cdx.json $(RELEASE)/bin/python

dist: setup sbom ## dist/: the wheel, the source archive, the list of components, and checksums of all three
	$(BIN)/python -m build --no-isolation --outdir dist
	$(RELEASE)/tools/bin/twine check --strict dist/*.whl dist/*.tar.gz
	cd dist && sha256sum *.whl *.tar.gz *.json > SHA256SUMS

clean: ## remove both environments and all caches
	rm -rf $(VENV) $(PEERS) $(RELEASE) .numba_cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
