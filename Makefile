# Every target sets up what it needs on a machine with git, make and Python 3.11.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help venv chromium console-pictures compile fetch fetch-jars oldest-spark collect wheel demo cluster cluster-kills restart-kills test test-plain test-fast test-oldest-spark test-libraries test-sign-in foreign-test-suites test-spark-versions test-pythons test-floors check vulnerabilities docs bench bench-backlog bench-storage bench-cleaner bench-spark bench-limits bench-groups bench-testing bench-cluster bench-recovery bench-connections bench-abuse bench-group-load bench-reading bench-security bench-starts bench-upserts bench-scrape fuzz fuzz-sign-in request-mixes crash-tests corruption-tests mutation-tests test-brokers simulate planted-cluster-bugs coordinator-tests group-tests kills change-kills share-kills consumer-kills exactly-once large clean lock generate changelog

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: .venv/ready compile  ## make .venv with Ottla, compiled, and its tools

unexport PYTHONDONTWRITEBYTECODE  # tests start some thousand processes, and several collect the same modules
.venv/packages: locks/dev.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r locks/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r locks/dev.txt
	@touch $@

LOOPS := $(wildcard src/ottla/records/_*.py src/ottla/records/_*.pxd)
.venv/ready: .venv/packages hatch_build.py $(LOOPS)
	OTTLA_COMPILE=later $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	$(BIN)/python -m compileall -q src
	@touch $@

wheel: .venv/ready  ## wheels into dist/: compiled for each Python from 3.11 to 3.14 that is installed or can be fetched, and a pure one; each is tried
	$(BIN)/python tools/build_wheels.py

compile: .venv/ready  ## compile the hot modules again if their sources changed (OTTLA_PLAIN=1 runs without them)
	$(BIN)/python tools/compile_modules.py
	$(BIN)/python -m compileall -q src

lock: .venv/ready  ## renew the lock files (needs a package index)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --all-extras --group dev pyproject.toml -o locks/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header locks/wheel.in -o locks/wheel.txt

demo: .venv/ready  ## the main job: a real access log through the broker into tables, a topic and a report; compiles nothing
	$(BIN)/ottla demo

BROKERS ?= 3
cluster: .venv/ready compile  ## ZooKeeper and BROKERS=3 brokers on ports 9092 to 9094, metrics on 9644 to 9646, until Ctrl-C, with their data in build/cluster
	$(BIN)/ottla up -n $(BROKERS) --data build/cluster --metrics-port 9644

cluster-kills: KILLS := 20
cluster-kills: .venv/ready compile  ## KILLS=20 leaders killed under load, controllers and ZooKeeper killed and paused, restarts: three real brokers; SECURED=1: with TLS, SCRAM, ACLs
	OTTLA_SECURED=$(SECURED) OTTLA_CLUSTER_KILLS=$(KILLS) OTTLA_CLUSTER_RECORDS=$$(( $(KILLS) * 10000 )) OTTLA_CLUSTER_PAUSE=60 $(BIN)/python -m pytest -q -s tests/processes/test_cluster_kills.py

restart-kills: KILLS := 20
restart-kills: .venv/ready compile  ## KILLS=20 restarts of all brokers, killed with -9, under clients of three languages, and under polled Metadata
	OTTLA_RESTART_KILLS=$(KILLS) OTTLA_RESTART_CLIENTS=12 $(BIN)/python -m pytest -q -s --timeout=0 tests/compat/test_clients_of_restarted_brokers.py tests/processes/test_metadata_of_starting_brokers.py

JOBS ?= 2
IN_PARALLEL = -n $(JOBS) --dist loadgroup --no-loadscope-reorder
FAST_TESTS := tests/unit tests/properties tests/contracts tests/coordinator_schedules tests/tidy tests/crash_tests
# The tests that the process of the compiled form leaves out: in directories, with an expression of marks.
HERE := not official_connector and not test_libraries and not sign_in_matrix
IN_PLAIN_FORM = { test "$$OTTLA_PLAIN" = 1 || OTTLA_PLAIN=1 $(BIN)/python -m pytest -q $(IN_PARALLEL) -m "plain_form and $(2)" \
	$$(grep -rl --include='test_*.py' 'mark\.plain_form(' $(1)); }
OLDEST_SPARK := build/matrix/spark-4.0/environment/bin/python
fetch: fetch-jars oldest-spark  ## what tests need from elsewhere: Java, the jars of Kafka, ZooKeeper and Spark's connector, a client in Go, the oldest Spark
	@-$(OLDEST_SPARK) -m tests.support.fetch oldest-spark
chromium:  ## the browser of the console's tests, by apt-get if it is not there
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null || { apt-get update && apt-get install --yes --no-install-recommends chromium; }
console-pictures: .venv/ready chromium  ## the pictures of docs/console.md and of the report in docs/pipeline.md, by their tests
	OTTLA_PICTURES=docs/console $(BIN)/python -m pytest -q tests/console/test_in_chromium.py tests/pipeline/test_report_in_chromium.py -k accessible
fetch-jars: .venv/ready
	@$(BIN)/python -m tests.support.fetch
oldest-spark: .venv/ready
	@-$(BIN)/python tools/run_matrix.py oldest-spark --prepare

collect: .venv/ready  ## import every test, which leaves its bytecode to the processes of make test
	@mkdir -p build
	@$(BIN)/python -m pytest -qq --collect-only > build/collected.txt || { tail -50 build/collected.txt; exit 1; }

test: JOBS := 4
test: export OTTLA_EXAMPLES ?= 0.5
test: .venv/ready compile fetch chromium  ## all tests, on the compiled form, on JOBS=4 processes, which wait much of their time; a skipped test is a failure
	@export OTTLA_FAIL_ON_SKIP=1; failed=0; \
	$(BIN)/python -m pytest -q $(IN_PARALLEL) -m "$(HERE)" || failed=1; \
	$(call IN_PLAIN_FORM,tests,$(HERE)) || failed=1; \
	$(BIN)/python tools/run_matrix.py --jobs 2 oldest-spark || failed=1; \
	exit $$failed

test-oldest-spark: .venv/ready compile fetch  ## the part of make test on the oldest PySpark: the comparison with Spark's own connector, a short suite
	OTTLA_FAIL_ON_SKIP=1 $(BIN)/python tools/run_matrix.py --jobs $(JOBS) oldest-spark

test-libraries: .venv/ready compile  ## the examples of docs/testing.md with FastStream, Faust, quixstreams and pytest-asyncio, in an environment for each
	$(BIN)/python -m pytest -q --timeout=0 -m test_libraries tests/processes/test_testing_page.py

test-sign-in: .venv/ready compile fetch-jars  ## each mechanism over TLS with seven clients of others, rightly and wrongly, on Ottla and on a real Kafka; needs Go and Node
	OTTLA_FAIL_ON_SKIP=1 $(BIN)/python -m pytest -q --timeout=0 tests/sign_in

SOURCES ?= build/clones
foreign-test-suites: .venv/ready compile  ## suites of aiokafka, kafka-python and quixstreams on a broker in their process; SOURCES=build/clones has a clone of each
	$(BIN)/python tools/run_foreign_suites.py --sources $(SOURCES)

OF_THE_NEWEST := $(addprefix --ignore=tests/differential/,test_acls_against_kafka.py test_acl_requests_against_kafka.py)
# ACLs are compared with the newest Kafka alone: ranges of addresses came with 4.4
PROTOCOL_TESTS := tests/differential tests/compat/test_protocol_pitfalls.py tests/compat/test_protocol_pitfalls_of_reading.py tests/processes/test_bad_input.py
test-plain: .venv/ready fetch  ## the protocol's tests with the plain form of the broker, beside the oldest Kafka; make test: compiled, the newest
	OTTLA_PLAIN=1 OTTLA_KAFKA=4.1.1 OTTLA_FAIL_ON_SKIP=1 $(BIN)/python -m pytest -q $(IN_PARALLEL) $(PROTOCOL_TESTS) $(OF_THE_NEWEST)

test-fast: export OTTLA_EXAMPLES = 0.2
test-fast: .venv/ready $(if $(filter 1,$(OTTLA_PLAIN)),,compile)  ## the tests without processes, JVM and Kafka, with fewer examples: under 3 minutes
	@failed=0; \
	$(BIN)/python -m pytest -q $(IN_PARALLEL) -m "not slow and not external and not spark" $(FAST_TESTS) || failed=1; \
	$(call IN_PLAIN_FORM,$(FAST_TESTS),not slow and not external and not spark) || failed=1; \
	exit $$failed

SPARKS ?= 4.0 4.1 4.2 4.3
test-spark-versions: .venv/ready  ## the pipeline's tests with each of SPARKS="4.0 4.1 4.2 4.3"; Spark's own connector is compared where it resolves
	$(BIN)/python tools/run_matrix.py --jobs $(JOBS) sparks $(SPARKS)

PYTHONS ?=
test-pythons: .venv/ready  ## the fast tests and the pipeline's without Java on each Python from 3.11 to 3.14 that is installed or can be fetched
	$(BIN)/python tools/run_matrix.py --jobs $(JOBS) pythons $(PYTHONS)

test-floors: .venv/ready  ## the same with the oldest versions of the dependencies that pyproject.toml allows
	$(BIN)/python tools/run_matrix.py --jobs $(JOBS) floors

check: .venv/ready  ## format, lint, strict types, also as on macOS, layers, words, generated pages, known vulnerabilities
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin src
	$(BIN)/lint-imports
	$(BIN)/python tools/check_words.py
	$(BIN)/python tools/generate.py --check
	$(BIN)/python tools/check_vulnerabilities.py
	@$(BIN)/towncrier build --draft --version next > /dev/null

vulnerabilities: .venv/ready  ## ask the package index for known vulnerabilities of what is locked, besides those that make check knows
	$(BIN)/python tools/check_vulnerabilities.py --ask-index

changelog: .venv/ready  ## the next section of CHANGELOG.md, of the files in changes/; VERSION=0.2.0 writes it and removes them
	$(BIN)/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version next)

docs: .venv/ready  ## the pages as a site, in build/site: needs no network
	$(BIN)/python tools/build_docs_site.py

generate: .venv/ready  ## write the generated code and pages
	$(BIN)/python tools/generate.py

bench: .venv/ready compile  ## against a real Apache Kafka, into docs/benchmarks.md
	$(BIN)/python -m benchmarks $(PARTS)

bench-storage: .venv/ready compile  ## the storage package alone, and starts beside Kafka; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.storage

bench-cleaner: .venv/ready compile  ## compaction beside Kafka's cleaner, and what a producer feels of it; into docs/benchmarks.md
	$(BIN)/python -m benchmarks cleaner

bench-groups: .venv/ready compile  ## rebalances, commits and heartbeats beside Kafka; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.groups

COUNT ?= 1000
bench-testing: .venv/ready compile  ## a fresh broker for each of COUNT=1000 tests, beside librdkafka's mock, kfake and Kafka; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.testing_kit --count $(COUNT)

bench-cluster: .venv/ready compile  ## three brokers beside three of Kafka; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.cluster

bench-recovery: .venv/ready compile  ## catch-up of an empty replica and fail-over beside Kafka; workers; three brokers with 10,000 partitions
	$(BIN)/python -m benchmarks.cluster_recovery
	$(BIN)/python -m benchmarks.many_partitions

bench-starts: .venv/ready compile  ## starts with 10,000 partitions after a clean stop and a kill, beside Kafka; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.starts

bench-scrape: .venv/ready compile  ## a scrape with 10,000 partitions, 2,000 groups and 5,000 clients; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.scrape

bench-connections: .venv/ready compile  ## 10,000 idle connections beside Kafka: memory, accepts, the latency of 32 busy ones; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.connections

bench-abuse: .venv/ready compile  ## an innocent client's latency beside 5,000 connections, 1,000 slow readers, floods, bombs, 10x a quota; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.abuse

bench-group-load: .venv/ready compile  ## a start with 100,000 groups and 1,000,000 offsets beside Kafka's; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.group_load

bench-reading: .venv/ready compile  ## reading back beside Kafka and beside a bare sendfile loop; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.reading

bench-security: .venv/ready compile  ## TLS, the authorizer and sign-ins beside Kafka; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.security

bench-limits: .venv/ready compile  ## another client's latency and the memory beside the largest requests of every API
	$(BIN)/python -m benchmarks.large_requests

GIB ?= 18
bench-upserts: .venv/ready compile  ## a million upserts into a Delta and an Iceberg table of ten million rows, beside deltalake and PyIceberg; into docs/benchmarks.md
	$(BIN)/python -m benchmarks.upserts --write

bench-backlog: .venv/ready compile  ## GIB=18 written with no consumer, then all of it read; into docs/benchmarks.md
	$(BIN)/python -m benchmarks backlog --gib $(GIB)

KILLS ?= 30
kills: .venv/ready  ## loads and streams under KILLS=30 kills with -9 of driver, worker, broker and store; every fault of a simulated store
	OTTLA_KILLS=$(KILLS) $(BIN)/python -m pytest -q -s tests/pipeline/test_kills.py tests/pipeline/connector/test_killed_sink.py
	OTTLA_STORE_SCHEDULES=0 $(BIN)/python -m pytest -q --timeout=0 tests/pipeline/test_simulated_store.py

change-kills: .venv/ready compile  ## 5 million changes of 200,000 keys into a Delta and an Iceberg table under CHANGE_KILLS=10 kills with -9
	OTTLA_KILLS=$(or $(CHANGE_KILLS),10) OTTLA_CHANGES=5000000 OTTLA_CHANGE_KEYS=200000 $(BIN)/python -m pytest -q -s tests/pipeline/changes/test_change_kills.py

share-kills: .venv/ready compile  ## 20 consumers of a share group, killed with -9 at random, over 100,000 records
	OTTLA_SHARE_RECORDS=100000 OTTLA_SHARE_CONSUMERS=20 $(BIN)/python -m pytest -q --timeout=0 tests/processes/test_share_kills.py

MINUTES ?= 10
consumer-kills: .venv/ready compile fetch-jars  ## six groups for MINUTES=10 while brokers are killed with -9, on Ottla (SECURED=1: with TLS, SCRAM, ACLs) and beside it on three brokers of Kafka
	$(BIN)/python -m tests.consumer_kills --minutes $(MINUTES) $(if $(SECURED),--clusters "Ottla, secured+Kafka")

exactly-once: .venv/ready compile  ## 200,000 records copied in transactions while the broker and the copiers are killed with -9
	OTTLA_EXACTLY_ONCE=200000 $(BIN)/python -m pytest -q tests/processes/test_exactly_once.py

RECORDS ?= 5000000
large: .venv/ready  ## RECORDS=5000000 through Spark from a real Kafka: transactions, codecs, compaction
	OTTLA_RECORDS=$(RECORDS) $(BIN)/python -m pytest -q -s tests/pipeline/connector/test_large_topics.py

bench-spark: .venv/ready compile fetch  ## Spark reading a topic: ours and the official connector, on PySpark 4.0; into docs/benchmarks.md
	$(OLDEST_SPARK) -m benchmarks pipeline

FUZZ_SECONDS ?= 600
fuzz: .venv/ready  ## every parser against wrong input, for FUZZ_SECONDS=600
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

SIGN_IN_INPUTS ?= 10000000
FROM_BLOCK ?= 0
fuzz-sign-in: .venv/ready compile  ## SIGN_IN_INPUTS=10000000 wrong conversations before the sign-in, on JOBS=2 processes; FROM_BLOCK=50 goes on at input 5,000,000
	$(BIN)/python -m tests.fuzz.sign_in --inputs $(SIGN_IN_INPUTS) --from-block $(FROM_BLOCK) --jobs $(JOBS)

MIX_SECONDS ?= 3600
request-mixes: .venv/ready compile  ## valid requests of classic, consumer, share and transactional clients in odd orders, beside a Kafka, for MIX_SECONDS=3600
	$(BIN)/python -m tests.request_mixes --seconds $(MIX_SECONDS)

STATES ?= 100000
SEED ?= 1
crash-tests: .venv/ready compile  ## recovery from STATES=100000 states that a crash may leave on the disk, from SEED=1
	$(BIN)/python -m tests.crash_tests --states $(STATES) --seed $(SEED)

CASES ?= 10000
corruption-tests: .venv/ready compile  ## CASES=10000 flipped bits and other corruption in log directories, from SEED=1: none silent
	$(BIN)/python -m tests.corruption_tests --count $(CASES) --seed $(SEED)

MEMBERS ?= 1,10,50,200
group-tests: .venv/ready compile  ## rolling restarts of groups of MEMBERS=1,10,50,200 real members
	$(BIN)/python -m tests.group_members --members $(MEMBERS)

SCHEDULES ?= 10000
coordinator-tests: .venv/ready compile  ## SCHEDULES=10000 random schedules of each coordinator in simulated time, from FIRST_SEED=0 on
	SCHEDULES=$(SCHEDULES) OTTLA_TRANSACTION_SCHEDULES=$$(( $(SCHEDULES) / 2 )) $(BIN)/python -m pytest -q $(IN_PARALLEL) --timeout=0 tests/coordinator_schedules tests/properties/test_group_machine.py

SEEDS ?= 10000
FIRST_SEED ?= 1
BROKERS ?= 3
simulate: .venv/ready compile  ## SEEDS=10000 runs of BROKERS=3 brokers in virtual time with faults, on JOBS=2 processes; FIRST_SEED=1; SECURED=1: with SCRAM and ACLs
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FIRST_SEED) --brokers $(BROKERS) --jobs $(JOBS) --keep-going --twice 20 $(if $(SECURED),--secured)

planted-cluster-bugs: .venv/ready  ## bugs of the cluster put in on purpose; each must be found in at most 2,000 seeds
	$(BIN)/python -m tests.simulation --planted-bugs --jobs $(JOBS)

BROKERS_OF_TESTS ?= 1000
test-brokers: .venv/ready compile  ## BROKERS_OF_TESTS=1000 brokers of ottla.testing, one after the other: nothing is left of them
	OTTLA_KIT_BROKERS=$(BROKERS_OF_TESTS) $(BIN)/python -m pytest -q --timeout=0 tests/unit/testing/test_kit_leaks.py

mutation-tests: .venv/ready  ## bugs put in on purpose, and which suite finds each
	OTTLA_PLAIN=1 $(BIN)/python -m tests.mutation_tests

clean:  ## forget everything that can be made again
	rm -rf src/ottla/_compiled src/ottla/records/*.so .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
