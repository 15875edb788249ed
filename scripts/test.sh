#!/usr/bin/env bash
# Everything that must pass: unit, conformance, property, end-to-end and doc tests, and the commands of the README.
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
  printf '\n== test: %s (%s s since the start)\n' "$1" "$SECONDS"
}

step 'what the tests need'
scripts/test-deps.sh
step 'building'
cargo test --workspace --locked --no-run
step 'unit, integration, end-to-end and doc tests'
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --workspace --locked 2>&1 | tee "$log"
step 'the tour of the README'
scripts/readme-tour.sh
printf '\n== test: passed in %s s\n' "$SECONDS"
awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
  END { printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored }' "$log"
