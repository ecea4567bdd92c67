#!/usr/bin/env bash
# tools/fleet, in short: every step of it, no byte lost, and nothing left behind.
set -euo pipefail

root=$(realpath "$(dirname "$0")/../..")
build=${1:-$root/build/release}
export TMPDIR
TMPDIR=$(mktemp -d)
trap 'rm -rf "$TMPDIR"' EXIT
fail() {
    echo "failed: $1" >&2
    cat "$TMPDIR.out" >&2
    exit 1
}

status=0
"$root/tools/fleet" --quick --programs "$build" >"$TMPDIR.out" 2>&1 || status=$?
[[ $status != 77 ]] || { cat "$TMPDIR.out"; rm -f "$TMPDIR.out"; exit 77; }
[[ $status == 0 ]] || fail "status $status"
for words in 'three nodes are up' 'node 1 is killed' 'node 1 is up again' 'node 3 has ended with status 0' \
    '60 opened, 0 refused' ' 0 lost, 0 wrong, 0 out of order' '^PASS$'; do
    grep -q -- "$words" "$TMPDIR.out" || fail "no '$words'"
done
grep -q 'connections [1-9]' "$TMPDIR.out" || fail "node 1 had no connections when it was killed"
grep -q 'gaps  *[1-9]' "$TMPDIR.out" || fail "no stream has gone on elsewhere"
[[ -z $(ls "$TMPDIR") ]] || fail "left behind: $(ls "$TMPDIR")"
rm -f "$TMPDIR.out"
