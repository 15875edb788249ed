# The recipes that README and .ci/run use. Anything longer than a line or two is in scripts/.
.DEFAULT_GOAL := help
.PHONY: help run build test e2e lint openapi bench

help: ## list the recipes
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: ## build and start a server on http://127.0.0.1:8080 with its data in ./cosky-data
	@cargo build --release -p cosky-cli
	@exec target/release/cosky serve

build: ## build the release binary, target/release/cosky
	cargo build --release -p cosky-cli

test: ## install what the tests need, then run them all
	@scripts/test.sh

e2e: ## only the tests that run the built binary
	@scripts/test-deps.sh
	cargo test -p cosky-cli
	@scripts/readme-tour.sh

lint: ## formatting, clippy, rustdoc and cargo-deny, with every warning an error
	@scripts/lint.sh

openapi: ## write the OpenAPI snapshot anew
	INSTA_UPDATE=always cargo test -p cosky-server --test openapi

bench: ## measure against the goals; exits non-zero below one
	@scripts/bench.sh
