# Two commands matter: `make run` and `make test`. Everything else is for people who change the code.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The versions that the tests ran with; `make test CONSTRAINTS=` takes the newest.
CONSTRAINTS ?= constraints.txt

# An older Python is refused before anything is downloaded.
define right_python
@python=$(PYTHON); ! test -x $(BIN)/python || python=$(BIN)/python; \
	version=$$($$python -c 'import sys; print("%d.%d %s" % (sys.version_info[:2] + (sys.version_info >= (3, 11),)))') || \
		{ echo "Quire needs Python 3.11 or newer: name one that is installed, as in make run PYTHON=python3.12" >&2; exit 1; }; \
	case "$$version" in *False) \
		echo "Quire needs Python 3.11 or newer, and $$python is Python $${version% *}: name a newer one (make run" \
			"PYTHON=python3.12)$$(test $$python = $(PYTHON) || echo ' after rm -r $(VENV)')" >&2; exit 1;; \
	esac
endef
define environment
$(right_python)
@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
endef

.PHONY: run demo test test-fast spark-matrix chaos simulate mutations model fuzz check typecheck format constraints proto bench helm monitoring docs wheel clean

run: $(VENV)/.run
	@$(BIN)/quire standalone

demo: $(VENV)/.demo
	@$(BIN)/quire demo

# Three processes, for tests wait more than they work; the tests of a file stay together, in order, and long files come
# first (`tests/conftest.py`). A process that ends, as one does whose test hangs, ends the run: xdist would wait for ever.
test: $(VENV)/.dev
	$(BIN)/pytest -q --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(TESTS)

# A part of the tests, for while one writes: no Spark, no Java, no cluster of processes.
FAST := test_architecture.py test_formats.py test_configuration.py wire runtime metadata identity objects bookie ledger wal \
	tiering security client
test-fast: $(VENV)/.fast
	$(BIN)/pytest -q --numprocesses 2 --dist loadfile $(or $(TESTS),$(addprefix tests/,$(FAST)))

# The tests with real Spark on each PySpark that Quire knows: an environment for each, of 450 MB to download.
SPARKS ?= 4.0.5 4.1.4 4.2.0 4.3.0
spark-matrix: $(addprefix build/spark/,$(SPARKS))
	@for version in $(SPARKS); do echo "PySpark $$version:"; \
		build/spark/$$version/bin/pytest -q -m spark $(or $(TESTS),tests/spark_source) || exit 1; done

build/spark/%: pyproject.toml
	$(right_python)
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install -q -e '.[dev]' pyspark==$*
	@touch $@

# Kill, pause, cut off, fill up, replace and misuse processes of a cluster at random for ten minutes, and then of one
# without bookies: with its bucket, and with a directory. SEED=… repeats a run.
chaos: $(VENV)/.dev
	QUIRE_CHAOS_SECONDS=600 $(if $(SEED),QUIRE_CHAOS_SEED=$(SEED)) $(BIN)/pytest -q -s tests/cluster/test_chaos.py

# Search the model of the ledger protocol: the large bounds, or BOUNDS="entries=2 recoveries=2". Minutes, and up to 1 GB.
model: $(VENV)/.dev
	$(BIN)/python -m tests.model $(BOUNDS)
	$(if $(BOUNDS),,$(BIN)/python -m tests.model.wal)

# Search for bytes that break TARGET (tests/fuzz/targets.py) for SECONDS; what reaches something new is kept.
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(TARGET) $(or $(SECONDS),300)

# SEEDS histories of ledgers, clusters and write-ahead logs on virtual time, from seed FIRST on; see docs/verification.md.
SEEDS ?= 10000
FIRST ?= 0
simulate: $(VENV)/.dev
	$(BIN)/python -m tests.simulation --histories $(SEEDS) --first $(FIRST)

# Put mistakes into production code, one at a time, and count the seeds that the simulation takes to find each.
mutations: $(VENV)/.dev
	$(BIN)/python -m tests.simulation.mutations $(NAMES)

check: $(VENV)/.dev typecheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.english
	$(BIN)/pyright --pythonpath $(BIN)/python

TYPED_TESTS := tests.chaos tests.fuzz tests.history tests.model tests.simulation bench deploy.monitoring
typecheck: $(VENV)/.dev
	$(BIN)/mypy --cache-dir build/mypy \
		$(if $(ROOM),-p quire.$(ROOM),-p quire $(addprefix -p ,$(TYPED_TESTS)))

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Note the versions of this environment in constraints.txt.
constraints: $(VENV)/.dev $(VENV)/.docs
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

proto: $(VENV)/.dev
	$(BIN)/python -m grpc_tools.protoc -Iwire --python_out=wire --pyi_out=wire wire/pulsar.proto

bench: $(VENV)/.dev
	$(BIN)/python -m bench $(ARGS)

$(VENV)/.run: pyproject.toml
	$(environment)
	@echo "Installing Quire into $(VENV) ..."
	@$(BIN)/python -m pip install -e '.[security]'
	@touch $@

$(VENV)/.demo: pyproject.toml
	$(environment)
	@echo "Installing Quire, Spark and the stock client into $(VENV) ..."
	@$(BIN)/python -m pip install -e '.[demo,security]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	$(environment)
	@echo "Installing Quire and its tests' needs into $(VENV) ..."
	@$(BIN)/python -m pip install -e '.[dev]' $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@

$(VENV)/.fast: pyproject.toml
	$(environment)
	@test -e $(VENV)/.dev || $(BIN)/python -m pip install -e '.[test]' $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@

$(VENV)/.docs: pyproject.toml
	$(environment)
	@$(BIN)/python -m pip install -q -e '.[docs]' $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
	@touch $@

# What tests/helm needs, compiled by Go: minutes the first time.
helm:
	GOBIN=$(CURDIR)/build/bin go install helm.sh/helm/v3/cmd/helm@v3.22.0
	GOBIN=$(CURDIR)/build/bin go install github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0

# Alert rules and the dashboard, after a change of runtime/metric_table.py or of the script itself. Alerts lead to the
# runbook in this clone, or to yours: RUNBOOK='https://wiki/quire/runbook.html#%s'
monitoring: $(VENV)/.dev
	$(if $(RUNBOOK),RUNBOOK='$(RUNBOOK)') $(BIN)/python -m deploy.monitoring.generate

# The documentation as a site. Its links to source files lead to REPOSITORY=https://….
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(if $(REPOSITORY),REPOSITORY_URL='$(REPOSITORY)') $(BIN)/mkdocs build
	@echo "$(CURDIR)/build/site/index.html"

wheel: $(VENV)/.run
	$(BIN)/python -m pip wheel -q --no-deps -w dist .
	@ls dist/quire-*.whl

clean:
	rm -rf build dist *.egg-info $(VENV)
