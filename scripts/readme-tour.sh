#!/usr/bin/env bash
# Runs the tour of README.md as it stands there, pasted into a shell, against a server of its own: `make run` on a free
# port with an empty data directory.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
server=
finish() {
  if [[ -n $server ]]; then
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT

fail() {
  printf 'readme-tour: %s\n' "$1" >&2
  cat "$work/server" >&2
  exit 1
}

while read -r name; do
  unset "$name"
done < <(compgen -e COSKY_)

COSKY_LISTEN=127.0.0.1:0 COSKY_DATA_DIR=$work/data make run >"$work/server" 2>&1 &
server=$!
for ((tries = 0; ; tries++)); do
  address=$(sed -n 's,.*listening on \(http://[0-9.:]*\).*,\1,p' "$work/server")
  sed -n 's/.*password  \([^ ]*\).*/\1/p' "$work/server" >"$work/password"
  if [[ -n $address && -s $work/password ]]; then
    break
  fi
  kill -0 "$server" 2>/dev/null || fail '`make run` ended'
  # It builds first.
  ((tries < 6000)) || fail '`make run` has not printed its address and a password within twenty minutes'
  sleep 0.2
done

{
  # Whatever the tour left running ends with it.
  echo 'trap '\''kill $(jobs -p) 2>/dev/null || true'\'' EXIT'
  awk '/^```bash$/ { on = 1; next } /^```$/ { on = 0 } on' README.md | sed "s,http://127.0.0.1:8080,$address,g"
} >"$work/tour"
# The first thing that reads its standard input is `cosky login`.
if ! HOME=$work timeout 120 bash -euo pipefail "$work/tour" <"$work/password" >"$work/output" 2>&1; then
  cat "$work/output" >&2
  fail 'the tour of README.md failed'
fi
cat "$work/output"
for expected in 'web@http#127.0.0.1#' '"instanceId":"web@http#' gone '"renewed":true'; do
  grep -qF -- "$expected" "$work/output" || fail "the tour did not print $expected"
done
echo 'readme-tour: passed'
