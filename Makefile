# Commands; `make` alone lists them.
#   PYTHON=python3.12 make setup    another Python (3.11 or newer)
#   BROKER=host:port make demo      an Apache Kafka that is already running

PYTHON ?= python3
RUN := .venv/bin/python -m

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check subjects format lock bench peers model torture docs pictures deploy-tools manifests release-check release-notes dist wheel audit-libraries image clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/ready  ## create the environment in .venv (the other commands do so if necessary)

# uv installs the same packages, with the same hashes, in a tenth of pip's time. If uv is missing and cannot be fetched, or fails,
# pip is installed into .venv and used instead. uv stays outside .venv, because no package there needs it.
PIP := .venv/bin/python -m pip --quiet --disable-pip-version-check
UV := $(or $(shell command -v uv 2>/dev/null),build/uv/bin/uv)
UV_PIP := $(UV) pip install --quiet --python .venv/bin/python

install = $(UV_PIP) $(1) 2>/dev/null || { .venv/bin/python -m ensurepip >/dev/null && $(PIP) install $(1); }

# Packages of the demo; `.venv/ready` adds those of the tests.
.venv/demo: requirements-demo.lock requirements-uv.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "stream_dedup needs Python 3.11 or newer, and $(PYTHON) is older; try: make PYTHON=python3.12 setup" >&2; exit 1; }
	$(PYTHON) -m venv --clear --without-pip .venv
	-@test -x $(UV) || $(PYTHON) -m pip --quiet install --target build/uv --require-hashes -r requirements-uv.lock 2>/dev/null
	$(call install,--require-hashes -r requirements-demo.lock)
	@$(call install,--no-deps -e .)
	@touch .venv/demo

.venv/ready: requirements.lock .venv/demo
	$(call install,--require-hashes -r requirements.lock)
	@touch .venv/ready

# The console of `--serve` needs jinja2 and the full-text engine.
demo: $(if $(findstring --serve,$(ARGS)),.venv/ready,.venv/demo)  ## filter a generated crawl in many languages on a real Apache Kafka, and print the results
	.venv/bin/stream-dedup demo $(ARGS)

# The processes share one broker; most of the time they wait for roles to start. Bytecode is kept even if the
# environment disables it: the tests start hundreds of programs, and each would compile all its imports again.
PROCESSES ?= 4
PYTEST := PYTHONDONTWRITEBYTECODE= $(RUN) pytest
SHARED := --numprocesses $(PROCESSES) --dist worksteal
test: .venv/ready  ## run the tests of every invariant, on a real Apache Kafka, with kills; ARGS='-k chain' selects some
	$(PYTEST) $(SHARED) $(ARGS)

test-all: test  ## run all tests: also more cases and kills, the benches, an empty machine and three brokers
	$(PYTEST) $(SHARED) -m 'thorough and not long' $(ARGS)
	$(PYTEST) -m long $(ARGS)

check: .venv/ready  ## check lint, format, types and commit subjects
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	@$(MAKE) --no-print-directory subjects

# The first commit whose subject follows CONTRIBUTING, until there is a release.
SUBJECTS_SINCE := ed8b7d37
subjects:  ## list commit subjects since the last release that lack an area or exceed 72 characters
	@since=$$(git describe --tags --abbrev=0 2>/dev/null || echo $(SUBJECTS_SINCE)); \
	  git log --no-merges --format='%h %s' $$since..HEAD 2>/dev/null | \
	  awk '{ subject = substr($$0, length($$1) + 2) } subject !~ /^[a-z0-9_\/.,-]+: [a-z0-9`]/ || length(subject) > 72 { print "subject: " $$0 }'

format: .venv/ready  ## format all code with ruff
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

bench: .venv/ready  ## measure the whole path, compared with a plain copy; ARGS='--documents 200000'
	$(RUN) bench path $(ARGS)

peers: .venv-peers/ready  ## install the programs that the benches compare with (--peers), in .venv-peers
.venv-peers/ready: peers/requirements.txt peers/bare.txt
	$(PYTHON) -m venv --clear .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r peers/requirements.txt
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r peers/bare.txt
	@touch .venv-peers/ready

SCHEDULES ?= 10000
model: .venv/ready  ## run the roles through SCHEDULES seeded schedules of faults on a Kafka in memory; ARGS='--replay SEED'
	$(RUN) tests.model --schedules $(SCHEDULES) $(ARGS)

MINUTES ?= 10
torture: .venv/ready  ## kill roles and broker at random for MINUTES, then check every invariant
	$(RUN) tests.broker.torture --minutes $(MINUTES) $(ARGS)

lock:  ## write all requirements*.lock files from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-emit-index-url --no-emit-find-links --quiet -o requirements.lock
	uv pip compile pyproject.toml --extra broker --constraint requirements.lock --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-emit-index-url --no-emit-find-links --quiet -o requirements-demo.lock
	echo uv | uv pip compile - --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-emit-index-url --no-emit-find-links --quiet -o requirements-uv.lock
	uv pip compile pyproject.toml --extra html --extra insights --extra search --constraint requirements.lock --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-annotate --no-emit-index-url --no-emit-find-links --quiet -o deploy/requirements.lock

deploy-tools: .venv/ready  ## fetch helm and promtool, which the thorough tests of deploy/ use
	$(RUN) tests.deploy.tools

manifests: .venv/ready  ## write deploy/manifests.yaml from the Helm chart
	$(RUN) tests.deploy.tools manifests

pictures: .venv/ready  ## take the screenshots of the console in docs/ (needs chromium and chromedriver)
	$(RUN) tests.console.pictures

docs: .venv/ready  ## build the documentation as a site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

release-check: .venv/ready  ## check that all files name one version; TAG=v1.2.3 for a release
	.venv/bin/python deploy/release.py check $(TAG)

release-notes:  ## print the notes of VERSION in CHANGELOG.md, for the release's page
	@$(PYTHON) deploy/release.py notes $(VERSION)

dist: .venv/ready  ## build an sdist and a wheel for all platforms, in dist/
	$(RUN) hatchling build -d dist

wheel: .venv/ready  ## build a wheel with compiled kernels for this platform and Python, in dist/
	.venv/bin/python deploy/release.py wheel

audit-libraries:  ## check the image's libraries for known vulnerabilities
	$(PYTHON) -m venv --clear build/pip-audit
	build/pip-audit/bin/python -m pip install --quiet pip-audit
	build/pip-audit/bin/pip-audit --disable-pip --require-hashes --requirement deploy/requirements.lock

image:  ## build and test the image without a container daemon (root, Debian, buildah, debootstrap)
	deploy/build-without-daemon.sh $(ARGS)

clean:  ## remove what was built
	rm -rf .venv .venv-peers build dist .mypy_cache .ruff_cache .pytest_cache
