# What CI runs is what you run.

CARGO ?= cargo
EVENT ?= dm

.PHONY: demo test check fmt invoke events lambda

# One whole conversation on this machine: no account, key or network.
demo:
	$(CARGO) run --quiet --bin didactyl -- demo

# Every test, those against AWS included: moto answers them on loopback.
test:
	tests/moto/with-moto.sh $(CARGO) test

# Formatting, lints, docs and dependency rules, all without warnings.
check:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy --no-default-features --lib --bin didactyl-lambda -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --quiet
	tests/check-dependencies.sh

fmt:
	$(CARGO) fmt

# A sample payload through the real handler: make invoke EVENT=dm
invoke:
	DIDACTYL_MAX_AGE=0 $(CARGO) run --quiet --bin didactyl -- invoke events/$(EVENT).json

# Writes the sample payloads anew.
events:
	$(CARGO) run --quiet --example sample_events events

# The function's binary: target/release/didactyl-lambda
lambda:
	$(CARGO) build --release --no-default-features --bin didactyl-lambda
