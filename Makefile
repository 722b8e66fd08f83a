# The front door. `make up` and `make test` do all set-up on a fresh Debian machine. The others are for people who work
# on kedge.
.PHONY: up down test test-vm check fix test-room simulate fuzz chaos bench gen release release-all release-twice \
	programs image

up: ## bring a cluster up and show a web page answered by real pods
	@sh scripts/up.sh

down: ## stop it and take mounts, links and nft tables away; data stays
	@sh scripts/down.sh

test: ## all tests, those with real containers included (as root)
	@sh scripts/test.sh

test-vm: ## a whole machine under emulation: install.sh, reboot, power cuts, uninstall (as root, many minutes)
	@sh scripts/test-vm.sh

check: ## read-only: format, lints, documentation, the tree's own rules
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace
	cargo test --test tidy
	if command -v cargo-deny >/dev/null; then cargo deny --offline check bans licenses sources; fi

fix: ## the mutating twin of check
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty

test-room: ## one room's unit tests: make test-room R=store
	cargo test -p $(R)

simulate: ## failing disks of the store, N=100000 seeds of them (from KEDGE_SEED on), and leaders that are cut off
	KEDGE_SEEDS=$(or $(N),100000) cargo test -p store --lib -- --nocapture power_tests faults_tests linear_tests

fuzz: ## every decoder that strangers reach, SECS=240 each with another seed; `make test` takes a few rounds of each
	@sh scripts/fuzz.sh $(or $(SECS),240)

chaos: ## faults on three servers and three agents, SECS=1800 of them; `make test` does it for three minutes
	@sh scripts/chaos.sh $(or $(SECS),1800)

bench: ## every budget as a ratio to a peer or a limit measured in the same run
	@sh scripts/bench.sh

gen: ## make the table of kinds anew from facts (KEDGE_UPSTREAM_DATA, KEDGE_PROTO_FILES)
	@sh scripts/gen.sh

release: ## the static binary for this machine
	@sh scripts/setup.sh
	@sh scripts/build.sh release
	@sh scripts/bin-path.sh release

release-all: ## for all architectures: programs, SBOM, sums, signatures (KEY=FILE), into OUT=FOLDER
	@sh scripts/release-all.sh

release-twice: ## the release once more in another folder: the same bytes
	@sh scripts/release-twice.sh

programs: ## containerd, runc and kubectl from source, for bundles and their test: prints their folder
	@sh scripts/programs.sh

image: ## a container image of kedge itself, an archive: a cluster in a container (OUT=kedge-image.tar)
	@sh scripts/image.sh "$(or $(OUT),kedge-image.tar)"
