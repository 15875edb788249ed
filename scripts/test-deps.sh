#!/usr/bin/env bash
# Installs what the tests call besides cargo: only what is missing, through the machine's package manager.
set -euo pipefail

# command:Debian package
needed=(cc:gcc curl:curl python3:python3)

missing=()
for pair in "${needed[@]}"; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

echo "test-deps: installing ${missing[*]}"
if ! command -v apt-get >/dev/null; then
  echo "test-deps: there is no apt-get here; install ${missing[*]} and try again" >&2
  exit 1
fi
as_root=()
if ((EUID != 0)); then
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -q
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}"
