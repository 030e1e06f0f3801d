# Heddle. `make setup` provides everything the other targets need; they run it themselves.

.PHONY: setup demo readme pages test stress look bench rates validate deb container man site lint audit fmt clean python
.NOTPARALLEL:

PYTHON ?= python3
# Runs a command with the unpacked compilers and the Python environment in PATH.
IN = $(PYTHON) -m setup exec

C_FILES = $(shell find scheduler/src/bpf scheduler/tests lab/calibrate lab/clock lab/profile -name '*.[ch]')
PY_DIRS = setup lab
AUDITORS = $${HEDDLE_CACHE:-~/.cache/heddle}/audit/bin
ADVISORIES = https://github.com/RustSec/advisory-db
# The published tables.
BENCH = $(notdir $(patsubst %/table.md,%,$(wildcard docs/results/*/table.md)))

setup: python
	@$(PYTHON) -m setup

# The one thing that set-up, written in Python, cannot install by itself.
python:
	@command -v $(PYTHON) >/dev/null || { \
	  as_root=; [ $$(id -u) = 0 ] || as_root=sudo; \
	  $$as_root apt-get update -q && $$as_root apt-get install -y --no-install-recommends $(PYTHON); }

demo: setup
	bin/heddle run lab/experiments/demo.toml --out out/demo

# The README shows what the demo printed.
readme: demo
	bin/heddle report out/demo --into README.md
	$(MAKE) pages

# Pages say which of their tables are of another version of the scheduler or the laboratory.
pages: setup
	bin/heddle pages

test: setup lint
	$(IN) cargo test --workspace --locked
	$(IN) python3 -m pytest -c lab/pyproject.toml -n logical --dist loadscope --durations 20 setup/tests lab/tests

# Ten million wakeups while CPUs come and go, a million on 64 CPUs with one queue; a thousand restarts, 10,000 groups,
# 50,000 threads; ten virtual minutes of everything at once; real-time tasks, quotas and hotplug, a virtual minute of
# each combination. On the oldest kernel with sched_ext, too. Then a kernel is built from source, patched and
# bisected, and a machine of 288 CPUs boots.
stress: setup
	$(PYTHON) -m setup kernel 6.12
	HEDDLE_KERNELS="6.12 6.18 7.3" HEDDLE_WAKES=10000000 $(IN) python3 -m pytest -c lab/pyproject.toml -v --timeout 0 -n logical -m stress lab/tests/vm
	$(IN) python3 -m pytest -c lab/pyproject.toml -v --timeout 0 lab/kernelbuild lab/large

# The committed reports in a real browser, which is the host's; screenshots in out/look.
look: setup
	@command -v chromium >/dev/null || { \
	  as_root=; [ $$(id -u) = 0 ] || as_root=sudo; \
	  $$as_root apt-get update -q && $$as_root apt-get install -y --no-install-recommends chromium; }
	$(IN) python3 -m pytest -c lab/pyproject.toml lab/browser

# Each by the command that stands above it.
bench: setup
	$(PYTHON) -m setup peers kernel-peers
	set -e; for name in $(BENCH); do \
	  sed -n 's/^`\(bin\/heddle run .*\)`$$/\1/p' docs/results/$$name/table.md | sh -ex; done

# What the clock costs: lab/clock/RATES.md.
rates: setup
	cd lab && PYTHONPATH=.. $(IN) python3 -m clock.bench

# What the laboratory claims about itself: docs/validation.md.
validate: setup
	$(PYTHON) -m setup peers
	bin/heddle validate

# A Debian package of the scheduler, in out/.
deb: setup
	$(PYTHON) -m setup deb

# An OCI image of the laboratory, `heddle`. BASE=... builds on another image of Debian 12 or 13.
CONTAINER ?= $(notdir $(firstword $(foreach tool,podman docker buildah,$(shell command -v $(tool)))))
BASE ?=
container:
	@[ -n "$(CONTAINER)" ] || { echo "container: install podman, docker or buildah" >&2; exit 1; }
	$(CONTAINER) build $(if $(BASE),--build-arg BASE=$(BASE)) --tag heddle --file Containerfile .

# Manual pages and shell completions, in out/man.
man: setup
	mkdir -p out/man
	bin/scx_heddle --man > out/man/scx_heddle.8
	set -e; for shell in bash fish zsh; do \
	  bin/scx_heddle --completions $$shell > out/man/scx_heddle.$$shell; done
	bin/heddle manual out/man

# The documentation, in out/site.
site: setup
	NO_MKDOCS_2_WARNING=1 $(IN) python3 -m mkdocs build --strict --quiet

lint: setup
	$(IN) cargo fmt --all --check
	$(IN) cargo clippy --workspace --all-targets --locked -- -D warnings
	$(IN) clang-format --dry-run --Werror $(C_FILES)
	$(IN) ruff check $(PY_DIRS)
	$(IN) ruff format --check $(PY_DIRS)
	$(IN) python3 -m mypy --strict --config-file lab/pyproject.toml -p setup
	cd lab && PYTHONPATH=.. $(IN) python3 -m mypy --strict
	bin/heddle pages --check
	@if timeout 20 git ls-remote --quiet $(ADVISORIES) HEAD >/dev/null 2>&1; then $(MAKE) audit; \
	  else echo "lint: dependencies not compared with advisories: $(ADVISORIES) cannot be reached"; fi

# Crates and Python packages with known vulnerabilities: CONTRIBUTING.md, Dependencies.
audit: setup
	$(PYTHON) -m setup audit
	$(IN) $(AUDITORS)/cargo-audit audit -f Cargo.lock $(CARGO_AUDIT)
	$(IN) $(AUDITORS)/pip-audit --require-hashes --disable-pip -r lab/requirements.txt $(PIP_AUDIT)

fmt: setup
	$(IN) cargo fmt --all
	$(IN) clang-format -i $(C_FILES)
	$(IN) ruff check --fix-only $(PY_DIRS)
	$(IN) ruff format $(PY_DIRS)

# The cache is shared by all clones and stays: rm -r $${HEDDLE_CACHE:-~/.cache/heddle}
clean:
	rm -rf bin out target
