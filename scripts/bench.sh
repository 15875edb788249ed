#!/usr/bin/env bash
# Builds the release binary and the bench, and measures. Arguments are handed on: names of rows, or --help.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --locked -p cosky-cli -p cosky-bench
exec target/release/cosky-bench --cosky target/release/cosky "$@"
