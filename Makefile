# Everything a contributor runs. `make help` lists it.
SHELL := /bin/bash
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Debian's own, which has the libnbd module; another one earlier in PATH would not.
PYTHON ?= /usr/bin/python3

.DEFAULT_GOAL := build
.PHONY: help setup build demo test test-rust test-clients test-threads soak soak-space soak-crash soak-hostile soak-seeds bench bench-vdi bench-boot bench-ats fmt lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what the targets below need (Debian 12; asks for root only if something is missing)
	@scripts/setup.sh

build: ## the release binary
	$(CARGO) build --release --locked -p forebay-server

demo: setup build ## boot real guests from clones of one golden image, and print what it cost the store
	@FOREBAY_BIN=$(TARGET)/release/forebay $(PYTHON) demo/demo.py

test: setup ## every test: Rust first, then real clients against the real server
	@$(MAKE) --no-print-directory test-rust
	@$(MAKE) --no-print-directory test-clients

test-rust:
	$(CARGO) test --workspace --locked

# Against the binary that the Rust tests run: built by then, optimised enough, and with every assertion on.
test-clients: ## only the real clients: nbdinfo, nbdcopy, qemu, fio, file systems, kill -9
	$(CARGO) test --workspace --locked --no-run
	@FOREBAY_BIN=$(TARGET)/debug/forebay $(PYTHON) tests/clients/run.py

# Each schedule that fails is printed, and replays it. The engine's locks and atomics come from shuttle here.
test-threads: ## the engine's locks, gate, latch and misses under thousands of thread schedules (minutes)
	RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=$(TARGET)/shuttle $(CARGO) test --locked -p forebay-engine --test threads

# Hours in all; each part alone takes as long as its numbers say.
soak: soak-space soak-crash soak-hostile soak-seeds ## everything that only long runs show

soak-space: setup build ## sustained load on a store short of room, SOAK_MINUTES (30) at each live share
	@FOREBAY_BIN=$(TARGET)/release/forebay $(PYTHON) tests/soak/run.py $(ARGS)

soak-crash: setup build ## FOREBAY_CRASH_ROUNDS (1000) kills of the server, FOREBAY_POWER_CUTS (150) on ext4 and on XFS
	@FOREBAY_BIN=$(TARGET)/release/forebay FOREBAY_CRASH_ROUNDS=$${FOREBAY_CRASH_ROUNDS:-1000} \
		FOREBAY_POWER_CUTS=$${FOREBAY_POWER_CUTS:-150} $(PYTHON) tests/clients/run.py kill_9 power_cuts

soak-hostile: setup build ## hostile clients for FOREBAY_HOSTILE_S (120) of each kind, FOREBAY_SESSIONS (20000) made-up sessions
	@FOREBAY_BIN=$(TARGET)/release/forebay FOREBAY_HOSTILE_S=$${FOREBAY_HOSTILE_S:-120} \
		$(PYTHON) tests/clients/run.py budget_of_memory
	FOREBAY_SESSIONS=$${FOREBAY_SESSIONS:-20000} $(CARGO) test --workspace --locked --test sessions

soak-seeds: ## FOREBAY_ROUNDS (20000) seeds of each simulated world
	FOREBAY_ROUNDS=$${FOREBAY_ROUNDS:-20000} $(CARGO) test --workspace --locked --test world --test rounds --test faults

bench: setup build ## the promised figures, each beside its peer, in one run
	$(CARGO) run --release --locked -p forebay-xray -- bench $(ARGS)

bench-vdi: setup build ## fleets of virtual desktops, beside published figures (ARGS=--quick for a short run)
	$(CARGO) run --release --locked -p forebay-xray -- vdi $(ARGS)

bench-boot: setup build ## real guests boot from a slow store, with and without boot profile
	@FOREBAY_BIN=$(TARGET)/release/forebay $(PYTHON) demo/slow_boot.py

bench-ats: setup build ## volumes that hosts share over iSCSI: locks, snapshots, and throughput beside tgtd
	$(CARGO) run --release --locked -p forebay-xray -- ats $(ARGS)

fmt: ## format all code
	$(CARGO) fmt --all

lint: ## formatting, clippy, tidy, licences of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) run -q --locked -p xtask -- tidy
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny --offline check licenses bans sources

clean: ## remove build output and cached images
	$(CARGO) clean
	rm -rf .cache
