# The commands of this repository. `make` alone lists them.
# Needs a Rust toolchain and a C compiler; `make test` installs what else the tests need.

SHELL := /bin/bash
CARGO ?= cargo

DEMO := demo/drive-managed.toml demo/pblk-128-pus.toml demo/pblk-4-pus.toml
GUEST_PACKAGES := qemu-system-x86 cpio xz-utils fio dpkg-dev dash sqlite3 redis-server
TEST_PACKAGES := python3 fio qemu-utils libnbd-bin e2fsprogs blktrace dpkg-dev g++ sqlite3 redis-server rocksdb-tools mariadb-server postgresql sysbench valgrind qemu-user golang-go
# Tests that need a controller; `make test-guest` has one.
IN_GUEST := guest_ kernel_passed_commands kernel_block_devices kernel_driver_goes kernel_matrix
BENCH_REDIS_PACKAGES := redis-server libnbd-bin e2fsprogs mount util-linux
# The programs that `sluice bench speculate` profiles.
SPECULATE_PACKAGES := qemu-user util-linux gcc binutils bzip2 tar git sqlite3 redis-server redis-tools rocksdb-tools postgresql mariadb-server sysbench

.PHONY: help demo book install capi install-capi fio-engine python fuzz test test-long test-fio test-python test-guest test-loom test-sanitizer test-packages bench bench-redis instructions repro fmt lint docs pages

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## one drive, three ways to manage its flash: a table, and report.html
	$(CARGO) build --profile demo --package sluice-cli --bin sluice
	"$${CARGO_TARGET_DIR:-target}/demo/sluice" sim $(DEMO) --report report.html
	@echo "The plots are in report.html."

book: ## build the book, docs/book, into target/book
	scripts/book

PREFIX ?= /usr/local

install: ## install sluice, its man pages and completions, and the library that `sluice exec` loads into programs, below PREFIX (and DESTDIR)
	$(CARGO) build --release --package sluice-cli --bin sluice
	$(CARGO) build --release --package sluice-preload
	install -D -m 755 "$${CARGO_TARGET_DIR:-target}/release/sluice" "$(DESTDIR)$(PREFIX)/bin/sluice"
	install -D -m 755 "$${CARGO_TARGET_DIR:-target}/release/libsluice_preload.so" \
	  "$(DESTDIR)$(PREFIX)/lib/libsluice_preload.so"
	"$${CARGO_TARGET_DIR:-target}/release/sluice" generate man "$(DESTDIR)$(PREFIX)/share/man/man1"
	@made=$$(mktemp -d) && "$${CARGO_TARGET_DIR:-target}/release/sluice" generate completions "$$made" && \
	  install -D -m 644 "$$made/sluice.bash" "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluice" && \
	  install -D -m 644 "$$made/_sluice" "$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_sluice" && \
	  install -D -m 644 "$$made/sluice.fish" "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/sluice.fish" && \
	  rm -r "$$made"

# Of these crate types alone, so that the whole library is optimized as one.
capi: ## build the C interface: libsluice_c.so and libsluice_c.a
	$(CARGO) rustc --release --package sluice-capi --lib --crate-type cdylib,staticlib

install-capi: capi ## install libsluice.so, libsluice.a, headers and sluice.pc below PREFIX (and DESTDIR)
	scripts/install-capi "$(PREFIX)" "$${CARGO_TARGET_DIR:-target}/release"

fio-engine: capi ## build libfio_sluice.so against the source package of the fio that is installed
	scripts/fio-engine "$${CARGO_TARGET_DIR:-target}/release/libsluice_c.a" \
	  "$${CARGO_TARGET_DIR:-target}/fio-engine/libfio_sluice.so"

# Examples are not built: clippy checks them, and crates/tools/sluice/tests runs them.
test: test-packages ## install what the tests need, and run them
	$(CARGO) test --workspace --tests
	$(CARGO) test --workspace --doc

test-long: test-packages ## the same, 200 cuts of each kind under Redis, SQLite and RocksDB, 200 of power under MariaDB and PostgreSQL, and 15,000 of the translation layer (hours)
	$(CARGO) test --workspace --profile long -- --include-ignored $(addprefix --skip ,$(IN_GUEST))
	SLUICE_CASES=$${SLUICE_CASES:-15000} $(CARGO) test --profile long --package sluice-ftl --test suite oracle:: -- --skip journal::

# Of the whole workspace: a package alone has other features of its dependencies, and is built again.
test-fio: test-packages ## fio on the library, through the engine built for it
	$(CARGO) test --workspace --tests fio_engine:: -- --include-ignored

test-guest: ## the driver of real controllers, on QEMU's NVMe controller in Linux guests with an IOMMU and without
	-scripts/apt-install $(GUEST_PACKAGES)
	$(CARGO) build --package sluice-cli --bin sluice
	$(CARGO) build --package sluice-preload
	$(CARGO) rustc --package sluice-capi --lib --crate-type staticlib
	@suite=$$($(CARGO) test --package sluice-cli --test suite --no-run --message-format=json \
	    | sed -n 's/.*"executable":"\([^"]*suite-[^"]*\)".*/\1/p' | tail -1); \
	  built="$${CARGO_TARGET_DIR:-target}/debug"; engine="$$built/fio-engine/libfio_sluice.so"; status=0; \
	  scripts/fio-engine "$$built/libsluice_c.a" "$$engine" || status=$$?; \
	  case $$status in \
	    0) programs=("$$engine") ;; \
	    77) programs=() ;; \
	    *) exit $$status ;; \
	  esac; \
	  status=0; \
	  for iommu in yes no; do \
	    GUEST_IOMMU=$$iommu scripts/guest scripts/guest-controller "$$suite" "$$built/sluice" \
	      "$$built/libsluice_preload.so" "$$(command -v dash)" "$$(command -v sqlite3)" \
	      "$$(command -v redis-server)" "$$(command -v redis-cli)" "$$(command -v redis-check-aof)" \
	      "$$(command -v fio)" "$${programs[@]}" || status=$$?; \
	  done; \
	  exit $$status

python: ## build the wheel of the Python package into target/wheels
	scripts/python-wheel release "$${CARGO_TARGET_DIR:-target}/wheels"

test-python: ## build the Python package's wheel, and test it in a fresh environment with packages from PyPI
	scripts/python-test

fuzz: ## libFuzzer on what drives and hosts read from rings and servers and clients from sockets, FUZZ_SECONDS (60) each
	scripts/fuzz $(FUZZ_TARGETS)

test-sanitizer: ## the crates with unsafe code under AddressSanitizer; needs a nightly toolchain (else status 77 in scripts/test-sanitizer)
	scripts/test-sanitizer

test-loom: ## every interleaving of the ring that steers completions, and of calls of programs under `sluice exec`
	export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}/loom" LOOM_MAX_PREEMPTIONS=4; \
	  $(CARGO) test --package sluice-block --package sluice-exec-proto --lib loom

test-packages: # Debian packages with the programs that the tests drive, only if missing
	scripts/apt-install $(TEST_PACKAGES)

bench: ## measure simulated IOPS, real-time IOPS and nanoseconds per command
	$(CARGO) build --release --package sluice-cli --bin sluice
	@status=0; for group in sim live ring block uring hiops direct lightnvm thesis; do \
	  "$${CARGO_TARGET_DIR:-target}/release/sluice" bench $$group --json || status=$$?; \
	done; exit $$status

bench-redis: ## Redis through `sluice exec` and through the kernel, on the same drive (as root: it mounts)
	scripts/apt-install $(BENCH_REDIS_PACKAGES)
	$(CARGO) build --release --package sluice-cli --bin sluice
	$(CARGO) build --release --package sluice-preload
	"$${CARGO_TARGET_DIR:-target}/release/sluice" bench exec --part redis $(BENCH_REDIS)

instructions: ## count the instructions per request of the block layer, of pblk, of keys and values, of user-level I/O, of rules and of a simulated I/O; fails over a bound
	scripts/apt-install valgrind
	$(CARGO) bench --no-fail-fast --package sluice-block --package sluice-pblk --package sluice-stack --package sluice-sim --package sluice-user-io --package sluice-rules-lang --package sluice-controller --bench instructions
	$(CARGO) bench --no-fail-fast --package sluice-block --package sluice-kv --bench steps

repro: ## measure all figures of the papers that can be measured here (an hour), and write REPRODUCED.md
	scripts/apt-install $(BENCH_REDIS_PACKAGES) rocksdb-tools $(SPECULATE_PACKAGES)
	$(CARGO) build --release --package sluice-cli --bin sluice
	$(CARGO) build --release --package sluice-preload
	"$${CARGO_TARGET_DIR:-target}/release/sluice" repro run all
	"$${CARGO_TARGET_DIR:-target}/release/sluice" repro report

pages: ## write the pages and pictures that are made from data: guarantees, results, limits, figures
	scripts/guarantees && scripts/results && scripts/limits && scripts/figures

fmt: ## format the code
	$(CARGO) fmt --all

lint: ## what CI checks besides the tests
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs: ## build the library's documentation; warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
