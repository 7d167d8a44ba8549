# One command per chore. `make help` lists them. `make train` and `make test` do all set-up themselves.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3

# uv: the one on PATH, else a private copy in .uv/ made with the standard library's venv and pip.
UV ?= $(shell command -v uv 2>/dev/null || echo $(CURDIR)/.uv/bin/uv)
export UV
# The certificates of the system rather than uv's own list: works behind a proxy that signs for itself too.
export UV_SYSTEM_CERTS ?= 1
RUN = $(UV) run --no-sync

# A short run that shows learning within a few minutes on two cores; `make train ARGS="..."` replaces nothing, it adds.
TRAIN_DEFAULTS = --total-timesteps 15000 --learning-starts 5000 --eval-every 5000 --eval-episodes 5

.DEFAULT_GOAL := help

.PHONY: help
help:  ## List the chores
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(CURDIR)/.uv/bin/uv:
	@echo "uv was not found: installing it into $(CURDIR)/.uv (call it as .uv/bin/uv, e.g. '.uv/bin/uv run rlz --help')"
	@$(PYTHON) -c 'import sys; sys.exit("rlz needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet 'uv>=0.9,<1'

.PHONY: setup
setup: $(UV)  ## Install everything into .venv and build the Rust extension
	@command -v cargo >/dev/null || { echo "cargo was not found: install a Rust toolchain first (https://rustup.rs)"; exit 1; }
	$(UV) sync --quiet

.PHONY: train
train: setup  ## Train SAC on Ant-v4 (a short run); ARGS="..." passes further options on
	@$(RUN) rlz train sac --env Ant-v4 $(TRAIN_DEFAULTS) $(ARGS)
	@echo "Next: $(notdir $(UV)) run rlz train sac --env Ant-v4   (the whole run; uv is $(UV))"

.PHONY: test
test: setup test-rust test-loom test-python  ## Run the whole default test set (Rust and Python)

.PHONY: test-rust
test-rust:
	@if command -v cargo-nextest >/dev/null; then cargo nextest run --workspace; else cargo test --workspace --quiet; fi

# Optimised but without link-time optimisation: the models are small, their compile time is not.
MODEL = CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=8 CARGO_PROFILE_RELEASE_DEBUG=0 \
	cargo test --quiet --release --package rlz-core
LOOM = RUSTFLAGS="--cfg loom" $(MODEL) --target-dir target/loom --test loom
SHUTTLE = RUSTFLAGS="--cfg shuttle" SHUTTLE_SILENCE_WARNINGS=1 $(MODEL) --target-dir target/shuttle --test shuttle

.PHONY: test-loom
test-loom:
	$(LOOM)

.PHONY: test-python
test-python:
	$(RUN) pytest -q -m "not learn and not kill and not wheel and not oracle"

.PHONY: quick
quick: setup  ## The tests of the edit loop: those of Python that take no time, within a minute
	$(RUN) pytest -q --quick

.PHONY: lint
lint: setup  ## Formatting, lints and types of both languages, and the stub file against the extension
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(RUN) ruff format --check python tests benches examples
	$(RUN) ruff check python tests benches examples
	$(RUN) mypy
	$(RUN) python -m mypy.stubtest rlz._native --allowlist .config/stubtest-allow.txt

.PHONY: fmt
fmt: setup  ## Format both languages
	cargo fmt
	$(RUN) ruff format python tests benches examples
	$(RUN) ruff check --fix python tests benches examples

.PHONY: loom
loom:  ## Model-check the protocols: all schedules of small models, random ones of larger, with kills and with orderings taken away
	$(LOOM) -- --include-ignored
	$(SHUTTLE)

.PHONY: kill
kill: setup  ## Long kill storms with real processes: 10,000 kills over all streams, then whole runs
	cargo test --release --package rlz-core --test storm -- --ignored --nocapture
	$(RUN) pytest -q -m kill

# RUSTC_BOOTSTRAP: the sanitizer's flag on the stable toolchain. New inputs stay in rust/fuzz/corpus, which the tests replay.
FUZZ_SECONDS ?= 300
.PHONY: fuzz
fuzz:  ## Fuzz headers and saved files (needs `cargo install cargo-fuzz`); FUZZ_SECONDS=300 each
	@command -v cargo-fuzz >/dev/null || { echo "cargo-fuzz was not found: cargo install cargo-fuzz"; exit 1; }
	for target in header saved; do \
		RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir rust/fuzz $$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=16384 || exit 1; \
	done

.PHONY: learn
learn: setup  ## Learning gates (SAC, TD3 and DDPG on Pendulum-v1, DQN and PPO on CartPole-v1, ...; about an hour on two cores)
	$(RUN) pytest -q -s -m learn --timeout=3600

.PHONY: oracle
oracle: setup  ## Updates beside Stable-Baselines3's own train() in float64 (makes its environment)
	$(RUN) pytest -q -m oracle tests/algorithms tests/bench

.PHONY: bench
bench: setup  ## Throughput beside Stable-Baselines3 and SBX (makes their environments; about twenty minutes)
	$(RUN) rlz bench --setup-peers --peers sb3,sbx
	$(RUN) rlz bench train --peers sb3,sbx --output docs/bench/train
	$(RUN) rlz bench update --peers sb3,sbx --output docs/bench/update
	$(RUN) rlz bench sampling --output docs/bench/sampling

.PHONY: bench-transport
bench-transport: setup  ## Replay buffer, queue and parameter store beside their peers (ten minutes, the machine to itself)
	$(RUN) rlz bench --setup-peers --peers faster-fifo,sb3,cpprb,torchrl
	$(RUN) rlz bench transport --peers faster-fifo --rounds 4 --seconds 4 --output docs/bench/transport
	$(RUN) rlz bench replay --peers sb3,cpprb,torchrl --rounds 4 --seconds 4 --output docs/bench/replay
	$(RUN) python benches/capacity.py docs/bench/replay/report.json docs/bench/capacity.svg

.PHONY: figures
figures: bench bench-transport  ## Measure the figures of the README anew and write them into it (half an hour)
	$(RUN) python benches/readme.py

# abi3: one wheel for Python 3.11 and newer. The tag (manylinux_2_34 where glibc is 2.34 or newer) is the oldest glibc that
# serves: that of the first distributions with a kernel new enough for rlz. Paths of this machine (in texts of panics) stay out.
.PHONY: wheel
wheel: setup  ## Build a wheel into dist/ and try it in an empty environment
	rm -rf dist
	RUSTFLAGS="--remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo --remap-path-prefix=$(CURDIR)=rlz" \
		$(RUN) maturin build --release --locked --target-dir target/wheel --out dist
	RLZ_WHEEL=$$(echo $(CURDIR)/dist/rlz-*.whl) $(RUN) pytest -q -m wheel tests/packaging
	@ls -l dist/*.whl

# A tool of its own environment: nobody else needs it.
.PHONY: docs
docs: $(UV)  ## Build the pages of docs/ into target/site; fails on a link that leads nowhere
	$(UV) run --no-project --with 'mkdocs==1.6.1' mkdocs build --quiet --strict

.PHONY: lock
lock: $(UV)  ## Move every pinned Python dependency to its newest version that fits
	$(PYTHON) tools/lock.py $(UV)

.PHONY: clean
clean:  ## Remove builds, caches and the virtual environment (never runs/)
	rm -rf target .venv .pytest_cache .mypy_cache .ruff_cache dist
