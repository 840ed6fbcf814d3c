# The commands of this repository. `make help` lists them.
SHELL := /bin/bash
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Debian's Python, for which the libnbd module is packaged; others earlier in PATH lack it.
PYTHON ?= /usr/bin/python3
MDBOOK ?= mdbook

.DEFAULT_GOAL := build
.PHONY: help setup build dev check test test-rust test-clients test-browser test-threads test-ceph test-api test-proxmox test-package \
	package package-proxmox release demo soak soak-space soak-crash soak-hostile soak-seeds soak-upgrade bench bench-fair bench-engine bench-vdi \
	bench-boot bench-ats bench-rados bench-scale bench-dashboard xray xray-fio fmt lint deny corpora book clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the tools that the other commands need (Debian 12; needs root only if some are missing)
	@scripts/setup.sh

build: ## build the release binary
	$(CARGO) build --release --locked -p forebay-server

dev: ## run a server on a scratch pool; rebuild and restart it when a source file changes
	@scripts/dev.sh $(ARGS)

check: ## formatting, clippy and unit tests: under 2 minutes when warm
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --locked --lib --bins

test: setup ## all tests: Rust, real clients against the server, and the dashboard in a browser
	@PYTHON=$(PYTHON) $(CARGO) run -q --locked -p xtask -- test-all

test-rust: ## the Rust tests alone, several test binaries at once
	$(CARGO) run -q --locked -p xtask -- test

# The debug binary of the Rust tests: it is built already, fast enough, and has all assertions.
test-clients: ## the real clients alone: nbdinfo, nbdcopy, qemu, fio, file systems, kill -9
	$(CARGO) test --workspace --locked --no-run
	@FOREBAY_BIN=$(TARGET)/debug/forebay $(PYTHON) tests/clients/run.py $(ARGS)

test-browser: ## the dashboard in Chromium: FOREBAY_SCREENSHOTS=DIR keeps pictures of all pages
	$(CARGO) test --workspace --locked --no-run
	@FOREBAY_BIN=$(TARGET)/debug/forebay $(PYTHON) tests/browser/run.py $(ARGS)

# A failing schedule is printed and can be replayed. The engine's locks and atomics are those of shuttle here.
test-threads: ## the engine's locks, gate, latch and misses under thousands of thread schedules (minutes)
	RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=$(TARGET)/shuttle $(CARGO) test --locked -p forebay-engine --test threads

test-ceph: setup build ## pools in Ceph, for about an hour; `make test` runs the short forms of these tests
	@FOREBAY_BIN=$(TARGET)/release/forebay FOREBAY_RADOS_KILLS=$${FOREBAY_RADOS_KILLS:-200} \
		FOREBAY_RADOS_TAKEOVERS=$${FOREBAY_RADOS_TAKEOVERS:-50} FOREBAY_RADOS_PAUSES=$${FOREBAY_RADOS_PAUSES:-100} \
		FOREBAY_RADOS_HANDOVERS=$${FOREBAY_RADOS_HANDOVERS:-100} FOREBAY_RADOS_UPGRADES=$${FOREBAY_RADOS_UPGRADES:-20} \
		FOREBAY_RADOS_RACES=$${FOREBAY_RADOS_RACES:-1000} FOREBAY_RADOS_PARTITIONS=$${FOREBAY_RADOS_PARTITIONS:-40} \
		FOREBAY_RADOS_GUEST_TAKEOVERS=$${FOREBAY_RADOS_GUEST_TAKEOVERS:-6} FOREBAY_RADOS_OUTAGE_S=$${FOREBAY_RADOS_OUTAGE_S:-60} \
		FOREBAY_CLUSTER_ROUNDS=$${FOREBAY_CLUSTER_ROUNDS:-100} \
		$(PYTHON) tests/clients/run.py $(or $(ARGS),rados cluster_)

test-api: build ## send generated requests for every route of the API; `make test` has a short form
	@FOREBAY_BIN=$(TARGET)/release/forebay $(PYTHON) scripts/test-api.py $(ARGS)

# The sources of Proxmox VE are cloned from GitHub once, or are in PVE_SOURCES. `make test` runs the same
# tests without them.
test-proxmox: setup ## the storage plug-in on the sources of Proxmox VE, with its own tests
	$(CARGO) build -q --locked -p forebay-server
	@FOREBAY_BIN=$${FOREBAY_BIN:-$(abspath $(TARGET))/debug/forebay} tests/proxmox/real.sh $(ARGS)

package-proxmox: ## the Debian package of the storage plug-in for Proxmox VE, in target/proxmox
	@packaging/proxmox/build-deb $(TARGET)/proxmox

demo: setup build ## boot real guests from clones of one golden image, and print the cost in the store
	@FOREBAY_BIN=$(TARGET)/release/forebay $(PYTHON) demo/demo.py

# Hours in total. Each part has a variable that sets its length.
soak: soak-space soak-crash soak-hostile soak-seeds soak-upgrade ## all long runs, for hours

soak-space: setup build ## load on a nearly full store, SOAK_MINUTES (30) at each live share
	@FOREBAY_BIN=$(TARGET)/release/forebay $(PYTHON) tests/soak/run.py $(ARGS)

soak-crash: setup build ## FOREBAY_CRASH_ROUNDS (1000) kills, FOREBAY_POWER_CUTS (150) each on ext4 and XFS
	@FOREBAY_BIN=$(TARGET)/release/forebay FOREBAY_CRASH_ROUNDS=$${FOREBAY_CRASH_ROUNDS:-1000} \
		FOREBAY_POWER_CUTS=$${FOREBAY_POWER_CUTS:-150} FOREBAY_KEPT_ROUNDS=$${FOREBAY_KEPT_ROUNDS:-500} \
		FOREBAY_GHOST_CUTS=$${FOREBAY_GHOST_CUTS:-5000} FOREBAY_GUEST_KILLS=$${FOREBAY_GUEST_KILLS:-20} \
		$(PYTHON) tests/clients/run.py kill_9 power_cuts no_acknowledged_write_is_lost no_write_of_a_cut \
		a_guest_lives_on

soak-hostile: setup build ## hostile clients: FOREBAY_HOSTILE_S (120) each, FOREBAY_SESSIONS (20000) sessions
	@FOREBAY_BIN=$(TARGET)/release/forebay FOREBAY_HOSTILE_S=$${FOREBAY_HOSTILE_S:-120} \
		$(PYTHON) tests/clients/run.py budget_of_memory
	FOREBAY_SESSIONS=$${FOREBAY_SESSIONS:-20000} $(CARGO) test --workspace --locked --test sessions

soak-seeds: ## FOREBAY_ROUNDS (20000) seeds of each simulated world
	FOREBAY_ROUNDS=$${FOREBAY_ROUNDS:-20000} $(CARGO) test -p forebay-sim --locked --test it -- world:: rounds:: faults:: \
		clean:: rados:: restarts::

# The workflow runs it for each change. FOREBAY_OLD is a binary of the last release, if there is one already.
soak-upgrade: setup build ## upgrades from the last release under clients and a guest, and downgrades
	@old=$$(scripts/last-release.sh) && FOREBAY_OLD=$$old FOREBAY_BIN=$(TARGET)/release/forebay \
		$(PYTHON) tests/upgrade/run.py $(ARGS)

bench: setup build ## the promised figures, each next to its peer, in one run
	$(CARGO) run --release --locked -p forebay-xray -- bench $(ARGS)

bench-fair: setup build ## a guest next to others that take all that they can get
	$(CARGO) run --release --locked -p forebay-xray -- bench --only hog $(ARGS)

bench-engine: setup ## commits without clients, with one worker and with all cores: on the disk, and in memory
	$(CARGO) run --release --locked -p forebay-server --example commit -- target/bench/engine $(ARGS)
	$(CARGO) run --release --locked -p forebay-server --example commit -- /dev/shm/forebay-bench-engine $(ARGS)

bench-vdi: setup build ## fleets of virtual desktops, next to published figures (ARGS=--quick for a short run)
	$(CARGO) run --release --locked -p forebay-xray -- vdi $(ARGS)

bench-boot: setup build ## real guests boot from a slow store, with and without boot profile
	@FOREBAY_BIN=$(TARGET)/release/forebay $(PYTHON) demo/slow_boot.py

bench-ats: setup build ## volumes that hosts share over iSCSI: locks, snapshots, and throughput next to tgtd
	$(CARGO) run --release --locked -p forebay-xray -- ats $(ARGS)

bench-rados: setup build ## pools in Ceph next to librbd, on a throw-away cluster (ARGS=--quick: short)
	$(CARGO) build --release --locked -p forebay-xray
	@FOREBAY_BIN=$(TARGET)/release/forebay $(PYTHON) tests/ceph/bench.py $(ARGS)

bench-scale: ## what the tables of a pool of 1, 10 and 100 TB cost, and writes while 10 to 10,000 disks wait
	$(CARGO) test --release --locked -p forebay-engine --lib -- scale:: --ignored --nocapture

bench-dashboard: setup build ## time until pages are shown with 2,000 volumes: at most 200 ms
	@FOREBAY_BIN=$(TARGET)/release/forebay FOREBAY_BROWSER_ROUNDS=$${FOREBAY_BROWSER_ROUNDS:-7} \
		FOREBAY_BROWSER_PAGE_MS=$${FOREBAY_BROWSER_PAGE_MS:-200} $(PYTHON) tests/browser/run.py two_thousand_volumes

package: build ## the Debian package, in target/package (needs dpkg-deb)
	@packaging/debian/build.sh $(TARGET)/release/forebay $(TARGET)/package

# The commit decides the version and all times in the files.
release: ## all files of a release, signed with KEY=FINGERPRINT of gpg, in target/release-files
	@[[ -n "$(KEY)" ]] || { echo "release: KEY=FINGERPRINT names the key of gpg that signs the release" >&2; exit 1; }
	@packaging/release/build.sh $(TARGET)/release-files && packaging/release/sign.sh $(TARGET)/release-files $(KEY)

test-package: setup build ## the package on clean roots of Debian 12 and 13 (root, debootstrap; minutes)
	@FOREBAY_BIN=$(TARGET)/release/forebay $(PYTHON) tests/package/run.py $(ARGS)

xray: setup build ## all built-in scenarios, scaled, with a peer: some 30 minutes (ARGS: names of scenarios)
	$(CARGO) build --release --locked -p forebay-xray
	@XRAY=$(TARGET)/release/forebay-xray FOREBAY_BIN=$(TARGET)/release/forebay scripts/xray.sh $(ARGS)

xray-fio: setup ## the load generator next to fio: rates and percentiles
	$(CARGO) test --release --locked -p forebay-xray --test it fio:: -- --ignored --nocapture

fmt: ## format all code
	$(CARGO) fmt --all

# The server is checked as users build it, too: without the features that tests need.
# cargo-deny takes minutes to build: `make deny` and the workflow install it.
lint: ## formatting, clippy, tidy, links, and licences of dependencies if cargo-deny is installed
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) check --locked -p forebay-server
	$(CARGO) run -q --locked -p xtask -- tidy
	$(PYTHON) scripts/check-links.py
	@if command -v cargo-deny >/dev/null; then $(MAKE) --no-print-directory deny; else \
		echo "warning: cargo-deny is not installed: the licences of dependencies are not checked" >&2; fi

deny: ## licences, sources and bans of dependencies; installs cargo-deny if it is missing (minutes, once)
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	$(CARGO) deny --offline check licenses bans sources

corpora: ## write the generated samples of the fuzz corpora again
	$(CARGO) run -q --locked -p xtask -- corpora

book: ## build the documentation as a book in target/book (needs mdbook)
	@command -v $(MDBOOK) >/dev/null || { echo "mdbook is not installed: cargo install --locked mdbook" >&2; exit 1; }
	$(MDBOOK) build

clean: ## remove build output and cached images
	$(CARGO) clean
	rm -rf .cache
