#!/usr/bin/env bash
# Formatting, clippy, rustdoc and the licences and sources of dependencies; a warning is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
  printf '\n== lint: %s\n' "$1"
}

step 'format'
cargo fmt --all --check
step 'clippy'
cargo clippy --workspace --all-targets --locked -- -D warnings
step 'rustdoc'
RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked --quiet
step 'what the documentation names'
scripts/check-docs.sh
step 'licences and sources of dependencies'
if cargo deny --version >/dev/null 2>&1; then
  cargo deny --locked check licenses bans sources
else
  echo 'SKIPPED: cargo-deny is not installed (cargo install --locked cargo-deny), so deny.toml was not checked'
fi
