# What CI runs is what you run.

CARGO ?= cargo
EVENT ?= dm
# What `make build` builds for, and `make deploy` deploys: x86_64 or arm64.
ARCH ?= $(subst aarch64,arm64,$(shell uname -m))
STACK ?= didactyl
# How long `make fuzz` runs each target.
SECONDS ?= 60

# What the property tests try is the same each time; another number tries other things: make test PROPTEST_RNG_SEED=7
export PROPTEST_RNG_SEED ?= 2026

# Tools that `make build` and others install from PyPI.
TOOLS := PATH="$(CURDIR)/.venv/bin:$$PATH" SAM_CLI_TELEMETRY=0
SANDBOX := $(CARGO) run --quiet --example sandbox --

.PHONY: demo test interop bench fuzz check fmt invoke events build measure watch samples sam-build deploy tools

# One whole conversation on this machine: no account, key or network.
demo:
	$(CARGO) run --quiet --bin didactyl -- demo

# Every test, those against AWS included: moto answers them on loopback. Those with foreign clients need npm; without it
# they say that they are NOT RUN.
test:
	tests/moto/with-moto.sh tests/interop/with-clients.sh $(CARGO) test

# The tests with foreign clients alone, and never without them.
interop:
	CI=true tests/interop/with-clients.sh $(CARGO) test --test it -- interop:: foreign_model:: providers::

# How long assembling a context takes. See docs/PERFORMANCE.md.
bench:
	$(CARGO) bench --no-default-features --bench assemble -- --noplot

# Each fuzz target for a minute, on stable Rust: make fuzz SECONDS=600. Needs cargo-fuzz and a C++ compiler.
fuzz:
	for target in template codec document; do \
		$(CARGO) fuzz run --sanitizer none $$target -- -dict=fuzz/words.dict -max_total_time=$(SECONDS) || exit 1; \
	done

# Formatting, lints, docs, dependency rules and the template, all without warnings.
check: tools
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy --no-default-features --lib --bin didactyl-lambda -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --quiet
	tests/check-dependencies.sh
	.venv/bin/cfn-lint template.yaml
	AWS_DEFAULT_REGION=eu-central-1 $(TOOLS) sam validate --lint
	.venv/bin/python tests/check-template.py template.yaml

fmt:
	$(CARGO) fmt

# A sample payload through the real handler: make invoke EVENT=dm
invoke:
	DIDACTYL_MAX_AGE=0 $(CARGO) run --quiet --bin didactyl -- invoke events/$(EVENT).json

# Writes the sample payloads anew.
events:
	$(CARGO) run --quiet --example sample_events events

# The function beside a bare echo function: cold start, memory, size. See docs/PERFORMANCE.md.
measure:
	$(CARGO) build --release --no-default-features --bin didactyl-lambda --example echo_lambda
	DIDACTYL_MEASURE=$(CURDIR)/target/release tests/moto/with-moto.sh \
		$(CARGO) test --test it measure:: -- --ignored --nocapture

# What both functions of template.yaml are: target/lambda/didactyl-lambda/bootstrap.zip. By zig, so that it needs an
# older glibc than Lambda's, whatever this machine's is.
build: tools
	$(TOOLS) $(CARGO) lambda build --release --no-default-features --bin didactyl-lambda --output-format zip \
		--lambda-dir target/lambda $(if $(filter arm64,$(ARCH)),--arm64,--x86-64)

# The function on this machine, with a relay and a scripted model, all on loopback. In another terminal, with .venv/bin in
# PATH: cargo lambda invoke didactyl-lambda --data-file events/dm.json
watch: tools
	$(TOOLS) $(SANDBOX) $(CARGO) lambda watch --invoke-address ::1

# Every sample payload through `cargo lambda watch`.
samples: tools
	$(TOOLS) $(SANDBOX) tests/cargo-lambda.sh

sam-build: build
	$(TOOLS) sam build --parameter-overrides Architecture=$(ARCH)

# make deploy STACK=didactyl PARAMETERS='Admin=npub1… Relays=wss://relay.example'
deploy: build
	$(TOOLS) sam deploy --template-file template.yaml --stack-name $(STACK) --resolve-s3 --capabilities CAPABILITY_IAM \
		--parameter-overrides Architecture=$(ARCH) $(PARAMETERS)

tools:
	tests/python.sh tools.txt
