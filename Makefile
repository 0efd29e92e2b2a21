# Shardwise: everything a person or the CI does to this tree. `make` explains itself.
# Needs python3.11, git and make; what else it needs it installs under .venv, by hash.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
UV := $(BIN)/uv
# Processes of pytest: one more than the cores of the smallest machine. Tests wait for other processes, but each run of several
# hosts is many processes too: four keep two cores busy all the time, take as long, and wait longer for each other.
WORKERS ?= 3
# A crashed process ends the run by the name of its test; a replaced one would run that test, and crash, again.
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadfile --max-worker-restart=0
# 1: run the slow tests, too, that passed with the same content of all that they depend on.
FRESH ?= 0
SKIP = $(if $(filter 1,$(FRESH)),,--skip-passed)
# Folders of tests that need neither a cluster nor many processes.
UNIT = tests/job tests/protocol tests/launcher/leader tests/operator/decide tests/operator/render tests/train/data
# Nodes of the bare cluster that cluster-up starts.
NODES ?= 3
# Where `make dist` puts a release.
DIST ?= dist
# The first seed of the random models of `make test-hf`, and how many.
MODELS ?= 0 44
# Images that `make images` builds.
IMAGES ?= operator cpu
# For which `make publish` builds them: amd64, arm64 or both; by default this machine's.
ARCH ?=
# Which cluster: 1 is the real kind, the default where Docker answers; 0 is the bare one, which needs no Docker.
KIND ?= $(if $(shell docker info >/dev/null 2>&1 && echo yes),1,0)
export KIND
CLUSTER = $(BIN)/python -m tests.cluster$(if $(filter 1,$(KIND)),.kind)
# More words for pytest or the benchmarks: make test ARGS="-k digest"
ARGS ?=

# A stamp carries the fingerprint of what it was made from: another fingerprint is another file, so setup runs again.
fingerprint = $(firstword $(shell cat $(1) | cksum))
INSTALLER := .venv/.uv-$(call fingerprint,requirements/uv.txt)
READY := .venv/.ready-$(call fingerprint,requirements/uv.txt requirements/dev.txt trainer/pyproject.toml operator/pyproject.toml)
PLAN_READY := .venv-plan/.ready-$(call fingerprint,requirements/plan.txt trainer/pyproject.toml)
BENCH_READY := .venv-bench/.ready-$(call fingerprint,requirements/bench.txt)
DOCS_READY := .venv-docs/.ready-$(call fingerprint,requirements/docs.txt)
HF_READY := .venv-hf/.ready-$(call fingerprint,requirements/hf.txt)
LEVANTER_READY := .venv-levanter/.ready-$(call fingerprint,requirements/levanter.txt)

COMPILE = $(UV) pip compile --quiet --python-platform x86_64-unknown-linux-gnu --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
# The wheels of libtpu name this version of the C library and no older one.
COMPILE_TPU = $(subst x86_64-unknown-linux-gnu,x86_64-manylinux_2_31,$(COMPILE))
EXTRAS = --extra train --extra tensorboard --extra wandb --extra mlflow --extra trackio --extra parquet \
	--extra serve
OPERATOR = operator/pyproject.toml --no-emit-package shardwise --override requirements/override.in

##@ Start here

.PHONY: help
help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## make .venv with every locked dependency and both distributions; the other targets do it by themselves

.PHONY: setup-plan
setup-plan: $(PLAN_READY) ## make .venv-plan, in which shardwise plan has the compilers for TPUs and GPUs

.PHONY: demo
demo: $(READY) ## train on real text on 2 simulated hosts, kill a trainer, stop, go on on one host, show the result
	$(BIN)/python examples/demo.py

.PHONY: tour
tour: $(READY) ## run the tours, which build every kind of parallelism by hand, and write docs/tour (ARGS="03" for one, into runs/tour)
	cd examples/tour && $(CURDIR)/$(BIN)/python -m book $(ARGS)

##@ Judge a change

.PHONY: test
test: lint types imports docs pytest ## everything: lint, types, imports, the site, then every test (make test ARGS="-k digest" picks tests)

.PHONY: check
check: lint types imports ## what one runs while working: lint, types, imports, and the tests without a cluster or many processes
	$(BIN)/pytest -n 2 -q $(UNIT) $(ARGS)

.PHONY: lint
lint: $(READY) ## rules and format of the code (ruff)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

.PHONY: types
types: $(READY) ## strict types (mypy)
	$(BIN)/mypy

.PHONY: imports
imports: $(READY) ## the arrows between the packages (import-linter)
	$(BIN)/lint-imports

.PHONY: docs
docs: $(DOCS_READY) ## the site of docs/, in build/site; a link that leads nowhere, and any other warning, is an error
	.venv-docs/bin/sphinx-build --quiet --fail-on-warning --keep-going -d build/doctrees -c docs/site docs build/site

.PHONY: pytest
pytest: $(READY) $(PLAN_READY) ## the tests alone; the first time they compile a Kubernetes and build images, which takes 10 minutes
	$(BIN)/python -m tests.cluster prepare
	$(if $(filter 1,$(KIND)),$(BIN)/python -m images.build && $(BIN)/python -m tests.cluster.kind build)
	$(PYTEST) $(SKIP) $(ARGS)

.PHONY: test-long
test-long: ## before a release: more kills, hosts, meshes, models and faults of what test takes a part of
	$(MAKE) pytest ARGS="-m long $(ARGS)"

.PHONY: test-skew
test-skew: $(READY) ## operator and trainer of this tree beside those of PREVIOUS=COMMIT, each way, the operator changed under a running job
	@$(if $(PREVIOUS),,echo 'Which release is the other one? Say it: make test-skew PREVIOUS=v0.1.0' >&2; exit 2)
	tree=$$(mktemp -d) && trap 'git worktree remove --force $$tree' EXIT && git worktree add --quiet --detach $$tree $(PREVIOUS) && \
	  $(BIN)/python -m tests.skew $$tree

.PHONY: test-hf
test-hf: $(READY) $(HF_READY) ## every family of models against transformers, our exports in it, MODELS="0 44" random ones from seed 0, a program of torch, and questions beside lm-evaluation-harness (3 GB the first time)
	folder=$$(mktemp -d) && trap 'rm -rf $$folder' EXIT && $(BIN)/python -m tests.train.weights.hf.exports $$folder/recorded && \
	  .venv-hf/bin/python -m tests.train.weights.hf.record --check $$folder/recorded && \
	  JAX_PLATFORMS=cpu $(BIN)/python -m tests.train.weights.hf.adapters_here $$folder/recorded && \
	  .venv-hf/bin/python -m tests.train.weights.hf.adapters_there $$folder/recorded && \
	  .venv-hf/bin/python -m tests.train.weights.hf.random_there make $$folder/random $(MODELS) && \
	  JAX_PLATFORMS=cpu $(BIN)/python -m tests.train.weights.hf.random_here $$folder/random && \
	  .venv-hf/bin/python -m tests.train.weights.hf.random_there check $$folder/random
	$(BIN)/pytest -n 0 tests/hosts/torch_program.py tests/cli/harness_program.py

.PHONY: test-levanter
test-levanter: $(READY) $(LEVANTER_READY) ## Levanter, unmodified, as an own program: killed, hung, stopped (1 GB the first time)
	$(BIN)/pytest -n 0 tests/hosts/levanter_program.py $(ARGS)

.PHONY: record-hf
record-hf: $(READY) $(HF_READY) ## write the logits of every family anew that transformers computes, for the tests without it
	.venv-hf/bin/python -m tests.train.weights.hf.record
	.venv-hf/bin/python -m tests.train.weights.hf.record_mxfp4

.PHONY: test-kind
test-kind: $(READY) ## the tests of jobs and images on the real kind, its control plane killed too; makes all it needs
	$(BIN)/python -m tests.cluster build
	$(BIN)/python -m images.build
	$(BIN)/python -m tests.cluster.kind build
	KIND=1 $(BIN)/pytest -n 0 -o faulthandler_timeout=3600 tests/kubernetes tests/images $(ARGS)

.PHONY: verify
verify: golden crds ## rewrite what is generated and fail if that changes a file; check the locks against what they lock
	git diff --exit-code -- tests docs charts
	$(BIN)/pytest tests/test_ground.py

.PHONY: bench
bench: $(READY) $(BENCH_READY) ## measure speed, memory and checkpoints against a hand-written limit and the peers
	$(BIN)/python benchmarks/run.py $(ARGS)

.PHONY: bench-gang
bench-gang: $(READY) ## what a leader has to do with 64, 256 and 1,024 hosts, and how long Ray takes on a few real ones
	$(BIN)/python -m benchmarks.gang $(ARGS)

.PHONY: bench-operator
bench-operator: $(READY) ## what 100 jobs x 4 hosts cost the operator and the control plane, on nodes that KWOK plays
	$(BIN)/python -m benchmarks.operator $(ARGS)

.PHONY: bench-apply
bench-apply: $(READY) ## from kubectl apply to the first step by phase, beside shardwise run, on the bare cluster
	$(BIN)/python -m benchmarks.apply $(ARGS)

.PHONY: chaos
chaos: $(READY) ## put faults to runs and jobs and measure what becomes of them (ARGS=--write writes docs/faults.md)
	$(BIN)/python -m benchmarks.faults $(ARGS)

.PHONY: soak
soak: $(READY) ## what restarts, saves and jobs leave behind, round by round, a quarter of an hour; draws docs/images/soak.png
	$(BIN)/python -m benchmarks.soak $(ARGS)

.PHONY: plans
plans: $(PLAN_READY) ## compile the plans of forty jobs and compare them with docs/plans.md, half an hour (ARGS="7B-tpu-v5p" for some)
	$(BIN)/python -m tests.plan.plans $(ARGS)

##@ Kubernetes on this machine

.PHONY: cluster-up
cluster-up: $(READY) ## start a cluster of 3 nodes, KIND=1 on kind, and print the lines that point kubectl and helm at it
	$(CLUSTER) up $(if $(filter 1,$(KIND)),,--nodes $(NODES))

.PHONY: images
images: $(READY) ## build the images of IMAGES="operator cpu" (also: tpu gpu), and load them into the cluster that is up
	images=$$($(BIN)/python -m images.build $(IMAGES)); $(CLUSTER) load $$images

.PHONY: publish
publish: $(READY) ## build IMAGES and push them to REGISTRY=... (ARCH="amd64 arm64" for both), with values by digest, bills of materials and provenance (build/publish)
	@$(if $(REGISTRY),,echo 'To which registry? Say it: make publish REGISTRY=europe-docker.pkg.dev/project/repository' >&2; exit 2)
	$(BIN)/python -m images.publish $(IMAGES) --registry $(REGISTRY) $(if $(ARCH),--arch $(ARCH))

.PHONY: cluster-down
cluster-down: $(READY) ## end it (KIND as for cluster-up), without a trace but what was compiled
	$(CLUSTER) down

##@ Change things

.PHONY: fmt
fmt: $(READY) ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: golden
golden: $(READY) ## rewrite the golden files; read the diff before you commit it
	UPDATE_GOLDEN=1 $(PYTEST) -m golden $(ARGS)

.PHONY: compiled
compiled: $(READY) $(PLAN_READY) ## record what the compilers make of the programs of tests/plan, after a change of programs (a quarter of an hour)
	$(BIN)/python -m tests.plan.record

.PHONY: crds
crds: $(READY) ## write the chart's CRDs, classes and admission policies, and docs/reference, from the types of the job file
	$(BIN)/python -m shardwise_operator.api.generate
	$(BIN)/python docs/site/reference.py

.PHONY: lock
lock: $(INSTALLER) ## resolve requirements/*.txt again (UPGRADE=1 moves every pin; needs the network)
	$(COMPILE) requirements/uv.in -o requirements/uv.txt
	$(COMPILE) requirements/go.in -o requirements/go.txt
	$(COMPILE) $(OPERATOR) trainer/pyproject.toml $(EXTRAS) requirements/dev.in -o requirements/dev.txt
	$(COMPILE) -c requirements/dev.txt trainer/pyproject.toml -o requirements/base.txt
	$(COMPILE) -c requirements/dev.txt trainer/pyproject.toml $(EXTRAS) -o requirements/train.txt
	$(COMPILE_TPU) -c requirements/dev.txt trainer/pyproject.toml $(EXTRAS) requirements/tpu.in -o requirements/tpu.txt
	$(COMPILE) -c requirements/dev.txt trainer/pyproject.toml $(EXTRAS) requirements/gpu.in -o requirements/gpu.txt
	$(COMPILE_TPU) -c requirements/dev.txt -c requirements/gpu.txt --override requirements/plan-override.in trainer/pyproject.toml \
	  --extra train --extra plan-tpu --extra plan-gpu requirements/plan.in -o requirements/plan.txt
	$(COMPILE) -c requirements/dev.txt requirements/image.in -o requirements/image.txt
	$(COMPILE) $(OPERATOR) -c requirements/dev.txt -o requirements/operator.txt
	$(COMPILE) requirements/bench.in -o requirements/bench.txt
	$(COMPILE) requirements/docs.in -o requirements/docs.txt
	$(COMPILE_TPU) requirements/hf.in -o requirements/hf.txt
	$(COMPILE) requirements/levanter.in -o requirements/levanter.txt

.PHONY: dist
dist: $(READY) ## what a release is made of, in DIST=dist: the wheels of both distributions, the charts, their checksums
	mkdir -p $(DIST) && rm -f $(DIST)/*.whl $(DIST)/*.tgz $(DIST)/SHA256SUMS
	for part in trainer operator; do \
	  $(UV) build --wheel --no-build-isolation --offline --python $(BIN)/python --out-dir $(DIST) $$part; \
	done
	[ "$$(cat $(DIST)/.gitignore 2> /dev/null)" != '*' ] || rm $(DIST)/.gitignore                # the builder's own
	helm=$$(command -v helm || echo $$($(BIN)/python -m tests.cluster build)/helm); \
	  "$$helm" package charts/shardwise charts/training-job charts/training-teams --destination $(DIST)
	cd $(DIST) && sha256sum *.whl *.tgz > SHA256SUMS && cat SHA256SUMS

.PHONY: clean
clean: ## remove the environments and the tools' caches (runs and checkpoints stay)
	rm -rf .venv .venv-bench .venv-docs .venv-hf .venv-levanter .venv-plan .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------------------------- the environments
# pip installs uv by hash; uv installs the rest by hash. The distributions are built here, without a download.

# Print the seconds that this Python takes for a loop, the least of three, and where it is; nothing if it is another version or
# makes no environments.
define FASTEST
import ensurepip, sys, timeit, venv
if sys.version_info[:2] == (3, 11):
    seconds = min(timeit.repeat("{str(i): i for i in range(100)}", number=3000, repeat=3))
    print(f"{seconds:.3f} {sys.executable}")
endef
export FASTEST

$(INSTALLER):
	@echo "==> .venv: Python 3.11 and the installer"
	@# Builds of one version differ by a third: those without profiles, as pyenv makes them, take that much longer to import JAX.
	@python=$$(for candidate in $(or $(PYTHON),$$(type -ap python3.11 python3 python)); do \
	  "$$candidate" -c "$$FASTEST" 2>/dev/null || true; done | sort -n | sed -n '1s/^[^ ]* //p'); \
	if [ -z "$$python" ]; then \
	  echo "Python 3.11 with its venv module was not found (tried: $(or $(PYTHON),python3.11 python3 python))." >&2; \
	  echo "Install it (Debian, Ubuntu: python3.11-venv), or say where it is: make PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	echo "$$python, the fastest that was found"; \
	"$$python" -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@rm -f .venv/.uv-* && touch $@

$(READY): $(INSTALLER)
	@echo "==> .venv: the locked dependencies (about 300 MB the first time)"
	$(UV) pip sync --python $(BIN)/python --compile-bytecode --require-hashes requirements/dev.txt
	@echo "==> .venv: shardwise and shardwise-operator, editable"
	$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation --offline -e trainer -e operator
	@rm -f .venv/.ready-* && touch $@

$(PLAN_READY): | $(READY)
	@echo "==> .venv-plan: the trainer with the compilers for TPUs and GPUs (900 MB the first time)"
	$(BIN)/python -m venv --clear --without-pip .venv-plan
	$(UV) pip sync --python .venv-plan/bin/python --compile-bytecode --require-hashes requirements/plan.txt
	$(UV) pip install --python .venv-plan/bin/python --no-deps --no-build-isolation --offline -e trainer
	@touch $@

$(BENCH_READY): | $(READY)
	@echo "==> .venv-bench: the peers that the benchmarks compare with"
	$(BIN)/python -m venv --clear --without-pip .venv-bench
	$(UV) pip sync --python .venv-bench/bin/python --compile-bytecode --require-hashes requirements/bench.txt
	@touch $@

$(DOCS_READY): | $(READY)
	@echo "==> .venv-docs: Sphinx"
	$(BIN)/python -m venv --clear --without-pip .venv-docs
	$(UV) pip sync --python .venv-docs/bin/python --compile-bytecode --require-hashes requirements/docs.txt
	@touch $@

$(HF_READY): | $(READY)
	@echo "==> .venv-hf: torch and transformers, which imports and exports are compared with (3 GB the first time)"
	$(BIN)/python -m venv --clear --without-pip .venv-hf
	$(UV) pip sync --python .venv-hf/bin/python --compile-bytecode --require-hashes requirements/hf.txt
	@touch $@

$(LEVANTER_READY): | $(READY)
	@echo "==> .venv-levanter: Levanter with the newest JAX that it runs with (1 GB the first time)"
	$(BIN)/python -m venv --clear --without-pip .venv-levanter
	$(UV) pip sync --python .venv-levanter/bin/python --compile-bytecode --require-hashes requirements/levanter.txt
	@touch $@
