# `make check` runs all static checks; CI runs the same.
BIN ?= .venv/bin

.PHONY: audit help check format test conformance coverage bench bench-check bench-record faults fuzz manifests release release-check site spark-crash spark-delta spark-lowest

help:
	@echo 'make check        formatting, lint, types, import contracts, dead code, spelling, templates: seconds'
	@echo 'make test         the tests of nsq_compat itself'
	@echo 'make conformance  NSQ clients against nsqd and nsqlookupd (NSQD="/path/to/nsqd", NSQLOOKUPD="..." for others)'
	@echo 'make coverage     the tests with branch coverage'
	@echo 'make format       format and sort imports in place'
	@echo 'make bench        measure nsqd under load, to benchmarks/RESULTS.md (PEER="/path/to/nsqd": compared with another one)'
	@echo 'make bench-check  fail if a message costs 15 % more instructions than recorded, interpreted or compiled: three minutes'
	@echo 'make bench-record record the present costs'
	@echo 'make faults       the tests that cause failures, at length (ROUNDS=50 SEED=7: fewer rounds, a given seed)'
	@echo 'make fuzz         random inputs for the five parsers (INPUTS=10000000 SEED=7)'
	@echo 'make manifests    render contrib/kubernetes from the Helm chart'
	@echo 'make release      build wheels, a tarball without Python, Debian packages, an image and the site, to dist: ten minutes (python3 -m scripts.release --help)'
	@echo 'make release-check build a release twice, compare, and try all that was built: half an hour, as root'
	@echo 'make site         the documentation as a site, in build/site'
	@echo 'make spark-lowest test pyspark_nsq with the lowest supported Spark; downloads 430 MB'
	@echo 'make spark-delta  test the tables in Delta; downloads Spark 4.1 and Delta, 450 MB'
	@echo 'make spark-crash  kill Spark and nsqd during streams; clusters, Spark Connect: 15 minutes (NSQD="...")'
	@echo 'scripts/test      everything, from a clean clone'

# The completeness of types is that of what Python on PATH can import; pyright does not find editable installations.
# mypyc is asked for the C code only: it does not compile all that mypy accepts.
check:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	@said=$$(PATH='$(abspath $(BIN))':"$$PATH" PYTHONPATH='$(CURDIR)' basedpyright --verifytypes nsq_compat.client \
		--ignoreexternal) || { echo "$$said"; false; }
	@said=$$($(BIN)/python -c 'import setup; setup.extensions()' build_ext 2>&1) || { echo "$$said"; false; }
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture --min-confidence 80 nsq_compat pyspark_nsq spark/jobs benchmarks conformance tests
	$(BIN)/codespell
	$(BIN)/djlint --quiet --lint --profile=jinja --ignore=H015,H043 templates

format:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

test:
	$(BIN)/pytest -n auto tests

conformance:
	$(BIN)/pytest -n auto conformance $(if $(NSQD),--nsqd '$(NSQD)') $(if $(NSQLOOKUPD),--nsqlookupd '$(NSQLOOKUPD)')

coverage:
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests
	$(BIN)/coverage combine
	$(BIN)/coverage report

bench:
	benchmarks/run $(if $(PEER),--peer '$(PEER)')

GUARD_COMPILED = PYTHONPATH='$(CURDIR)/build/compiled' $(BIN)/python -m benchmarks.guard --file benchmarks/guard-compiled.json

bench-check:
	$(BIN)/python -m benchmarks.guard
	scripts/compile
	$(GUARD_COMPILED)

bench-record:
	$(BIN)/python -m benchmarks.guard --record
	scripts/compile
	$(GUARD_COMPILED) --record

faults:
	FAULT_ROUNDS=$(ROUNDS) FAULT_SEED=$(SEED) $(BIN)/pytest -m '' -rP tests/faults

fuzz:
	$(BIN)/python -m tests.fuzz.driver $(if $(INPUTS),--inputs $(INPUTS)) $(if $(SEED),--seed $(SEED))

audit:
	scripts/audit

# Of the commit that is checked out, such as that of a tag.
release release-check:
	bash -c '. scripts/environment; require busybox:busybox; \
		$(if $(filter release-check,$@),require debootstrap:debootstrap lintian:lintian umoci:umoci crun:crun;) \
		make_environment test site release'
	$(BIN)/python -m scripts.release $(if $(filter release-check,$@),--check-all)

# scripts/test installs helm. The names are those of earlier manifests, without a prefix.
MANIFESTS ?= contrib/kubernetes
RENDER = $(BIN)/helm template nsq contrib/helm/nsq --set namePrefix= --set serviceMonitor.enabled

manifests:
	mkdir -p '$(MANIFESTS)/base' '$(MANIFESTS)/prometheus-operator'
	$(RENDER)=false >'$(MANIFESTS)/base/nsq.yaml'
	$(RENDER)=true --show-only templates/servicemonitor.yaml >'$(MANIFESTS)/prometheus-operator/servicemonitor.yaml'

site:
	bash -c '. scripts/environment; make_environment site'
	$(BIN)/python scripts/site

spark-crash:
	bash -c '. scripts/environment; make_environment demo test lint spark connect'
	$(if $(NSQD),NSQD_COMMAND='$(NSQD)') $(BIN)/pytest -m '' -p no:randomly -n 2 --durations=10 tests/spark/crash

LOWEST_SPARK = build/pyspark-4.0.0

$(LOWEST_SPARK):
	$(BIN)/pip install --quiet --no-deps --target $(LOWEST_SPARK) pyspark==4.0.0

# Spark 4.0 leaves sockets for the garbage collector to close.
spark-lowest: $(LOWEST_SPARK)
	PYTHONPATH=$(LOWEST_SPARK) $(BIN)/pytest -q -m 'not long and not newer_spark' \
		-W 'ignore::pytest.PytestUnraisableExceptionWarning' tests/spark/session

# Delta does not support the newest Spark yet.
DELTA_SPARK = build/pyspark-4.1.0

$(DELTA_SPARK):
	$(BIN)/pip install --quiet --no-deps --target $(DELTA_SPARK) pyspark==4.1.0

spark-delta: $(DELTA_SPARK)
	PYTHONPATH=$(DELTA_SPARK) DELTA_PACKAGE=io.delta:delta-spark_4.1_2.13:4.4.0 $(BIN)/pytest -q -m '' \
		-W 'ignore::pytest.PytestUnraisableExceptionWarning' tests/spark/delta
