#!/usr/bin/env bash
# The tests that docs/ names exist, every test of a field case is listed in docs/cases.md, and no link leads nowhere.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
complain() {
  printf 'check-docs: %s\n' "$1" >&2
  status=1
}

# Tests are functions, and cases of the conformance suite are named by topic::case.
functions=$(grep -rhoE 'fn [a-z][a-z0-9_]+' crates --include='*.rs' | cut -c4- | sort -u)
while IFS= read -r name; do
  grep -qxF "${name##*::}" <<<"$functions" || complain "docs/ names the test $name, which does not exist"
done < <(grep -ohE '`([a-z]+::)?[a-z0-9]+(_[a-z0-9]+){2,}`' docs/consistency.md docs/cases.md | tr -d '\140' | sort -u)

while IFS= read -r name; do
  grep -qF "\`$name\`" docs/cases.md || complain "the test $name is not listed in docs/cases.md"
done < <(grep -E '^c[0-9]{2,3}_' <<<"$functions")

for page in README.md ARCHITECTURE.md CHANGELOG.md docs/*.md; do
  while IFS= read -r link; do
    [[ -e $(dirname "$page")/${link%%#*} ]] || complain "$page links to $link, which does not exist"
  done < <(grep -oE '\]\([^):#]+(#[^)]*)?\)' "$page" | sed -E 's/^\]\((.*)\)$/\1/')
done
exit "$status"
